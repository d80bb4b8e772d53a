import type { JobEnvelope } from '#schemas/job.ts'
import type { TranscribeEvent } from '#schemas/transcription.ts'
import { ServiceError } from '#shared/error.ts'
import type { OutputRecorder } from '#shared/kinds/kind.ts'
import { dataOf } from '#shared/protocols/protocol.ts'
import { TranscriptStream } from './stream.ts'
import { encodeTranscript } from './whole.ts'

/**
 * Records the output of a durable transcription as its caller's answer says it: events of the stream, and the whole in the
 * form that was asked for.
 *
 * @throws ServiceError `internal_error` when the job does not say which form
 */
export function recordTranscript({ encode }: JobEnvelope): OutputRecorder {
  if (!encode) throw new ServiceError('internal_error', 'The job does not say how its output is kept.')
  const encoder = new TranscriptStream(encode)
  const objectsOf = (frames: string) => dataOf(frames).map((text) => JSON.parse(text) as unknown)
  return {
    event: (delta) => objectsOf(encoder.event(delta as TranscribeEvent)),
    end: () => objectsOf(encoder.end()),
    whole: (deltas) => encodeTranscript(deltas as TranscribeEvent[], encode),
  }
}
