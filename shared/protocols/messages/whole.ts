import type { GenerateEvent, Usage } from '#schemas/generate.ts'
import type { EncodeContext } from '#schemas/job.ts'
import type { Message, OutputBlock } from '#schemas/messages.ts'
import { findEvent, makeCallId, unfinished } from '#shared/protocols/encode.ts'
import { envelope, parseInput, stopReason, stopSequence, textBlock, toolBlock } from './encode.ts'

/**
 * The whole message (docs/protocol.md, Messages answers) from all events of the call.
 *
 * @throws ServiceError `upstream_error` when the answer has no finish
 */
export function encodeMessage(events: readonly GenerateEvent[], context: EncodeContext): Message {
  const start = findEvent(events, 'start')
  const finish = findEvent(events, 'finish')
  if (finish === undefined) throw unfinished()
  const pieces = gather(events, context.call_id)
  const hasCalls = pieces.some((piece) => piece.type === 'tool')
  const reason = stopReason(finish, hasCalls, findEvent(events, 'refusal') !== undefined)
  const body = {
    content: pieces.map((piece) => toBlock(piece, context)),
    stop_reason: reason,
    stop_sequence: stopSequence(finish, reason),
  }
  const usage: Usage = findEvent(events, 'usage')?.usage ?? {
    input_tokens: start?.input_tokens ?? 0,
    output_tokens: 0,
  }
  return envelope(context, start?.model ?? context.model, body, usage)
}

type Piece =
  | { type: 'text'; text: string }
  | { type: 'thinking'; text: string; signature: string }
  | { type: 'redacted'; data: string }
  | { type: 'tool'; id: string; name: string; text: string }

/** Events joined to what becomes one block each, in the order in which they began. */
function gather(events: readonly GenerateEvent[], callId: string): Piece[] {
  const pieces: Piece[] = []
  const calls = new Map<number, Extract<Piece, { type: 'tool' }>>()
  for (const event of events) {
    switch (event.type) {
      case 'text':
      case 'refusal':
        addText(pieces, event.text)
        break
      case 'reasoning':
        addThought(pieces, event)
        break
      case 'tool_call': {
        const id = event.id || makeCallId('toolu_', callId, 0, event.call)
        const call = { type: 'tool' as const, id, name: event.name, text: '' }
        calls.set(event.call, call)
        pieces.push(call)
        break
      }
      case 'tool_arguments': {
        const call = calls.get(event.call)
        if (call !== undefined) call.text += event.text
      }
    }
  }
  return pieces
}

function addText(pieces: Piece[], text: string): void {
  const last = pieces.at(-1)
  if (last?.type === 'text') last.text += text
  else if (text !== '') pieces.push({ type: 'text', text })
}

/** A signature closes its block: thoughts after it are another one. */
function addThought(pieces: Piece[], event: Extract<GenerateEvent, { type: 'reasoning' }>): void {
  if (event.redacted !== undefined) pieces.push({ type: 'redacted', data: event.redacted })
  if (event.text === '' && event.signature === undefined) return
  const last = pieces.at(-1)
  const signature = event.signature ?? ''
  if (last?.type === 'thinking' && (last.signature === '' || event.text === '')) {
    last.text += event.text
    last.signature += signature
  } else pieces.push({ type: 'thinking', text: event.text, signature })
}

/** Arguments that are no object were cut by the limit or are the model's error; `input` must be one, so it is empty. */
function toBlock(piece: Piece, context: EncodeContext): OutputBlock {
  switch (piece.type) {
    case 'text':
      return textBlock(context, piece.text.toWellFormed())
    case 'thinking':
      return { type: 'thinking', thinking: piece.text.toWellFormed(), signature: piece.signature }
    case 'redacted':
      return { type: 'redacted_thinking', data: piece.data }
    case 'tool':
      return toolBlock(context, piece.id, piece.name, parseInput(piece.text.toWellFormed()) ?? {})
  }
}
