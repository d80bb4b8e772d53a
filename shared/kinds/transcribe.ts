import { type TranscribeEvent, TranscribeRequest } from '#schemas/transcription/transcription.ts'
import { transcriptAnswer } from '#shared/protocols/transcript/stream.ts'
import type { Kind } from './kind.ts'

/** Maximum text of a merged event, in UTF-16 units. Limited, so that records and frames stay small. */
const MERGED_TEXT_MAX = 16 * 1024
/** Maximum tokens with log probabilities per merged event. */
const MERGED_LOGPROBS_MAX = 256

/** Maximum bytes of a transcript: four hours of speech with all words and the log probability of each token. */
export const TRANSCRIPT_BYTES_MAX = 24 * 1024 * 1024

export const transcribe: Kind<TranscribeRequest, TranscribeEvent> = {
  name: 'transcribe',
  pool: 'transcription',
  request: TranscribeRequest,
  answerBytesMax: TRANSCRIPT_BYTES_MAX,
  merge: mergeTranscribeEvents,
  // After such an event, a second run would send output twice. The start event contains no output.
  isOutput: ({ type }) => type !== 'start',
  answer: () => transcriptAnswer,
}

/** Speech to English text. A separate kind, because older workers cannot translate and must requeue such jobs. */
export const translate: Kind<TranscribeRequest, TranscribeEvent> = { ...transcribe, name: 'translate' }

/**
 * Merges two events if both are text of the same segment; undefined otherwise. Merging changes only the number of frames that a
 * client receives.
 */
export function mergeTranscribeEvents(a: TranscribeEvent, b: TranscribeEvent): TranscribeEvent | undefined {
  if (a.type !== 'text' || b.type !== 'text' || a.segment !== b.segment) return undefined
  if (a.text.length > MERGED_TEXT_MAX || (a.logprobs?.length ?? 0) >= MERGED_LOGPROBS_MAX) return undefined
  const text = a.text + b.text
  if (!a.logprobs && !b.logprobs) return { ...a, text }
  return { ...a, text, logprobs: [...(a.logprobs ?? []), ...(b.logprobs ?? [])] }
}
