import type { GenerateEvent, GenerateRequest } from '#schemas/generate.ts'
import type { ModelConfig } from '#schemas/models.ts'
import type { ContentFindings } from '#shared/content-filter/content-filter.ts'
import { adaptRequest } from '#shared/engines/adapt.ts'
import type { ChatEngine } from '#shared/engines/chat.ts'
import { complete, requireCompletable } from '#shared/engines/completions.ts'
import { type Attempted, chainOf, type EngineRegistry, withFallbacks } from '#shared/engines/engine-registry.ts'
import { estimateUsage } from '#shared/engines/upstream/usage.ts'
import { isTooLarge, splitEvent } from '#shared/kinds/generate.ts'
import type { AttemptContext } from '#shared/kinds/kind.ts'
import type { Ports } from '#shared/ports.ts'
import { requirePublicUrls } from './remote-urls.ts'
import { fitPrompt } from './truncate.ts'

/** Generates with the model that was asked for, and, when that fails before any output, with its fallbacks in their order. */
export function generateWithFallback(
  engines: EngineRegistry<ChatEngine>,
  ports: Pick<Ports, 'models' | 'contentFilter' | 'log'>,
  request: GenerateRequest,
  context: AttemptContext,
): AsyncGenerator<GenerateEvent> {
  const ask = async (model: ModelConfig): Promise<Attempted<GenerateEvent, GenerateEvent>> => {
    if (isBehindHttp(model)) await requirePublicUrls(request, context.signal)
    // The model that was asked for keeps the name it was asked for by.
    const named = model === chain[0] ? request : { ...request, model: model.id }
    requireCompletable(model, named)
    const engine = engines.of(model)
    const { request: adapted, restore } = adaptRequest(named, model)
    const asked = adapted.truncates
      ? await fitPrompt(adapted, model, (each) => countPrompt(engine, each, context))
      : adapted
    const give = givenBy(ports)
    return {
      events: complete(engine, asked, context),
      give: restore ? (event) => restore(event).flatMap((each) => [...give(each)]) : give,
    }
  }
  const chain = chainOf(ports.models.served, request.model)
  return withFallbacks(chain, ask, context, ports.log)
}

/** Tokens of a prompt, estimated where neither the engine nor its server counts. */
export async function countPrompt(
  engine: ChatEngine,
  request: GenerateRequest,
  context: Pick<AttemptContext, 'signal' | 'idempotencyKey' | 'tenant' | 'traceparent'>,
): Promise<number> {
  return (await engine.countTokens?.(request, context)) ?? (await estimateUsage(request, '')).input_tokens
}

/**
 * What callers get of an engine's events. The start names the model that answers, which is known only with its first output.
 * A plain call for each of them and not one more generator, which would cost every token a microtask.
 */
function givenBy({ contentFilter }: Pick<Ports, 'contentFilter'>): (event: GenerateEvent) => Iterable<GenerateEvent> {
  let start: GenerateEvent | undefined
  /** Of each choice, for the filter. */
  const texts: string[] = []
  return (event) => {
    if (event.type === 'start') {
      start = event
      return []
    }
    if (contentFilter && event.type === 'text') texts[event.choice] = (texts[event.choice] ?? '') + event.text
    const needsResults = contentFilter && event.type === 'finish' && !event.filter
    const found = needsResults ? contentFilter.classify(texts[event.choice] ?? '').detected : []
    const told = found.length > 0 ? withFindings(event, found) : event
    const output = isTooLarge(told) ? [...splitEvent(told)] : [told]
    if (start) output.unshift(start)
    start = undefined
    return output
  }
}

/** The end of a choice with what the filter found in its text. */
function withFindings(event: GenerateEvent, detected: ContentFindings['detected']): GenerateEvent {
  const results = detected.map((category) => [category, { filtered: false, detected: true }])
  return { ...event, filter: Object.fromEntries(results) } as GenerateEvent
}

/** True for models behind HTTP, whose servers fetch what a URL in the request names. */
export function isUpstream({ models }: Pick<Ports, 'models'>, name: string): boolean {
  const model = models.find(name)
  return model !== undefined && isBehindHttp(model)
}

function isBehindHttp({ engine }: ModelConfig): boolean {
  return engine.type === 'openai' || engine.type === 'anthropic'
}
