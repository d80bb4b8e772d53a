import type { GenerateEvent } from '#schemas/generate.ts'
import type { EncodeContext } from '#schemas/job.ts'
import type { ServiceError } from '#shared/error.ts'

/**
 * How the output of a job looks to callers of one endpoint. The ingress encodes for callers who wait; a worker encodes
 * for durable jobs, which are kept in the form their callers get.
 */
export interface OutputEncoding {
  /** The whole answer, from all deltas of the job. @throws ServiceError `upstream_error` when the engine did not finish */
  encodeWhole(deltas: readonly GenerateEvent[], context: EncodeContext): unknown
  /** Opens the encoder of one stream. */
  openStream(context: EncodeContext): StreamEncoder<GenerateEvent>
}

/** Encodes one stream. Each call gives the text to write, frames and blank lines included, possibly empty. */
export interface StreamEncoder<Event = unknown> {
  /** Frames for the next event of the kind, such as {@link GenerateEvent}, in the order of its schema. */
  event(event: Event): string
  /** Frames that end a good stream; after the last event. */
  end(): string
  /** Frames that end a failed stream (docs/protocol.md, Failures after the head). */
  error(error: ServiceError): string
  /** What to write after 15 s of silence. */
  keepAlive(): string
}

/** The `data:` of each frame, JSON texts in order; without the `[DONE]` that ends a chat stream. */
export function dataOf(frames: string): string[] {
  const texts: string[] = []
  for (const line of frames.split('\n')) {
    if (line.startsWith('data: ') && line !== 'data: [DONE]') texts.push(line.slice('data: '.length))
  }
  return texts
}
