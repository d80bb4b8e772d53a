import type { ServiceError } from '#shared/error.ts'
import type { Frame } from '#shared/kinds/answer.ts'
import { openaiErrorBody } from '#shared/protocols/errors.ts'
import { errorBody, type WireFormat } from './errors.ts'

/**
 * Server-sent events (WHATWG HTML, section 9.2) as the two formats use them: OpenAI's are nameless and end with `[DONE]`,
 * Anthropic's are named (docs/protocol.md, Event streams).
 */

/** A message as an event of the stream. */
export function sseText({ id, event, data }: Frame): string {
  if (event === undefined) return `data: ${data}\n\n`
  const text = `event: ${event}\ndata: ${data}\n\n`
  return id === undefined ? text : `id: ${id}\n${text}`
}

/** What is written after the last message of a stream that ended well. */
export const SSE_END: Readonly<Record<WireFormat, string>> = { openai: 'data: [DONE]\n\n', anthropic: '' }

/** What is written in silence, so that nobody between takes the connection for dead. */
export const SSE_KEEP_ALIVE: Readonly<Record<WireFormat, string>> = {
  openai: ': keep-alive\n\n',
  anthropic: 'event: ping\ndata: {"type":"ping"}\n\n',
}

/** The message that ends a failed stream (docs/protocol.md, Failures after the head). */
export function failureFrame(error: ServiceError, format: WireFormat, requestId: string): Frame {
  const data = JSON.stringify(errorBody(error, format, requestId))
  return format === 'anthropic' ? { event: 'error', data } : { data }
}

/** The same for the history of a job. It is not part of it, so it has no number: an EventSource that comes back is refused. */
export function historyFailureFrame(error: ServiceError): Frame {
  return { event: 'error', data: JSON.stringify({ type: 'error', ...openaiErrorBody(error) }) }
}
