import type { WireFormat } from '#services/ingress/body/body.ts'
import { failureFrame, SSE_END, sseText } from '#services/ingress/http/reply.ts'
import type { AnswerStream, Frame } from '#shared/kinds/answer.ts'
import { ServiceError } from '#shared/lib/error.ts'

/** Encodes frames as an HTTP event stream. */
export function sseOf(frames: readonly Frame[]): string {
  return frames.map(sseText).join('')
}

/**
 * Encodes a complete response as an HTTP event stream: the frames of all events, and the end mark of the format. If the stream fails at its end,
 * then an error frame is last.
 */
export function sseStream<Event>(
  stream: AnswerStream<Event> | undefined,
  events: readonly Event[],
  format: WireFormat = 'openai',
): string {
  if (!stream) throw new Error('the response is not a stream')
  const said = sseOf(events.flatMap((event) => stream.push(event)))
  try {
    return said + sseOf(stream.end()) + SSE_END[format]
  } catch (error) {
    return said + sseFailure(ServiceError.from(error), format)
  }
}

/** The error frame with which a failed stream ends. */
export function sseFailure(error: ServiceError, format: WireFormat = 'openai'): string {
  return sseText(failureFrame(error, format, 'req_1'))
}

/** Returns the JSON text of each `data:` line, in order. The end mark `[DONE]` is left out. */
export function dataOf(text: string): string[] {
  const lines = text.split('\n').filter((line) => line.startsWith('data: ') && line !== 'data: [DONE]')
  return lines.map((line) => line.slice('data: '.length))
}
