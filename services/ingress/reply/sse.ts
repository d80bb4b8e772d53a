import type { Frame } from '#shared/kinds/answer.ts'
import type { ServiceError } from '#shared/lib/error.ts'
import { openaiErrorBody } from '#shared/protocols/errors.ts'
import { errorBody, type WireFormat } from './errors.ts'

/*
 * Server-sent events (WHATWG HTML, section 9.2) in two formats. Events of OpenAI have no name, and a stream ends with
 * `[DONE]`. Events of Anthropic have names (docs/internals/protocol.md, Event streams).
 */

export function sseText({ id, event, data }: Frame): string {
  if (event === undefined) return `data: ${data}\n\n`
  const text = `event: ${event}\ndata: ${data}\n\n`
  return id === undefined ? text : `id: ${id}\n${text}`
}

/** Text after the last frame of a stream that did not fail. */
export const SSE_END: Readonly<Record<WireFormat, string>> = { openai: 'data: [DONE]\n\n', anthropic: '' }

/** Keep-alive for streams without output, so that proxies do not close an idle connection. */
export const SSE_KEEP_ALIVE: Readonly<Record<WireFormat, string>> = {
  openai: ': keep-alive\n\n',
  anthropic: 'event: ping\ndata: {"type":"ping"}\n\n',
}

/** Frame that ends a failed stream (docs/internals/protocol.md, Failures after the head). */
export function failureFrame(error: ServiceError, format: WireFormat, requestId: string): Frame {
  const data = JSON.stringify(errorBody(error, format, requestId))
  return format === 'anthropic' ? { event: 'error', data } : { data }
}

/**
 * Last frame of an event history that fails. The frame is not an event of the job, so it has no id. When the
 * EventSource reconnects, it receives the error as an HTTP status.
 */
export function historyFailureFrame(error: ServiceError): Frame {
  return { event: 'error', data: JSON.stringify({ type: 'error', ...openaiErrorBody(error) }) }
}
