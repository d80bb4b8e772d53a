import type { Readable } from 'node:stream'
import type { TranscribeEvent, TranscribeRequest } from '#schemas/transcription/transcription.ts'

/**
 * The transcription engine port: something that turns an audio file into {@link TranscribeEvent}s.
 *
 * Promises every engine keeps (test/shared/engines/transcription/engines.test.ts):
 * - `start` comes first, then texts and segments, `usage`, and `finish` last.
 * - The texts join to the transcript, which begins with no blank; one that is not empty has segments.
 * - Leaving the loop early, or aborting `signal`, stops the work within a second and closes the file.
 * - A failure is thrown as a ServiceError whose code says whether another try can help. Never a quiet, short transcript.
 */
export interface TranscriptionEngine {
  /** Calls it bears at once now; undefined: as many as its config says. */
  readonly places?: number
  /** @throws ServiceError */
  transcribe(request: TranscribeRequest, audio: AudioFile, options: TranscribeOptions): AsyncIterable<TranscribeEvent>
  /** Releases sockets. */
  close(): Promise<void>
}

/** An audio file that can be read several times. It is never held in memory as a whole. */
export interface AudioFile {
  /** Begins to read it. The caller reads to the end, or destroys the stream. @throws ServiceError when it is gone */
  open(): Promise<Readable>
  /** A name whose extension tells the container, which some upstreams go by. */
  readonly filename: string
  readonly bytes: number
}

/** What the worker gives an engine beside the request. */
export interface TranscribeOptions {
  /** Aborts on cancel and at the deadline. */
  readonly signal: AbortSignal
  /** `job_id:attempt`, sent upstream as Idempotency-Key. */
  readonly idempotencyKey: string
  /** W3C Trace Context, passed on. */
  readonly traceparent?: string | undefined
  /** What is said is written in English. Only of models that translate; default: as it is said. */
  readonly translates?: boolean
  /** Seconds of the decoded audio; undefined where nobody has decoded it. */
  readonly duration?: number | undefined
  /** Hears how many seconds of the audio are done, where the engine tells. */
  readonly onSeconds?: ((seconds: number) => void) | undefined
}
