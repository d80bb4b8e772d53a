import type { GenerateEvent, Usage } from '#schemas/generate.ts'
import type { EncodeContext } from '#schemas/job.ts'
import type { Message, OutputBlock } from '#schemas/messages.ts'
import { findEvent, makeCallId, unfinished } from '#shared/protocols/encode.ts'
import { envelope, parseInput, stopReason, stopSequence, textBlock, toolBlock } from './encode.ts'
import { NativeAnswer, searchBlock, searchResultBlock } from './native.ts'

/**
 * The whole message (docs/reference/compatibility.md, Messages answers) from all events of a call. Yields between blocks, because the
 * arguments of each call are parsed.
 *
 * @throws ServiceError `upstream_error` if the answer has no finish
 */
export function* encodeMessage(
  events: readonly GenerateEvent[],
  context: EncodeContext,
): Generator<undefined, Message> {
  const start = findEvent(events, 'start')
  const finish = findEvent(events, 'finish')
  if (finish === undefined) throw unfinished()
  const content = new Pieces(context.call_id)
  for (const event of events) {
    content.push(event)
    yield
  }
  const blocks: OutputBlock[] = []
  for (const piece of content.pieces) {
    blocks.push(toBlock(piece, context))
    yield
  }
  const hasCalls = content.pieces.some((piece) => piece.type === 'tool')
  const reason = stopReason(finish, hasCalls, findEvent(events, 'refusal') !== undefined)
  const body = {
    content: blocks,
    stop_reason: reason,
    stop_sequence: stopSequence(finish, reason),
  }
  const counted = findEvent(events, 'usage')
  const usage: Usage = counted?.usage ?? { input_tokens: start?.input_tokens ?? 0, output_tokens: 0 }
  const { native } = content
  return {
    ...envelope(context, start?.model ?? context.model, body, {
      usage,
      native: counted?.native_usage,
      searches: content.searches,
    }),
    ...native.delta,
    ...native.beside,
  }
}

type Piece =
  | { type: 'text'; text: string; fields?: Record<string, unknown>; citations: unknown[] }
  | { type: 'thinking'; text: string; signature: string }
  | { type: 'tool'; id: string; name: string; text: string; extra: Record<string, unknown> | undefined }
  | { type: 'block'; block: OutputBlock }

type TextPiece = Extract<Piece, { type: 'text' }>

/** Merges events into pieces, one per content block, in the order in which the blocks began. */
class Pieces {
  pieces: Piece[] = []
  readonly native = new NativeAnswer()
  searches = 0
  readonly #callId: string
  readonly #calls = new Map<number, Extract<Piece, { type: 'tool' }>>()
  /** Number of pieces that precede the current round. A `cut` event removes all later pieces. */
  #kept = 0

  constructor(callId: string) {
    this.#callId = callId
  }

  push(event: GenerateEvent): void {
    switch (event.type) {
      case 'text':
      case 'refusal':
        if (event.text !== '') this.#text().text += event.text
        break
      case 'reasoning':
        this.#thought(event)
        break
      case 'native':
        this.#native(event)
        break
      case 'tool_call': {
        const { name, extra } = event
        const id = event.id || makeCallId('toolu_', this.#callId, 0, event.call)
        const call = { type: 'tool' as const, id, name, text: '', extra }
        this.#calls.set(event.call, call)
        this.pieces.push(call)
        break
      }
      case 'tool_arguments': {
        const call = this.#calls.get(event.call)
        if (call !== undefined) call.text += event.text
        break
      }
      case 'hosted_call':
        this.searches++
        this.#block(searchBlock(this.#callId, event))
        break
      case 'hosted_result':
        this.#block(searchResultBlock(this.#callId, event))
        this.#kept = this.pieces.length
        break
      case 'cut':
        this.pieces = this.pieces.slice(0, this.#kept)
    }
  }

  #text(): TextPiece {
    const last = this.pieces.at(-1)
    if (last?.type === 'text') return last
    const piece: TextPiece = { type: 'text', text: '', citations: [] }
    this.pieces.push(piece)
    return piece
  }

  /** A signature closes its block, so later reasoning begins another one. */
  #thought({ text, signature, redacted }: Extract<GenerateEvent, { type: 'reasoning' }>): void {
    if (redacted !== undefined) this.#block({ type: 'redacted_thinking', data: redacted })
    if (text === '' && signature === undefined) return
    const last = this.pieces.at(-1)
    if (last?.type === 'thinking' && last.signature === '') {
      last.text += text
      last.signature += signature ?? ''
    } else this.pieces.push({ type: 'thinking', text, signature: signature ?? '' })
  }

  #native(event: Extract<GenerateEvent, { type: 'native' }>): void {
    const content = this.native.read(event)
    if (content?.type === 'block') this.#block(content.block)
    else if (content?.type === 'text')
      this.pieces.push({ type: 'text', text: '', fields: content.fields, citations: [] })
    else if (content) for (const citation of content.citations) this.#text().citations.push(citation)
  }

  #block(block: OutputBlock): void {
    this.pieces.push({ type: 'block', block })
  }
}

/** If the arguments are no JSON object, because of the token limit or a model error, then `input` is an empty object. */
function toBlock(piece: Piece, context: EncodeContext): OutputBlock {
  switch (piece.type) {
    case 'text': {
      const { fields, citations } = piece
      const text = piece.text.toWellFormed()
      return { ...textBlock(context, text), ...fields, text, ...(citations.length > 0 && { citations }) }
    }
    case 'thinking':
      return { type: 'thinking', thinking: piece.text.toWellFormed(), signature: piece.signature }
    case 'tool':
      return toolBlock(context, piece.id, piece.name, parseInput(piece.text.toWellFormed()) ?? {}, piece.extra)
    case 'block':
      return piece.block
  }
}
