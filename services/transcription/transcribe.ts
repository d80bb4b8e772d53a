import { Readable } from 'node:stream'
import type { TranscribeEvent, TranscribeRequest } from '#schemas/kinds/transcription.ts'
import type { ModelConfig } from '#schemas/models.ts'
import type { Blobs } from '#shared/blobs/blobs.ts'
import {
  type AudioFile,
  type AudioTools,
  aboutReference,
  type TranscribeOptions,
  type TranscriptionEngine,
} from '#shared/engines/engine.ts'
import { chainOf, withFallbacks } from '#shared/engines/engine-registry.ts'
import type { AttemptContext, Progress } from '#shared/kinds/kind.ts'
import { ServiceError } from '#shared/lib/error.ts'
import type { Ports } from '#shared/ports.ts'
import type { CallTrace } from '#shared/telemetry/tracing.ts'
import type { AudioQuota, AudioReservation } from './audio-quota.ts'
import { withSpeakers } from './diarize.ts'

/** Minimum and maximum length of a voice sample, in seconds (docs/guides/transcription.md, Fields). */
const SAMPLE_SECONDS = { min: 2, max: 10 }

/**
 * Maximum seconds of a voice sample that are decoded. The value exceeds the allowed maximum, so that the error message can contain the exact length
 * of most samples.
 */
const SAMPLE_SECONDS_DECODED = 60

/**
 * Tolerance of length checks in seconds, because decoders may return some milliseconds more or less than the recording.
 */
const TOLERANCE_SECONDS = 0.05

/** Minimum interval of progress events, in ms (docs/internals/protocol.md, Job events). */
const PROGRESS_MS = 500

export interface Workbench {
  readonly ports: Pick<Ports, 'models' | 'blobs' | 'log'> & {
    readonly config: Pick<Ports['config'], 'audioSecondsMax'>
  }
  readonly share: AudioQuota
  readonly tools: AudioTools
  engineOf(model: ModelConfig): TranscriptionEngine
  /** Called if audio is sent to an upstream unchecked, because the local decoder is unavailable. */
  onUnchecked(why: ServiceError): void
}

/**
 * Transcribes or translates one request: checks the audio, then calls the model. If the model fails before any output, then its fallbacks are called
 * in order. If requested, the segments get speakers.
 *
 * @throws The ServiceError of the engine
 */
export async function* runTranscription(
  bench: Workbench,
  request: TranscribeRequest,
  context: AttemptContext,
  translates = false,
): AsyncGenerator<TranscribeEvent> {
  const audio = audioOf(request, bench.ports.blobs)
  const all = chainOf(bench.ports.models.served, request.model)
  const chain = translates ? all.filter((model) => model.transcription.translates) : all
  const place = bench.share.enter(context.tenant)
  try {
    const duration = await inspect(bench, request, audio, place, context.signal)
    if (duration !== undefined) place.take(duration)
    // If only upstreams run the call, then the audio no longer uses this worker, so it no longer counts against the quota.
    if (!chain.some((model) => model.engine.type === 'local')) place.leave()
    yield* transcribeInspected(bench, request, audio, { duration, translates }, chain, context)
  } finally {
    place.leave()
  }
}

function transcribeInspected(
  bench: Workbench,
  request: TranscribeRequest,
  audio: AudioFile,
  { duration, translates }: Pick<TranscribeOptions, 'duration' | 'translates'>,
  chain: readonly ModelConfig[],
  context: AttemptContext,
): AsyncGenerator<TranscribeEvent> {
  const onSeconds = context.onProgress && reportProgress(context.onProgress, duration)
  const { idempotencyKey, signal } = context
  const options = { signal, idempotencyKey, duration, onSeconds, translates: translates ?? false }
  const ask = (model: ModelConfig, { traceparent, onServer, onModel }: CallTrace) => ({
    events: eventsOf(bench, model, request, audio, { ...options, traceparent, onServer, onModel }, context),
    give: (event: TranscribeEvent) => [event],
  })
  return withFallbacks(chain, ask, context, bench.ports.log, { operation: 'transcription' })
}

/**
 * Checks the audio and returns its length. Undefined if the local decoder is unavailable, because a deployment without local models needs no Python.
 * The upstream then rejects unreadable audio.
 */
async function inspect(
  bench: Workbench,
  request: TranscribeRequest,
  audio: AudioFile,
  place: AudioReservation,
  signal: AbortSignal,
): Promise<number | undefined> {
  const { secondsMax } = place
  try {
    return await inspectAudio(bench.tools, request, audio, { secondsMax, signal })
  } catch (error) {
    const why = ServiceError.from(error)
    // Here the audio exceeds the remaining quota of its tenant, but not the maximum of the settings. The error is therefore one that a
    // later retry may avoid.
    if (why.code === 'audio_too_long' && secondsMax < bench.ports.config.audioSecondsMax) throw place.refusal()
    // `model_loading` means that the local model server cannot decode the audio yet. An upstream can decode the audio
    // itself, but diarization needs the local server.
    if (why.code !== 'model_loading' || request.diarize) throw error
    if (bench.ports.models.find(request.model)?.engine.type !== 'local') bench.onUnchecked(why)
    return undefined
  }
}

function eventsOf(
  bench: Workbench,
  model: ModelConfig,
  request: TranscribeRequest,
  audio: AudioFile,
  options: TranscribeOptions,
  context: AttemptContext,
): AsyncIterable<TranscribeEvent> {
  const engine = bench.engineOf(model)
  const asked = { ...request, model: model.id }
  if (!request.diarize) return engine.transcribe(asked, audio, options)
  return withSpeakers(
    (signal) => engine.transcribe(asked, audio, { ...options, signal }),
    (signal) => bench.tools.diarize(audio, request.speakers, { signal }),
    { request, signal: options.signal, isTogether: model.engine.type !== 'local', onProgress: context.onProgress },
  )
}

/**
 * Returns a function that publishes progress for the transcribed seconds, at most once per {@link PROGRESS_MS}.
 *
 * @param duration Seconds of the audio. Undefined if unknown.
 */
export function reportProgress(
  onProgress: (progress: Progress) => void,
  duration: number | undefined,
): (seconds: number) => void {
  let toldAt = Number.NEGATIVE_INFINITY
  return (seconds) => {
    if (performance.now() - toldAt < PROGRESS_MS) return
    toldAt = performance.now()
    const done = Math.floor(seconds)
    // The percentage is at most 99, because the end of the job reports 100 %.
    const percent = duration ? Math.min(99, Math.floor((100 * seconds) / duration)) : null
    const message = duration ? `${done} of ${Math.ceil(duration)} seconds` : `${done} seconds`
    onProgress({ phase: 'transcribing', percent, message })
  }
}

/**
 * Decodes and checks the caller's audio and voice samples before any engine runs.
 *
 * @param secondsMax Maximum length of the audio.
 * @returns Seconds of the audio.
 * @throws ServiceError `invalid_audio`, `audio_too_short`, `audio_too_long`. `invalid_value` for a voice sample. `model_loading` if the local model
 * server is not available
 */
async function inspectAudio(
  tools: AudioTools,
  { speakers }: TranscribeRequest,
  audio: AudioFile,
  options: { readonly secondsMax: number; readonly signal: AbortSignal },
): Promise<number> {
  const duration = await tools.probe(audio, options)
  if (duration > options.secondsMax) {
    const message = `The audio lasts ${duration.toFixed(1)} s; at most ${options.secondsMax} s are accepted.`
    throw new ServiceError('audio_too_long', message, { param: 'file' })
  }
  for (const [index, speaker] of speakers.entries()) {
    const bounds = { secondsMax: SAMPLE_SECONDS_DECODED, signal: options.signal }
    const seconds = await tools.probe(sampleOf(speaker), bounds).catch((error: unknown) => {
      throw aboutReference(error, index)
    })
    requireSampleLength(seconds, index)
  }
  return duration
}

function requireSampleLength(seconds: number, index: number): void {
  const { min, max } = SAMPLE_SECONDS
  if (seconds >= min - TOLERANCE_SECONDS && seconds <= max + TOLERANCE_SECONDS) return
  const param = `known_speaker_references[${index}]`
  const message = `Invalid '${param}': the sample lasts ${seconds.toFixed(1)} s; ${min} to ${max} s are needed.`
  throw new ServiceError('invalid_value', message, { param })
}

/** Returns the audio of a request: its blob, opened anew for each read, or the bytes in the request itself. */
function audioOf({ audio }: TranscribeRequest, blobs: Blobs): AudioFile {
  const { blob, base64, bytes, format } = audio
  const filename = `audio.${format}`
  if (blob === undefined) return { ...inMemory(base64 ?? ''), filename }
  return {
    filename,
    bytes,
    open: () =>
      blobs.open(blob).catch((cause: unknown) => {
        // The fault is in the deployment: the processes use different blob directories, or the directory was emptied.
        throw new ServiceError('internal_error', 'The worker could not read the audio of the request.', { cause })
      }),
  }
}

function sampleOf({ reference }: TranscribeRequest['speakers'][number]): AudioFile {
  return { ...inMemory(reference), filename: 'sample' }
}

function inMemory(base64: string): Omit<AudioFile, 'filename'> {
  const content = Buffer.from(base64, 'base64')
  return { bytes: content.length, open: () => Promise.resolve(Readable.from([content])) }
}
