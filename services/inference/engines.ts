import type { ChatEngine } from '#shared/engines/chat.ts'
import { ServiceError } from '#shared/error.ts'
import type { Ports } from '#shared/ports.ts'

/** The engines of one worker: each is opened when its model is first asked for. */
export class Engines {
  readonly #ports: Ports
  readonly #open = new Map<string, ChatEngine>()

  constructor(ports: Ports) {
    this.#ports = ports
  }

  /** The engine of a model. @param name Its id or an alias. @throws ServiceError `model_not_found` */
  get(name: string): ChatEngine {
    const model = this.#ports.models.find(name)
    if (!model) {
      // The ingress knows the model and this worker does not: their catalogues differ.
      throw new ServiceError('model_not_found', `The model '${name}' does not exist or you do not have access to it.`)
    }
    let engine = this.#open.get(model.id)
    if (!engine) {
      engine = this.#ports.openChatEngine(model)
      this.#open.set(model.id, engine)
    }
    return engine
  }

  /** Closes every engine that was opened. */
  async close(): Promise<void> {
    await Promise.all([...this.#open.values()].map((engine) => engine.close()))
    this.#open.clear()
  }
}
