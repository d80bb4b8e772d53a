import { ERRORS } from '#schemas/error.ts'
import type { ModelConfig } from '#schemas/models.ts'
import { ServiceError } from '#shared/error.ts'
import type { Log } from '#shared/log/log.ts'

/** Failures of an upstream that another try there cannot mend, but another model can. */
const FALLBACK_CODES = new Set(['upstream_refused', 'model_not_found'])

/** The models that a worker knows, by id or alias. */
interface Models {
  find(name: string): ModelConfig | undefined
}

/** What serves a model. */
interface Opened<Engine> {
  readonly model: ModelConfig
  readonly engine: Engine
}

/** What serves each model of one worker: opened when the model is first asked for. */
export class EngineRegistry<Engine extends { close(): Promise<void> }> {
  readonly #models: Models
  readonly #open: (model: ModelConfig) => Engine
  readonly #opened = new Map<string, Opened<Engine>>()
  /** Engines of models that have changed: they are closed when nobody works with them. */
  readonly #retired = new Set<Engine>()

  constructor(models: Models, open: (model: ModelConfig) => Engine) {
    this.#models = models
    this.#open = open
  }

  /** @param name Id of a model or an alias. @throws ServiceError `model_not_found` */
  get(name: string): Engine {
    const model = this.#models.find(name) ?? throwUnknown(name)
    const known = this.#opened.get(model.id)
    if (known?.model === model) return known.engine
    if (known) this.#retired.add(known.engine)
    const engine = this.#open(model)
    this.#opened.set(model.id, { model, engine })
    return engine
  }

  /** The same for a model that was found, as it is now. @throws ServiceError `model_not_found` when it is no more */
  of({ id }: ModelConfig): Engine {
    return this.get(id)
  }

  /** What serves a model now; undefined while nobody has asked for it. */
  find(id: string): Engine | undefined {
    return this.#opened.get(id)?.engine
  }

  /** The models have changed: closes what serves none of them. @param untilOver What works with them now is over */
  async retire(untilOver: Promise<void>): Promise<void> {
    for (const [id, { model, engine }] of this.#opened) {
      if (this.#models.find(id) === model) continue
      this.#opened.delete(id)
      this.#retired.add(engine)
    }
    const retired = [...this.#retired]
    await untilOver
    await Promise.all(retired.map((engine) => this.#retired.delete(engine) && engine.close()))
  }

  /** Closes everything that was opened. */
  async close(): Promise<void> {
    const engines = [...this.#retired, ...[...this.#opened.values()].map(({ engine }) => engine)]
    this.#retired.clear()
    this.#opened.clear()
    await Promise.all(engines.map((engine) => engine.close()))
  }
}

/** A model and its fallbacks, in their order. @throws ServiceError `model_not_found` */
export function chainOf(models: Models, name: string): ModelConfig[] {
  const model = models.find(name) ?? throwUnknown(name)
  return [model, ...model.fallbacks.flatMap((id) => models.find(id) ?? [])]
}

/** One model's try: what its engine says, and what each of that is for the caller. */
export interface Attempted<Said, Event> {
  readonly events: AsyncIterable<Said>
  /** Nothing for what is held back. */
  give(said: Said): Iterable<Event>
}

/**
 * Asks a model, and, when that fails before anything was given, the next one of the chain.
 *
 * Repeating the same model is not done here: that is the arbiter's, which alone owns retries.
 *
 * @param ask Begins one try.
 * @throws The first model's failure, since its Retry-After is what the caller waits for; the signal's reason
 */
export async function* withFallbacks<Said, Event>(
  chain: readonly ModelConfig[],
  ask: (model: ModelConfig) => Attempted<Said, Event> | Promise<Attempted<Said, Event>>,
  { signal, idempotencyKey }: { readonly signal: AbortSignal; readonly idempotencyKey: string },
  log: Log,
): AsyncGenerator<Event> {
  let firstError: unknown
  for (const model of chain) {
    let hasOutput = false
    try {
      const { events, give } = await ask(model)
      for await (const said of events) {
        for (const event of give(said)) {
          hasOutput = true
          yield event
        }
      }
      return
    } catch (error) {
      firstError ??= error
      if (hasOutput || signal.aborted || !mayFallBack(error)) throw error
      if (model === chain.at(-1)) break
      log.warn({ model: model.id, err: ServiceError.from(error), job: idempotencyKey }, 'model failed; falling back')
    }
  }
  throw firstError
}

/** The ingress knows the model and this worker does not: their catalogues differ. */
function throwUnknown(name: string): never {
  throw new ServiceError('model_not_found', `The model '${name}' does not exist or you do not have access to it.`)
}

function mayFallBack(error: unknown): boolean {
  const { code } = ServiceError.from(error)
  return ERRORS[code].retry || FALLBACK_CODES.has(code)
}
