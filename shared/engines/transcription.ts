import type { Readable } from 'node:stream'
import type { TranscribeEvent, TranscribeRequest } from '#schemas/transcription/transcription.ts'

/**
 * The transcription engine port: an engine converts an audio file into {@link TranscribeEvent}s.
 *
 * Contract of every engine (test/shared/engines/transcription/engines.test.ts):
 *
 * 1. The first event is `start`, then texts and segments, `usage`, and `finish` last.
 * 2. The texts concatenate to the transcript, without leading whitespace. A transcript that is not empty has segments.
 * 3. If the consumer leaves the loop or `signal` aborts, then the work stops within a second and the file is closed.
 * 4. An error is thrown as a ServiceError whose code says whether a retry can help; never a truncated transcript.
 */
export interface TranscriptionEngine {
  /** Current maximum of concurrent calls. Undefined: the configured limit applies. */
  readonly places?: number
  /** @throws ServiceError */
  transcribe(request: TranscribeRequest, audio: AudioFile, options: TranscribeOptions): AsyncIterable<TranscribeEvent>
  close(): Promise<void>
}

/** An audio file that can be read several times. The file is never held in memory as a whole. */
export interface AudioFile {
  /** Opens a new read stream. The caller reads it to its end or destroys it. @throws ServiceError if the file was deleted */
  open(): Promise<Readable>
  /** A name whose extension names the container format, which some upstreams rely on. */
  readonly filename: string
  readonly bytes: number
}

export interface TranscribeOptions {
  /** Aborts on cancel and at the deadline. */
  readonly signal: AbortSignal
  /** `job_id:attempt`, sent upstream as Idempotency-Key. */
  readonly idempotencyKey: string
  /** W3C Trace Context, passed on to the upstream. */
  readonly traceparent?: string | undefined
  /** Whether to translate into English; only for models that can. Default: transcribe in the spoken language. */
  readonly translates?: boolean
  /** Duration of the decoded audio in seconds; undefined if it was not decoded. */
  readonly duration?: number | undefined
  /** Called with the seconds of audio that are done, if the engine reports progress. */
  readonly onSeconds?: ((seconds: number) => void) | undefined
}
