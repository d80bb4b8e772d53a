import type { SpeakRequest } from '#schemas/speech.ts'

/**
 * The speech engine port: an engine converts text into audio.
 *
 * Contract of every engine:
 *
 * 1. The audio bytes are yielded in order as they are generated, in pieces of at most 48 KiB. An answer without audio or with a missing end
 *    is an error.
 * 2. If the consumer leaves the loop or `signal` aborts, then the work stops within a second and an upstream's socket is closed.
 * 3. An error is thrown as a ServiceError whose code says whether a retry can help.
 */
export interface SpeechEngine {
  /** @throws ServiceError, or the signal's reason */
  speak(request: SpeakRequest, options: { signal: AbortSignal }): AsyncIterable<Buffer>
  close(): Promise<void>
}
