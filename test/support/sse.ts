import type { WireFormat } from '#services/ingress/reply/errors.ts'
import { failureFrame, SSE_END, sseText } from '#services/ingress/reply/sse.ts'
import { ServiceError } from '#shared/error.ts'
import type { AnswerStream, Frame } from '#shared/kinds/answer.ts'

/** Messages as a stream over HTTP has them. */
export function sseOf(frames: readonly Frame[]): string {
  return frames.map(sseText).join('')
}

/** A whole stream over HTTP: all that is said of some events, and how it ends. */
export function sseStream<Event>(
  stream: AnswerStream<Event> | undefined,
  events: readonly Event[],
  format: WireFormat = 'openai',
): string {
  if (!stream) throw new Error('the answer is no stream')
  const said = sseOf(events.flatMap((event) => stream.push(event)))
  try {
    return said + sseOf(stream.end()) + SSE_END[format]
  } catch (error) {
    return said + sseFailure(ServiceError.from(error), format)
  }
}

/** The last words of a stream that failed. */
export function sseFailure(error: ServiceError, format: WireFormat = 'openai'): string {
  return sseText(failureFrame(error, format, 'req_1'))
}

/** The `data:` of each event, JSON texts in order; without the `[DONE]` that ends some streams. */
export function dataOf(text: string): string[] {
  const lines = text.split('\n').filter((line) => line.startsWith('data: ') && line !== 'data: [DONE]')
  return lines.map((line) => line.slice('data: '.length))
}
