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

/** What serves each model of one worker: opened when the model is first asked for. */
export class Served<Engine extends { close(): Promise<void> }> {
  readonly #models: Models
  readonly #open: (model: ModelConfig) => Engine
  readonly #opened = new Map<string, Engine>()

  constructor(models: Models, open: (model: ModelConfig) => Engine) {
    this.#models = models
    this.#open = open
  }

  /** @param name Id of a model or an alias. @throws ServiceError `model_not_found` */
  get(name: string): Engine {
    return this.of(this.#models.find(name) ?? throwUnknown(name))
  }

  /** The same for a model that was found. */
  of(model: ModelConfig): Engine {
    const engine = this.#opened.get(model.id) ?? this.#open(model)
    this.#opened.set(model.id, engine)
    return engine
  }

  /** Closes everything that was opened. */
  async close(): Promise<void> {
    await Promise.all([...this.#opened.values()].map((engine) => engine.close()))
    this.#opened.clear()
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
