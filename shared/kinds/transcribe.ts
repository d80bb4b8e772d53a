import { type TranscribeEvent, TranscribeRequest } from '#schemas/transcription/transcription.ts'
import { transcriptAnswer } from '#shared/protocols/transcript/stream.ts'
import type { Kind } from './kind.ts'

/** Longest text a merged event holds, in UTF-16 units; keeps records and frames small. */
const MERGED_TEXT_MAX = 16 * 1024
/** Most tokens whose log probabilities a merged event holds. */
const MERGED_LOGPROBS_MAX = 256

/** Bytes of a whole transcript: four hours of talk with all words and the log probability of each token. */
export const TRANSCRIPT_BYTES_MAX = 24 * 1024 * 1024

/** Speech to text. */
export const transcribe: Kind<TranscribeRequest, TranscribeEvent> = {
  name: 'transcribe',
  pool: 'transcription',
  request: TranscribeRequest,
  answerBytesMax: TRANSCRIPT_BYTES_MAX,
  merge: mergeTranscribeEvents,
  // A caller would see all of it twice but the start.
  isOutput: ({ type }) => type !== 'start',
  answer: () => transcriptAnswer,
}

/** Speech to English text. A kind of its own: workers that do not know it leave its jobs to others. */
export const translate: Kind<TranscribeRequest, TranscribeEvent> = { ...transcribe, name: 'translate' }

/**
 * Joins an event to the one before it when both are text of the same segment; undefined otherwise. Joining changes
 * nothing a client can tell but the number of frames.
 */
export function mergeTranscribeEvents(a: TranscribeEvent, b: TranscribeEvent): TranscribeEvent | undefined {
  if (a.type !== 'text' || b.type !== 'text' || a.segment !== b.segment) return undefined
  if (a.text.length > MERGED_TEXT_MAX || (a.logprobs?.length ?? 0) >= MERGED_LOGPROBS_MAX) return undefined
  const text = a.text + b.text
  if (!a.logprobs && !b.logprobs) return { ...a, text }
  return { ...a, text, logprobs: [...(a.logprobs ?? []), ...(b.logprobs ?? [])] }
}
