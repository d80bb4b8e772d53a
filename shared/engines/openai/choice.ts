import type { FinishReason, GenerateEvent, GenerateRequest, Logprob } from '#schemas/kinds/generate.ts'
import { answerError } from '#shared/engines/upstream/error.ts'
import { nativeEvent } from '#shared/kinds/encode.ts'
import { SurrogateBuffer } from '#shared/lib/buffers.ts'
import { Calls } from './calls.ts'

const SYNONYMS: Readonly<Record<Exclude<WireFinish, 'stop'>, readonly string[]>> = {
  length: [
    ...['length', 'maxtokens', 'maxtokensreached', 'maxoutputtokens', 'maxnewtokens', 'maxlength', 'modellength'],
    ...['modelcontextwindowexceeded', 'contextlength', 'contextlengthexceeded', 'contextwindowexceeded', 'tokenlimit'],
    ...['limit', 'errorlimit', 'truncated', 'incomplete', 'lengthlimit', 'lengthcapped', 'outoftokens'],
  ],
  content_filter: [
    ...['contentfilter', 'contentfiltered', 'safety', 'recitation', 'blocklist', 'prohibitedcontent', 'spii'],
    ...[
      'imagesafety',
      'guardrailintervened',
      'guardrail',
      'guardrails',
      'refusal',
      'refused',
      'sensitive',
      'moderation',
    ],
    ...['blocked', 'filtered', 'filter', 'errortoxic', 'language', 'contentpolicy', 'contentpolicyviolation'],
  ],
  tool_calls: ['toolcalls', 'toolcall', 'tooluse', 'functioncall', 'functioncalls', 'toolscalls'],
  failed: [
    ...['abort', 'aborted', 'error', 'failed', 'failure', 'cancelled', 'canceled', 'timeout', 'networkerror'],
    ...['insufficientsystemresource', 'malformedfunctioncall', 'internalerror', 'servererror', 'engineoverloaded'],
  ],
}
const FINISHES = new Map(
  Object.entries(SYNONYMS).flatMap(([finish, words]) => words.map((word) => [word, finish as WireFinish] as const)),
)

const NO_REASON = new Set(['', 'null', 'none', 'unspecified', 'finishreasonunspecified'])

const DEPTH_MAX = 4

export interface WireChoice {
  index?: unknown
  delta?: Delta | null
  message?: Delta | null
  logprobs?: { content?: WireLogprob[] | null; refusal?: WireLogprob[] | null } | null
  finish_reason?: unknown
  /** Field of vLLM: the stop string that was matched, or a token id. */
  stop_reason?: unknown
  content_filter_results?: Record<string, unknown> | null
}

interface Delta {
  content?: unknown
  refusal?: unknown
  /** Reasoning text. Most servers use this name, which comes from DeepSeek. vLLM and OpenRouter use `reasoning`, and Ollama uses `thinking`. */
  reasoning_content?: unknown
  reasoning?: unknown
  thinking?: unknown
  reasoning_details?: unknown
  tool_calls?: unknown
  function_call?: unknown
}

const KNOWN_FIELDS: ReadonlySet<string> = new Set([
  ...['role', 'content', 'refusal', 'reasoning_content', 'reasoning', 'thinking', 'tool_calls', 'function_call'],
  'usage',
])

export interface WireLogprob {
  token: string
  logprob: number | null
  bytes?: number[] | null
  top_logprobs?: WireLogprob[] | null
}

export class ChoiceState {
  readonly #choice: number
  readonly #request: GenerateRequest
  readonly #isSame: boolean
  readonly #text = new SurrogateBuffer()
  readonly #refusal = new SurrogateBuffer()
  readonly #reasoning = new SurrogateBuffer()
  readonly #calls: Calls
  #stopReason: unknown
  #filter: Record<string, unknown> | undefined
  /** Whether the answer contains a `function_call`, the deprecated form of a tool call. */
  #hasFunctionCall = false
  hasOutput = false
  finish: WireFinish | undefined

  constructor(choice: number, request: GenerateRequest) {
    this.#choice = choice
    this.#request = request
    this.#isSame = request.dialect === 'openai' && request.completion === undefined
    this.#calls = new Calls({ choice, model: request.model, keepsExtra: this.#isSame })
  }

  read(wire: WireChoice, isWhole: boolean, out: GenerateEvent[]): void {
    const before = out.length
    const delta = isObject(wire.delta) ? wire.delta : undefined
    const message = isObject(wire.message) ? wire.message : undefined
    const isMessage = message !== undefined && (delta === undefined || !isFilled(delta))
    // If a stream ends with a whole message, then the message repeats the text of the deltas, so it is not read.
    const isRepeated = isMessage && delta !== undefined && this.hasOutput && Boolean(wire.finish_reason)
    const read = isMessage ? message : delta
    if (read && !isRepeated) this.#delta(read, wire.logprobs?.content, isWhole || isMessage, out)
    const refusal = wire.logprobs?.refusal
    if (this.#isSame && refusal?.length) {
      out.push(nativeEvent('openai', 'text', { logprobs: { refusal: refusal.map(readLogprob) } }, this.#choice))
    }
    if (out.length > before || this.#calls.size > 0) this.hasOutput = true
    if (wire.content_filter_results) this.#filter = { ...this.#filter, ...wire.content_filter_results }
    const finish = readFinish(wire.finish_reason)
    if (finish === undefined) return
    this.finish = finish
    this.#stopReason = wire.stop_reason
  }

  *end(out: GenerateEvent[]): Generator<undefined, void> {
    if (this.finish === 'failed') {
      throw answerError(this.#request.model, 'stopped before its response was complete')
    }
    const areCallsWhole = yield* this.#calls.end(out)
    const hitStop = typeof this.#stopReason === 'string' && this.#request.stop.includes(this.#stopReason)
    if (this.#hasFunctionCall && this.finish === 'tool_calls') {
      out.push(nativeEvent('openai', 'text', { finish_reason: 'function_call' }, this.#choice))
    }
    out.push({
      type: 'finish',
      choice: this.#choice,
      reason: this.#finishReason(areCallsWhole),
      ...(hitStop ? { stop_sequence: this.#stopReason as string } : {}),
      ...(this.#filter ? { filter: this.#filter } : {}),
    })
  }

  /**
   * Returns the internal finish reason. Agents run tools only after `tool_calls`, so this reason is returned whenever there are calls
   * (docs/reference/compatibility.md, Chat answers).
   *
   * Arguments that are no JSON were truncated, even if the server reports another reason. The reason is then `length`, so that no client runs a
   * truncated call.
   */
  #finishReason(areCallsWhole: boolean): FinishReason {
    if (this.finish === 'length' || this.finish === 'content_filter') return this.finish
    if (!areCallsWhole) return 'length'
    return this.#calls.size > 0 ? 'tool_calls' : 'stop'
  }

  #delta(delta: Delta, logprobs: unknown, isWhole: boolean, out: GenerateEvent[]): void {
    const choice = this.#choice
    this.#pushReasoning(reasoningOf(delta), out)
    this.#pushContent(delta.content, logprobs, out)
    if (typeof delta.refusal === 'string') {
      const text = this.#refusal.push(delta.refusal)
      if (text !== '') out.push({ type: 'refusal', choice, text })
    }
    if (isObject(delta.tool_calls) || Array.isArray(delta.tool_calls)) this.#calls.read(delta.tool_calls, isWhole, out)
    if (isObject(delta.function_call)) this.#functionCall(delta.function_call, isWhole, out)
    if (this.#isSame) this.#unknownFields(delta, out)
  }

  #pushContent(content: unknown, logprobs: unknown, out: GenerateEvent[]): void {
    let named = Array.isArray(logprobs) && logprobs.length > 0 ? (logprobs as WireLogprob[]) : undefined
    if (typeof content === 'string') return this.#pushText(content, named, out)
    for (const { isThought, text } of pieces(content)) {
      if (isThought) this.#pushReasoning(text, out)
      else {
        this.#pushText(text, named, out)
        named = undefined
      }
    }
    if (named) this.#pushText('', named, out)
  }

  #pushText(piece: string, logprobs: WireLogprob[] | undefined, out: GenerateEvent[]): void {
    const text = this.#text.push(piece)
    if (logprobs) out.push({ type: 'text', choice: this.#choice, text, logprobs: logprobs.map(readLogprob) })
    else if (text !== '') out.push({ type: 'text', choice: this.#choice, text })
  }

  #pushReasoning(piece: string, out: GenerateEvent[]): void {
    const text = this.#reasoning.push(piece)
    if (text !== '') out.push({ type: 'reasoning', choice: this.#choice, text })
  }

  /**
   * Reads a `function_call`, the deprecated form of a tool call. The call is sent unchanged to a caller that offered `functions`, and as a tool call
   * to any other caller.
   */
  #functionCall(wire: object, isWhole: boolean, out: GenerateEvent[]): void {
    if (!this.#isSame || !Array.isArray(this.#request.extra?.functions)) {
      return this.#calls.read({ index: 0, function: wire }, isWhole, out)
    }
    this.#hasFunctionCall = true
    out.push(nativeEvent('openai', 'message', { function_call: wire }, this.#choice))
  }

  #unknownFields(delta: Delta, out: GenerateEvent[]): void {
    let unknown: Record<string, unknown> | undefined
    for (const name in delta) {
      const value = delta[name as keyof Delta]
      if (value === null || value === undefined || KNOWN_FIELDS.has(name)) continue
      if (Array.isArray(value) && value.length === 0) continue
      unknown ??= {}
      if (name !== '__proto__') unknown[name] = value
    }
    if (unknown) out.push(nativeEvent('openai', 'message', unknown, this.#choice))
  }
}

function isFilled(delta: Delta): boolean {
  return Object.entries(delta).some(([name, value]) => {
    if (name === 'role' || value === null || value === '') return false
    return !(Array.isArray(value) && value.length === 0)
  })
}

/** Returns the reasoning of a delta. Servers send the same text under several names, so only the first text that is not empty is read. */
function reasoningOf({ reasoning_content, reasoning, thinking, reasoning_details }: Delta): string {
  for (const text of [reasoning_content, reasoning, thinking]) if (typeof text === 'string' && text !== '') return text
  if (!Array.isArray(reasoning_details)) return ''
  return reasoning_details.map((detail) => detailText(detail)).join('')
}

function detailText(detail: unknown): string {
  const { text, summary } = isObject(detail) ? (detail as { text?: unknown; summary?: unknown }) : {}
  return typeof text === 'string' ? text : typeof summary === 'string' ? summary : ''
}

function isObject(value: unknown): value is object {
  return typeof value === 'object' && value !== null && !Array.isArray(value)
}

/** Reads only the fields of `Logprob`. Servers add other fields, such as token ids, which are dropped. */
export function readLogprob(wire: WireLogprob): Logprob {
  return { ...readToken(wire), top_logprobs: (wire.top_logprobs ?? []).map(readToken) }
}

function readToken({ token, logprob, bytes }: WireLogprob): Omit<Logprob, 'top_logprobs'> {
  return {
    token: typeof token === 'string' ? token : '',
    logprob: typeof logprob === 'number' ? logprob : null,
    bytes: Array.isArray(bytes) && bytes.every(Number.isInteger) ? bytes : null,
  }
}

interface Piece {
  readonly isThought: boolean
  readonly text: string
}

function pieces(content: unknown): Piece[] {
  if (content === null || content === undefined) return []
  const found: Piece[] = []
  collect(content, false, 0, found)
  if (found.length > 0 || typeof content !== 'object' || Array.isArray(content) || 'type' in content) return found
  return [{ isThought: false, text: JSON.stringify(content) }]
}

function collect(content: unknown, isThought: boolean, depth: number, found: Piece[]): void {
  if (typeof content === 'string') found.push({ isThought, text: content })
  else if (typeof content === 'number' || typeof content === 'boolean') found.push({ isThought, text: String(content) })
  else if (typeof content !== 'object' || content === null || depth >= DEPTH_MAX) return
  else if (Array.isArray(content)) for (const part of content) collect(part, isThought, depth + 1, found)
  else {
    const { type, text, thinking, reasoning, value } = content as Record<string, unknown>
    const isInner = isThought || (typeof type === 'string' && /think|reason/i.test(type))
    collect(thinking ?? reasoning, true, depth + 1, found)
    // Parts in the format of OpenAI's Assistants API have their text in `text.value`, so nested values are read too.
    collect(text ?? (depth > 0 ? value : undefined), isInner, depth + 1, found)
  }
}

/** Finish reason of an upstream as one of the internal values. `failed` means that the server could not complete the answer. */
type WireFinish = FinishReason | 'failed'

function readFinish(reason: unknown): WireFinish | undefined {
  if (typeof reason !== 'string') return undefined
  const word = reason.toLowerCase().replaceAll(/[^a-z]/g, '')
  return NO_REASON.has(word) ? undefined : (FINISHES.get(word) ?? 'stop')
}
