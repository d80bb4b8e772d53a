import type { GenerateEvent, GenerateRequest, Turn } from '#schemas/kinds/generate.ts'
import type { ModelConfig } from '#schemas/models.ts'
import type { ContentFindings } from '#shared/content-filter/content-filter.ts'
import { adaptRequest } from '#shared/engines/adapt.ts'
import { complete, requireCompletable } from '#shared/engines/completions.ts'
import type { ChatEngine } from '#shared/engines/engine.ts'
import { type Attempted, chainOf, type EngineRegistry, withFallbacks } from '#shared/engines/engine-registry.ts'
import { estimateUsage } from '#shared/engines/upstream/usage.ts'
import { isTooLarge, splitEvent } from '#shared/kinds/generate/generate.ts'
import type { AttemptContext } from '#shared/kinds/kind.ts'
import type { Ports } from '#shared/ports.ts'
import type { CallTrace } from '#shared/telemetry/tracing.ts'
import { requirePublicUrls } from './remote-urls.ts'

const ANSWER_SHARE = 0.25
/** Maximum turns of a prompt in a trace, and maximum parts per turn. */
const TRACED_TURNS_MAX = 100

/** Generates with the requested model. If this model fails before any output, then its fallbacks are tried in order. */
export function generateWithFallback(
  engines: EngineRegistry<ChatEngine>,
  ports: Pick<Ports, 'models' | 'contentFilter' | 'log'>,
  request: GenerateRequest,
  context: AttemptContext,
): AsyncGenerator<GenerateEvent> {
  const ask = async (model: ModelConfig, trace: CallTrace): Promise<Attempted<GenerateEvent, GenerateEvent>> => {
    if (isBehindHttp(model)) await requirePublicUrls(request, context.signal)
    // The requested model keeps the name that the caller used, which may be an alias. A fallback has only its id.
    const named = model === chain[0] ? request : { ...request, model: model.id }
    if (named.completion) requireCompletable(model, named)
    const engine = engines.get(model.id)
    const { request: adapted, restore } = adaptRequest(named, model)
    const asked = adapted.truncates
      ? await fitPrompt(adapted, model, (each) => countPrompt(engine, each, context))
      : adapted
    const give = outputOf(ports)
    const { signal, idempotencyKey, tenant } = context
    const { traceparent, onServer, onModel } = trace
    const options = { signal, idempotencyKey, tenant, traceparent, onServer, onModel }
    return {
      events: asked.completion ? complete(engine, asked, options) : engine.generate(asked, options),
      give: restore ? (event) => restore(event).flatMap((each) => [...give(each)]) : give,
    }
  }
  const chain = chainOf(ports.models.served, request.model)
  const operation = request.completion ? 'text_completion' : 'chat'
  return withFallbacks(chain, ask, context, ports.log, { operation, input: () => messagesOf(request.turns) })
}

/** Returns the newest turns in the form of OpenTelemetry's semantic conventions. Only parts of type text have content. */
function messagesOf(turns: readonly Turn[]): object[] {
  return turns.slice(-TRACED_TURNS_MAX).map(({ role, parts }) => ({
    role,
    parts: parts
      .slice(0, TRACED_TURNS_MAX)
      .map((part) => ({ type: part.type, content: part.type === 'text' ? part.text : undefined })),
  }))
}

/** Counts the tokens of a prompt, or estimates them if neither the engine nor its server can count. */
export async function countPrompt(
  engine: ChatEngine,
  request: GenerateRequest,
  context: Pick<AttemptContext, 'signal' | 'idempotencyKey' | 'tenant' | 'traceparent'>,
): Promise<number> {
  return (await engine.countTokens?.(request, context)) ?? (await estimateUsage(request, '')).input_tokens
}

/**
 * Returns a function that converts an engine's event into the event for callers.
 *
 * The start event names the model that answers. Before the first output, the model can still be replaced by a fallback.
 * The start event is therefore sent with the first output. The result is a plain function, because an additional
 * generator would cost a microtask per token.
 */
function outputOf({ contentFilter }: Pick<Ports, 'contentFilter'>): (event: GenerateEvent) => Iterable<GenerateEvent> {
  let start: GenerateEvent | undefined
  /** Text of each choice so far, for the content filter. */
  const texts: string[] = []
  return (event) => {
    if (event.type === 'start') {
      start = event
      return []
    }
    if (contentFilter && event.type === 'text') texts[event.choice] = (texts[event.choice] ?? '') + event.text
    const needsResults = contentFilter && event.type === 'finish' && !event.filter
    const found = needsResults ? contentFilter.classify(texts[event.choice] ?? '').detected : []
    const annotated = found.length > 0 ? withFindings(event, found) : event
    const output = isTooLarge(annotated) ? [...splitEvent(annotated)] : [annotated]
    if (start) output.unshift(start)
    start = undefined
    return output
  }
}

function withFindings(event: GenerateEvent, detected: ContentFindings['detected']): GenerateEvent {
  const results = detected.map((category) => [category, { filtered: false, detected: true }])
  return { ...event, filter: Object.fromEntries(results) } as GenerateEvent
}

/** Whether a model is behind HTTP, so that its server fetches the URLs in a request. */
export function isUpstream({ models }: Pick<Ports, 'models'>, name: string): boolean {
  const model = models.find(name)
  return model !== undefined && isBehindHttp(model)
}

function isBehindHttp({ engine }: ModelConfig): boolean {
  return engine.type === 'openai' || engine.type === 'anthropic'
}

/**
 * Removes as few of the oldest turns as possible from a prompt that exceeds the model's context (docs/guides/responses.md, Truncation).
 *
 * The shortened prompt consists of the instructions, if any, and the conversation from one of the user turns on. A tool output therefore stays
 * together with its call. The last user turn is never removed. If that turn alone is too long, then the engine rejects the prompt.
 *
 * @param count Returns the tokens of a prompt by the model's tokenizer.
 */
export async function fitPrompt(
  request: GenerateRequest,
  { limits }: Pick<ModelConfig, 'limits'>,
  count: (request: GenerateRequest) => Promise<number>,
): Promise<GenerateRequest> {
  if (!request.truncates || limits.context_tokens === undefined) return request
  const share = Math.floor(limits.context_tokens * ANSWER_SHARE)
  const budget = limits.context_tokens - Math.min(request.max_tokens ?? share, share)
  if ((await count(request)) <= budget) return request
  const shorter = shorterPrompts(request.turns)
  // Counting the tokens of a long prompt is slow, so a binary search finds the longest prompt that fits.
  let [low, high] = [0, shorter.length - 1]
  while (low < high) {
    const middle = Math.floor((low + high) / 2)
    const turns = shorter[middle]?.() ?? []
    if ((await count({ ...request, turns })) <= budget) high = middle
    else low = middle + 1
  }
  const turns = shorter[low]?.()
  return turns ? { ...request, turns } : request
}

/**
 * Returns all possible truncations of a conversation, longest first. Each truncation is built when its function is
 * called.
 */
function shorterPrompts(turns: readonly Turn[]): (() => Turn[])[] {
  const first = turns.findIndex(({ role }) => role !== 'system')
  const head = turns.slice(0, Math.max(0, first))
  const starts = turns.flatMap(({ role }, at) => (role === 'user' && at > first ? [at] : []))
  return starts.map((start) => () => [...head, ...turns.slice(start)])
}
