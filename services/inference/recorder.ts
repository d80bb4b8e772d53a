import { CountTokensResult, type GenerateEvent } from '#schemas/generate.ts'
import type { JobEnvelope } from '#schemas/job.ts'
import { ServiceError } from '#shared/error.ts'
import type { OutputRecorder } from '#shared/kinds/kind.ts'
import { dataOf } from '#shared/protocols/protocol.ts'
import { chatEncoding, messagesEncoding } from '#shared/protocols/protocols.ts'

/** Records generated text as the caller's endpoint says it: chat chunks, or events of the messages format. */
export function recordGenerate(job: JobEnvelope): OutputRecorder {
  const { encode } = job
  if (!encode) throw new ServiceError('internal_error', 'The job does not say how its output is kept.')
  const encoding = job.endpoint === '/v1/messages' ? messagesEncoding : chatEncoding
  const encoder = encoding.openStream(encode)
  const objectsOf = (frames: string) => dataOf(frames).map((text) => JSON.parse(text) as unknown)
  return {
    event: (delta) => objectsOf(encoder.event(delta as GenerateEvent)),
    end: () => objectsOf(encoder.end()),
    whole: (deltas) => encoding.encodeWhole(deltas as GenerateEvent[], encode),
  }
}

/** Records a count of tokens. */
export function recordCount(): OutputRecorder {
  return { event: () => [], end: () => [], whole: ([count]) => CountTokensResult.parse(count) }
}
