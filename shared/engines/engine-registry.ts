import { ERRORS } from '#schemas/error.ts'
import type { ModelConfig } from '#schemas/models.ts'
import { ServiceError } from '#shared/lib/error.ts'
import type { Log } from '#shared/log/log.ts'
import { type CallTrace, type ModelCall, ModelSpan, tracing } from '#shared/telemetry/tracing.ts'
import type { EngineOptions } from './engine.ts'

/** Error codes for which a retry with the same model is useless, but a fallback model may succeed. */
const FALLBACK_CODES = new Set(['upstream_refused', 'model_not_found'])

interface Models {
  find(name: string): ModelConfig | undefined
}

interface Opened<Engine> {
  readonly model: ModelConfig
  readonly engine: Engine
}

export class EngineRegistry<Engine extends { close(): Promise<void> }> {
  readonly #models: Models
  readonly #open: (model: ModelConfig) => Engine
  readonly #opened = new Map<string, Opened<Engine>>()
  readonly #retired = new Set<Engine>()

  constructor(models: Models, open: (model: ModelConfig) => Engine) {
    this.#models = models
    this.#open = open
  }

  /**
   * Returns the engine of a model, and opens it if necessary.
   *
   * @param name Id or alias of a model
   * @throws ServiceError `model_not_found` if there is no such model
   */
  get(name: string): Engine {
    const model = this.#models.find(name) ?? throwUnknown(name)
    const known = this.#opened.get(model.id)
    if (known?.model === model) return known.engine
    if (known) this.#retired.add(known.engine)
    const engine = this.#open(model)
    this.#opened.set(model.id, { model, engine })
    return engine
  }

  find(id: string): Engine | undefined {
    return this.#opened.get(id)?.engine
  }

  /**
   * Closes the engines of models that were removed from the catalogue or changed.
   *
   * @param untilOver Resolves when all calls of these engines have ended
   */
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

  async close(): Promise<void> {
    const engines = [...this.#retired, ...[...this.#opened.values()].map(({ engine }) => engine)]
    this.#retired.clear()
    this.#opened.clear()
    await Promise.all(engines.map((engine) => engine.close()))
  }
}

export function chainOf(models: Models, name: string): ModelConfig[] {
  const model = models.find(name) ?? throwUnknown(name)
  return [model, ...model.fallbacks.flatMap((id) => models.find(id) ?? [])]
}

export interface Attempted<Said, Event> {
  readonly events: AsyncIterable<Said>
  /** Converts one event of the engine into events for the caller. The result is empty while a content filter buffers the output. */
  give(said: Said): Iterable<Event>
}

interface FallbackContext extends CallTrace {
  readonly signal: AbortSignal
  readonly idempotencyKey: string
}

interface TracedCall {
  /** Value of `gen_ai.operation.name` in traces. */
  readonly operation: string
  /** Returns the prompt, for traces that contain prompts. */
  readonly input?: () => unknown
}

/**
 * Runs a call on a model. If the call fails before any output, then the next model of the chain is tried.
 *
 * A call is never retried with the same model here, because only the owner of the job decides about retries.
 *
 * @param ask Starts the call of one model. `trace` is the trace context of this call.
 * @throws The error of the first model, because its Retry-After refers to the requested model. The signal's reason, if the signal aborts
 */
export async function* withFallbacks<Said, Event>(
  chain: readonly ModelConfig[],
  ask: (model: ModelConfig, trace: CallTrace) => Attempted<Said, Event> | Promise<Attempted<Said, Event>>,
  context: FallbackContext,
  log: Log,
  traced: TracedCall,
): AsyncGenerator<Event> {
  const { signal, idempotencyKey } = context
  const [job_id] = idempotencyKey.split(':')
  let firstError: unknown
  for (const model of chain) {
    let hasOutput = false
    const span = startModelSpan({ ...traced, model }, context)
    try {
      const { events, give } = await ask(model, span ?? context)
      for await (const said of events) {
        span?.see(said)
        for (const event of give(said)) {
          hasOutput = true
          yield event
        }
      }
      return
    } catch (error) {
      span?.end(codeOf(error, signal))
      firstError ??= error
      if (hasOutput || signal.aborted || !mayFallBack(error)) throw error
      if (model === chain.at(-1)) break
      log.warn({ job_id, model: model.id, err: ServiceError.from(error) }, 'model failed; calling its fallback')
    } finally {
      span?.end(signal.aborted ? 'cancelled' : undefined)
    }
  }
  throw firstError
}

function throwUnknown(name: string): never {
  throw new ServiceError('model_not_found', `The model '${name}' does not exist or you do not have access to it.`)
}

function mayFallBack(error: unknown): boolean {
  const { code } = ServiceError.from(error)
  return ERRORS[code].retry || FALLBACK_CODES.has(code)
}

/**
 * Starts the trace span of a model call. The server that answers is recorded in the span and reported to `context.onServer`. Undefined if the call is
 * not traced.
 */
export function startModelSpan(call: Omit<ModelCall, 'parent'>, context: CallTrace): ModelSpan | undefined {
  return tracing.tracer && ModelSpan.start({ ...call, parent: context.traceparent, onServer: context.onServer })
}

/** Describes a model that is not in the catalogue, for its trace span. Example: the built-in word list for moderation. */
export function unlisted(id: string): ModelCall['model'] {
  return { id, engine: { type: 'sluice' } }
}

/** Runs a call in its own trace span. Used for calls that return one answer instead of a stream. */
export async function tracedCall<T extends object>(
  call: Omit<ModelCall, 'parent'>,
  context: EngineOptions,
  run: (options: EngineOptions) => Promise<T>,
): Promise<T> {
  const span = startModelSpan(call, context)
  if (!span) return await run(context)
  const { signal } = context
  try {
    const answer = await run({ signal, traceparent: span.traceparent, onServer: span.onServer, onModel: span.onModel })
    const { tokens } = answer as { tokens?: number | undefined }
    if (tokens !== undefined) span.see({ usage: { input_tokens: tokens } })
    return answer
  } catch (error) {
    span.end(codeOf(error, signal))
    throw error
  } finally {
    span.end()
  }
}

function codeOf(error: unknown, signal: AbortSignal): string {
  return signal.aborted ? 'cancelled' : ServiceError.from(error).code
}
