import type { SpeakRequest } from '#schemas/speech.ts'

/**
 * The speech engine port: something that speaks texts.
 *
 * Promises every engine keeps:
 * - The bytes of the audio come in order, as they are made, in pieces of 48 KiB at most; never none, and never a quiet, short end.
 * - Leaving the loop early, or aborting `signal`, stops the work within a second: an upstream's socket is closed.
 * - A failure is thrown as a ServiceError whose code says whether another try can help.
 */
export interface SpeechEngine {
  /** @throws ServiceError, or the signal's reason */
  speak(request: SpeakRequest, options: { signal: AbortSignal }): AsyncIterable<Buffer>
  /** Releases sockets. */
  close(): Promise<void>
}
