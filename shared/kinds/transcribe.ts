import type { TranscribeEvent } from '#schemas/transcription.ts'

/** Longest text a merged event holds, in UTF-16 units; keeps records and frames small. */
const MERGED_TEXT_MAX = 16 * 1024
/** Most tokens whose log probabilities a merged event holds. */
const MERGED_LOGPROBS_MAX = 256

/** Bytes of a whole transcript: four hours of talk with all words and the log probability of each token. */
export const TRANSCRIPT_BYTES_MAX = 24 * 1024 * 1024

/**
 * Joins an event to the one before it when both are text of the same segment; undefined otherwise. Joining changes
 * nothing a client can tell but the number of frames.
 */
export function mergeTranscribeEvents(previous: unknown, next: unknown): TranscribeEvent | undefined {
  const a = previous as TranscribeEvent
  const b = next as TranscribeEvent
  if (a.type !== 'text' || b.type !== 'text' || a.segment !== b.segment) return undefined
  if (a.text.length > MERGED_TEXT_MAX || (a.logprobs?.length ?? 0) >= MERGED_LOGPROBS_MAX) return undefined
  const text = a.text + b.text
  if (!a.logprobs && !b.logprobs) return { ...a, text }
  return { ...a, text, logprobs: [...(a.logprobs ?? []), ...(b.logprobs ?? [])] }
}

/** Whether an event is output that a caller would see twice if the job ran again: all but `start`. */
export function isTranscribeOutput(event: unknown): boolean {
  return (event as TranscribeEvent).type !== 'start'
}
