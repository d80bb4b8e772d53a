import type { WireFormat } from '#services/ingress/body/body.ts'
import { failureFrame, SSE_END, sseText } from '#services/ingress/http/reply.ts'
import type { AnswerStream, Frame } from '#shared/kinds/answer.ts'
import { ServiceError } from '#shared/lib/error.ts'

/** Messages encoded as an HTTP event stream. */
export function sseOf(frames: readonly Frame[]): string {
  return frames.map(sseText).join('')
}

/** A whole HTTP event stream: the frames of some events, and its end. */
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

/** The last frames of a failed stream. */
export function sseFailure(error: ServiceError, format: WireFormat = 'openai'): string {
  return sseText(failureFrame(error, format, 'req_1'))
}

/** The `data:` of each event, JSON texts in order, without a final `[DONE]`. */
export function dataOf(text: string): string[] {
  const lines = text.split('\n').filter((line) => line.startsWith('data: ') && line !== 'data: [DONE]')
  return lines.map((line) => line.slice('data: '.length))
}
