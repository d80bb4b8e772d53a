import { ERRORS } from '#schemas/error.ts'
import type { GenerateEvent, GenerateRequest } from '#schemas/generate.ts'
import { ServiceError } from '#shared/error.ts'
import { isTooLarge, splitLogprobs } from '#shared/kinds/generate.ts'
import type { AttemptContext } from '#shared/kinds/kind.ts'
import type { Ports } from '#shared/ports.ts'
import type { Engines } from './engines.ts'
import { filterWith } from './filter.ts'
import { requirePublicUrls } from './remote-urls.ts'

/** Failures of an upstream that another try there cannot mend, but another model can. */
const FALLBACK_CODES = new Set(['upstream_refused', 'model_not_found'])

/**
 * Generates with the model that was asked for, and, when that fails before any output, with its fallbacks in their order.
 *
 * Repeating the same model is not done here: that is the arbiter's, which alone owns retries. What is thrown is the first
 * model's failure, since its Retry-After is what the caller waits for.
 */
export async function* generateWithFallback(
  engines: Engines,
  ports: Pick<Ports, 'models' | 'contentFilter' | 'log'>,
  request: GenerateRequest,
  context: AttemptContext,
): AsyncGenerator<GenerateEvent> {
  const chain = [request.model, ...(ports.models.find(request.model)?.fallbacks ?? [])]
  let firstError: unknown
  for (const model of chain) {
    const filtered = ports.contentFilter ? filterWith(ports.contentFilter) : (event: GenerateEvent) => event
    let hasOutput = false
    let start: GenerateEvent | undefined
    try {
      if (isUpstream(ports, model)) await requirePublicUrls(request, context.signal)
      for await (const event of engines.get(model).generate({ ...request, model }, context)) {
        // The start names the model that answers, which is known only with its first output.
        if (event.type === 'start') {
          start = event
          continue
        }
        if (start) yield start
        start = undefined
        hasOutput = true
        if (isTooLarge(event)) yield* splitLogprobs(filtered(event))
        else yield filtered(event)
      }
      return
    } catch (error) {
      firstError ??= error
      if (hasOutput || context.signal.aborted || !mayFallBack(error)) throw error
      if (model === chain.at(-1)) break
      ports.log.warn(
        { model, err: ServiceError.from(error), job: context.idempotencyKey },
        'model failed; falling back',
      )
    }
  }
  throw firstError
}

/** True for models behind HTTP, whose servers fetch what a URL in the request names. */
export function isUpstream({ models }: Pick<Ports, 'models'>, model: string): boolean {
  const type = models.find(model)?.engine.type
  return type === 'openai' || type === 'anthropic'
}

function mayFallBack(error: unknown): boolean {
  const { code } = ServiceError.from(error)
  return ERRORS[code].retry || FALLBACK_CODES.has(code)
}
