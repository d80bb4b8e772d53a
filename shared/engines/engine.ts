import type { Readable } from 'node:stream'
import { z } from 'zod'
import type { GenerateEvent, GenerateRequest } from '#schemas/generate.ts'
import { ModerationCategory, type ModerationInput, type ModerationResult } from '#schemas/moderations.ts'
import type { SpeakRequest } from '#schemas/speech.ts'
import type { TranscribeEvent, TranscribeRequest } from '#schemas/transcription/transcription.ts'
import { ServiceError } from '#shared/lib/error.ts'

/**
 * The chat engine port: an engine converts a {@link GenerateRequest} into {@link GenerateEvent}s.
 *
 * Contract of every engine (test/shared/engines/chat-engine.test.ts):
 *
 * 1. The first event is `start`, then deltas, one `finish` per choice, and `usage` last and once.
 * 2. The texts of a choice concatenate to the whole answer; no delta splits a surrogate pair.
 * 3. If the consumer leaves the loop or `signal` aborts, then the work stops within a second and an upstream's socket is closed.
 * 4. An error is thrown as a ServiceError whose code says whether a retry can help. An upstream that ends without a finish is an error,
 *    never a short answer.
 * 5. No `stop` string appears in the text, nor does a prefix of one that is later completed.
 */
export interface ChatEngine {
  /** Current maximum of concurrent calls. Undefined: the configured limit applies. */
  readonly places?: number
  /**
   * Raw prompts that the engine can complete: `all` prompts of a request in one call, or `one` per call (completions.ts splits them).
   *
   * Undefined: none. Then a prompt is sent as a user turn, in a request without `completion`.
   */
  readonly completes?: 'all' | 'one' | undefined
  /** @throws ServiceError */
  generate(request: GenerateRequest, options: GenerateOptions): AsyncIterable<GenerateEvent>
  /** Counts the prompt's tokens with the engine's tokenizer. Undefined: not supported; the caller estimates. */
  countTokens?(request: GenerateRequest, options: GenerateOptions): Promise<number | undefined>
  /** Does the work that the first call would otherwise wait for. Undefined: there is none. @throws ServiceError */
  preload?(signal: AbortSignal): Promise<void>
  close(): Promise<void>
}

/** Context of a call, next to the request. */
export interface GenerateOptions {
  /** Aborts on cancel and at the deadline. */
  readonly signal: AbortSignal
  /** `job_id:attempt`, sent upstream as Idempotency-Key if the API has one. */
  readonly idempotencyKey: string
  /** Project of the job. An engine shares its prompt cache only within one project. Undefined: no sharing. */
  readonly tenant?: string | undefined
  /** W3C Trace Context, passed on to the upstream. */
  readonly traceparent?: string | undefined
}

/** Concurrent calls if the catalogue sets no `concurrency`: enough to keep a server busy, few enough to fill batches. */
export const CALLS_MAX = 4

export interface Embedded {
  /** One vector per text, in the order of the texts, all of one length. */
  readonly vectors: readonly Float32Array[]
  /** Tokens of all texts together; undefined if the engine does not count. */
  readonly tokens: number | undefined
  /** Tokens of each text; undefined if the engine does not report them. */
  readonly tokensEach: readonly number[] | undefined
}

/**
 * The embedding engine port: an engine converts texts into vectors.
 *
 * Contract of every engine:
 *
 * 1. One vector per text, in the order of the texts, of finite numbers; never fewer.
 * 2. The other texts of a call change no vector beyond the noise of float arithmetic.
 * 3. If `signal` aborts, then the work stops within a second and an upstream's socket is closed.
 * 4. An error is thrown as a ServiceError whose code says whether a retry can help.
 *
 * An error about one text names its position, either in `param` as `input[3]` or at the start of its message as `Input 3 …`. If the error
 * may be about any text, then `param` is `input`.
 */
export interface EmbeddingEngine {
  /** @throws ServiceError, or the signal's reason */
  embed(texts: readonly string[], options: { signal: AbortSignal }): Promise<Embedded>
  close(): Promise<void>
}

export interface RankedDocument {
  /** Position among the documents of the call. */
  readonly index: number
  readonly relevance_score: number
}

export interface Ranked {
  /** Most relevant first. */
  readonly results: readonly RankedDocument[]
  /** Tokens of the query and all documents; undefined if the engine does not count. */
  readonly tokens: number | undefined
}

export interface RerankCall {
  readonly query: string
  readonly documents: readonly string[]
  /** Maximum number of results: the most relevant documents. */
  readonly top_n: number
}

/**
 * The reranking engine port: a model that reads query and document together.
 *
 * Contract of every engine:
 *
 * 1. There are `top_n` results, or one per document if there are fewer documents; each document occurs at most once.
 * 2. If `signal` aborts, then the work stops within a second and an upstream's socket is closed.
 * 3. An error is thrown as a ServiceError whose code says whether a retry can help.
 */
export interface RerankEngine {
  /** @throws ServiceError, or the signal's reason */
  rerank(call: RerankCall, options: { signal: AbortSignal }): Promise<Ranked>
  close(): Promise<void>
}

/**
 * The moderation engine port: an engine classifies inputs and outputs.
 *
 * Contract of every engine:
 *
 * 1. One result per input, in the order of the inputs, with every category; never fewer.
 * 2. No input blocks the event loop: long work yields.
 * 3. If `signal` aborts, then the work stops within a second and an upstream's socket is closed.
 * 4. An error is thrown as a ServiceError whose code says whether a retry can help.
 */
export interface ModerationEngine {
  /** @throws ServiceError, or the signal's reason */
  moderate(inputs: readonly ModerationInput[], options: { signal: AbortSignal }): Promise<ModerationResult[]>
  close(): Promise<void>
}

/** A record with one entry per category. */
export function eachCategory<T>(of: (category: ModerationCategory) => T): Record<ModerationCategory, T> {
  const entries = ModerationCategory.options.map((category): [ModerationCategory, T] => [category, of(category)])
  return Object.fromEntries(entries) as Record<ModerationCategory, T>
}

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

/** A period in which one speaker talks. Times in seconds. */
export const Turn = z.object({ start: z.number(), end: z.number(), speaker: z.string() })
export type Turn = z.infer<typeof Turn>
export type CallOptions = Pick<TranscribeOptions, 'signal'>

export interface ProbeOptions extends CallOptions {
  /** Maximum duration. A file that declares a longer one is rejected before decoding; otherwise decoding stops there. */
  readonly secondsMax: number
}

/** Port for audio analysis other than transcription: decoding checks and speaker diarization. */
export interface AudioTools {
  /**
   * Decodes a file and returns its duration in seconds.
   *
   * @throws ServiceError `invalid_audio`, `audio_too_short`, `audio_too_long`; `model_loading`
   */
  probe(audio: AudioFile, options: ProbeOptions): Promise<number>
  /**
   * Returns the speaker turns in order. Speakers with a voice sample have their name, all others a letter.
   *
   * @throws ServiceError as {@link probe}, also about the voice samples
   */
  diarize(audio: AudioFile, speakers: TranscribeRequest['speakers'], options: CallOptions): Promise<Turn[]>
  close(): Promise<void>
}

/** Converts an error about a voice sample, so that it names the request field of the sample. */
export function aboutReference(error: unknown, index: number): unknown {
  if (!(error instanceof ServiceError) || error.status !== 400) return error
  const param = `known_speaker_references[${index}]`
  return new ServiceError('invalid_value', `Invalid '${param}': ${error.message}`, { param, cause: error })
}
