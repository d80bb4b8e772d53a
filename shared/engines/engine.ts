import type { Readable } from 'node:stream'
import { z } from 'zod'
import type { GenerateEvent, GenerateRequest } from '#schemas/kinds/generate.ts'
import { ModerationCategory, type ModerationInput, type ModerationResult } from '#schemas/kinds/moderations.ts'
import type { SpeakRequest } from '#schemas/kinds/speech.ts'
import type { TranscribeEvent, TranscribeRequest } from '#schemas/kinds/transcription.ts'
import { ServiceError } from '#shared/lib/error.ts'
import type { CallTrace } from '#shared/telemetry/tracing.ts'

/**
 * The chat engine port. An engine converts a {@link GenerateRequest} into {@link GenerateEvent}s.
 *
 * Contract of every engine (test/shared/engines/chat-engine.test.ts):
 *
 * 1. The first event is `start`. Deltas follow, then one `finish` per choice. The last event is the only `usage`.
 * 2. The texts of a choice concatenate to the whole answer. No delta splits a surrogate pair.
 * 3. If the consumer leaves the loop or `signal` aborts, then the work stops within a second and an upstream's socket is closed.
 * 4. An error is thrown as a ServiceError whose code indicates whether a retry can help. An upstream that ends without a finish is an error, never a
 *    short answer.
 * 5. The text contains no `stop` string, and does not end with a part of one that is completed later.
 */
export interface ChatEngine {
  /** Current maximum of concurrent calls. If undefined, then the configured limit applies. */
  readonly places?: number
  /**
   * Raw prompts that the engine can complete in one call: `all` prompts of a request, or `one` (completions.ts then splits the request).
   *
   * If undefined, then the engine cannot complete raw prompts. A prompt is then sent as a user turn, in a request without `completion`.
   */
  readonly completes?: 'all' | 'one' | undefined
  generate(request: GenerateRequest, options: GenerateOptions): AsyncIterable<GenerateEvent>
  /** Counts the prompt's tokens with the engine's tokenizer. If the method or its result is undefined, then the caller estimates the tokens. */
  countTokens?(request: GenerateRequest, options: GenerateOptions): Promise<number | undefined>
  /**
   * Prepares the engine, such as loading a model, so that the first call does not wait. Undefined if there is nothing to prepare.
   *
   * @throws ServiceError
   */
  preload?(signal: AbortSignal): Promise<void>
  close(): Promise<void>
}

export interface EngineOptions extends CallTrace {
  readonly signal: AbortSignal
}

export interface GenerateOptions extends EngineOptions {
  /** The text `job_id:attempt`, which is sent upstream as Idempotency-Key if the API has this header. */
  readonly idempotencyKey: string
  /** Project of the job. An engine shares its prompt cache only within one project. If undefined, then nothing is shared. */
  readonly tenant?: string | undefined
}

/**
 * Default of `concurrency`, the maximum of concurrent calls, for embedding models whose catalogue entry does not set it. With four calls, the server
 * is busy. With more, waiting inputs would be spread over many small batches.
 */
export const CALLS_MAX = 4

export interface Embedded {
  readonly vectors: readonly Float32Array[]
  readonly tokens: number | undefined
  readonly tokensEach: readonly number[] | undefined
}

/**
 * The embedding engine port. An engine converts texts into vectors.
 *
 * Contract of every engine:
 *
 * 1. There is one vector of finite numbers per text, in the order of the texts.
 * 2. The vector of a text does not depend on the other texts of the call, except for the rounding noise of float arithmetic.
 * 3. If `signal` aborts, then the work stops within a second and an upstream's socket is closed.
 * 4. An error is thrown as a ServiceError whose code indicates whether a retry can help.
 *
 * An error about one text names its position, either in `param` as `input[3]` or at the start of its message as `Input 3 …`. If the error may be
 * about any text, then `param` is `input`.
 */
export interface EmbeddingEngine {
  embed(texts: readonly string[], options: EngineOptions): Promise<Embedded>
  close(): Promise<void>
}

export interface RankedDocument {
  readonly index: number
  readonly relevance_score: number
}

export interface Ranked {
  readonly results: readonly RankedDocument[]
  readonly tokens: number | undefined
}

export interface RerankCall {
  readonly query: string
  readonly documents: readonly string[]
  /** Maximum number of results. Only the most relevant documents are returned. */
  readonly top_n: number
}

/**
 * The reranking engine port. An engine is a model that reads query and document together.
 *
 * Contract of every engine:
 *
 * 1. There are `top_n` results, or one per document if there are fewer documents. Each document occurs at most once.
 * 2. If `signal` aborts, then the work stops within a second and an upstream's socket is closed.
 * 3. An error is thrown as a ServiceError whose code indicates whether a retry can help.
 */
export interface RerankEngine {
  rerank(call: RerankCall, options: EngineOptions): Promise<Ranked>
  close(): Promise<void>
}

/**
 * The moderation engine port. An engine classifies inputs and outputs.
 *
 * Contract of every engine:
 *
 * 1. There is one result per input, in the order of the inputs. Each result has every category.
 * 2. Long work yields, so that no input blocks the event loop.
 * 3. If `signal` aborts, then the work stops within a second and an upstream's socket is closed.
 * 4. An error is thrown as a ServiceError whose code indicates whether a retry can help.
 */
export interface ModerationEngine {
  moderate(inputs: readonly ModerationInput[], options: EngineOptions): Promise<ModerationResult[]>
  close(): Promise<void>
}

export function eachCategory<T>(of: (category: ModerationCategory) => T): Record<ModerationCategory, T> {
  const entries = ModerationCategory.options.map((category): [ModerationCategory, T] => [category, of(category)])
  return Object.fromEntries(entries) as Record<ModerationCategory, T>
}

/**
 * The speech engine port. An engine converts text into audio.
 *
 * Contract of every engine:
 *
 * 1. The audio bytes are yielded in order as they are generated, in pieces of at most 48 KiB. An answer without audio, or without its end, is an
 *    error.
 * 2. If the consumer leaves the loop or `signal` aborts, then the work stops within a second and an upstream's socket is closed.
 * 3. An error is thrown as a ServiceError whose code indicates whether a retry can help.
 */
export interface SpeechEngine {
  speak(request: SpeakRequest, options: EngineOptions): AsyncIterable<Buffer>
  close(): Promise<void>
}

/**
 * The transcription engine port. An engine converts an audio file into {@link TranscribeEvent}s.
 *
 * Contract of every engine (test/shared/engines/transcription/engines.test.ts):
 *
 * 1. The first event is `start`. Texts and segments follow, then `usage`. The last event is `finish`.
 * 2. The texts concatenate to the transcript, without leading whitespace. A transcript that is not empty has segments.
 * 3. If the consumer leaves the loop or `signal` aborts, then the work stops within a second and the file is closed.
 * 4. An error is thrown as a ServiceError whose code indicates whether a retry can help. An engine never returns a truncated transcript instead.
 */
export interface TranscriptionEngine {
  /** Current maximum of concurrent calls. If undefined, then the configured limit applies. */
  readonly places?: number
  transcribe(request: TranscribeRequest, audio: AudioFile, options: TranscribeOptions): AsyncIterable<TranscribeEvent>
  close(): Promise<void>
}

/** An audio file that can be read several times. The file is read in pieces and is never completely in memory. */
export interface AudioFile {
  /**
   * Opens a new read stream. The caller must read the stream to its end or destroy it.
   *
   * @throws ServiceError if the file was deleted
   */
  open(): Promise<Readable>
  /** File name whose extension names the container format. Some upstreams detect the format by the extension. */
  readonly filename: string
  readonly bytes: number
}

export interface TranscribeOptions extends EngineOptions {
  readonly idempotencyKey: string
  /** Whether to translate into English, which only some models support. Default: transcribe in the spoken language. */
  readonly translates?: boolean
  /** Duration of the decoded audio, in seconds. Undefined if the audio was not decoded. */
  readonly duration?: number | undefined
  /** Called with the number of seconds that are transcribed so far, if the engine reports progress. */
  readonly onSeconds?: ((seconds: number) => void) | undefined
}

/** A period in which one speaker talks. Times in seconds. */
export const Turn = z.object({ start: z.number(), end: z.number(), speaker: z.string() })
export type Turn = z.infer<typeof Turn>
export type CallOptions = Pick<TranscribeOptions, 'signal'>

export interface ProbeOptions extends CallOptions {
  /**
   * Maximum duration, in seconds. A file that declares a longer duration is rejected before decoding. If the audio is longer than declared, then
   * decoding stops at this maximum.
   */
  readonly secondsMax: number
}

/** Port for audio analysis other than transcription: decoding checks and speaker diarization. */
export interface AudioTools {
  /**
   * Decodes a file and returns its duration in seconds.
   *
   * @throws ServiceError `invalid_audio`, `audio_too_short`, `audio_too_long`, or `model_loading`
   */
  probe(audio: AudioFile, options: ProbeOptions): Promise<number>
  /**
   * Returns the speaker turns in order. A speaker with a voice sample has the name of the sample, and any other speaker has a letter.
   *
   * @throws ServiceError with the codes of {@link probe}, for the audio or for a voice sample
   */
  diarize(audio: AudioFile, speakers: TranscribeRequest['speakers'], options: CallOptions): Promise<Turn[]>
  close(): Promise<void>
}

export function aboutReference(error: unknown, index: number): unknown {
  if (!(error instanceof ServiceError) || error.status !== 400) return error
  const param = `known_speaker_references[${index}]`
  return new ServiceError('invalid_value', `Invalid '${param}': ${error.message}`, { param, cause: error })
}
