import type { ModelConfig } from '#schemas/models.ts'
import { Batcher } from '#shared/engines/batching/batcher.ts'
import { CALLS_MAX } from '#shared/engines/embedding.ts'
import { ServiceError } from '#shared/error.ts'
import type { Ports } from '#shared/ports.ts'

/** A model and the batcher before its engine. */
export interface Served {
  readonly model: ModelConfig
  readonly batcher: Batcher
}

/** The models of one worker: the engine of each is opened when it is first asked for. */
export class Batchers {
  readonly #ports: Pick<Ports, 'models' | 'openEmbeddingEngine'>
  readonly #open = new Map<string, Served>()

  constructor(ports: Pick<Ports, 'models' | 'openEmbeddingEngine'>) {
    this.#ports = ports
  }

  /** @param name Id of a model or an alias. @throws ServiceError `model_not_found` */
  get(name: string): Served {
    const model = this.#ports.models.find(name)
    if (!model) {
      // The ingress knows the model and this worker does not: their catalogues differ.
      throw new ServiceError('model_not_found', `The model '${name}' does not exist or you do not have access to it.`)
    }
    let served = this.#open.get(model.id)
    if (!served) {
      served = { model, batcher: new Batcher(this.#ports.openEmbeddingEngine(model), optionsOf(model)) }
      this.#open.set(model.id, served)
    }
    return served
  }

  /** Ends all calls and closes every engine that was opened. */
  async close(): Promise<void> {
    await Promise.all([...this.#open.values()].map(({ batcher }) => batcher.close()))
    this.#open.clear()
  }
}

function optionsOf({ embeddings, engine }: ModelConfig) {
  return {
    inputsMax: embeddings.batch_inputs_max,
    tokensMax: embeddings.batch_tokens_max,
    waitMs: embeddings.batch_wait_ms,
    callsMax: ('concurrency' in engine ? engine.concurrency : undefined) ?? CALLS_MAX,
  }
}
