import type { ModelConfig } from '#schemas/models.ts'
import type { TranscribeEvent, TranscribeRequest } from '#schemas/transcription/transcription.ts'
import type { AudioTools } from '#shared/engines/audio-tools.ts'
import { chainOf, withFallbacks } from '#shared/engines/engine-registry.ts'
import type { AudioFile, TranscribeOptions, TranscriptionEngine } from '#shared/engines/transcription.ts'
import { ServiceError } from '#shared/error.ts'
import type { AttemptContext, Progress } from '#shared/kinds/kind.ts'
import type { Ports } from '#shared/ports.ts'
import { audioOf } from './audio.ts'
import type { AudioPlace, AudioQuota } from './audio-quota.ts'
import { withSpeakers } from './diarize.ts'
import { inspectAudio } from './inspect.ts'

/** Minimum interval of progress events (docs/internals/protocol.md, Job events). */
const PROGRESS_MS = 500

export interface Workbench {
  readonly ports: Pick<Ports, 'models' | 'blobs' | 'log'> & {
    readonly config: Pick<Ports['config'], 'audioSecondsMax'>
  }
  readonly share: AudioQuota
  readonly tools: AudioTools
  engineOf(model: ModelConfig): TranscriptionEngine
  /** Called if audio goes to an upstream unchecked, because the local decoder is unavailable. */
  onUnchecked(why: ServiceError): void
}

/**
 * Transcribes or translates one request: checks the audio, then calls the model. If the model fails before any output, its fallbacks
 * are called in order. If requested, the segments get speakers.
 *
 * @throws ServiceError
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
    // If only upstreams run the call, the audio uses no more time of this worker.
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
  const onSeconds = context.onProgress && tellProgress(context.onProgress, duration)
  const { idempotencyKey, traceparent, signal } = context
  const options = { signal, idempotencyKey, traceparent, duration, onSeconds, translates: translates ?? false }
  const ask = (model: ModelConfig) => ({
    events: eventsOf(bench, model, request, audio, options, context),
    give: (event: TranscribeEvent) => [event],
  })
  return withFallbacks(chain, ask, context, bench.ports.log)
}

/**
 * Returns the length of the audio, or undefined if the local decoder is unavailable. A deployment without local models works
 * without Python: the upstream then rejects unreadable audio.
 */
async function inspect(
  bench: Workbench,
  request: TranscribeRequest,
  audio: AudioFile,
  place: AudioPlace,
  signal: AbortSignal,
): Promise<number | undefined> {
  const { room: secondsMax } = place
  try {
    return await inspectAudio(bench.tools, request, audio, { secondsMax, signal })
  } catch (error) {
    const why = ServiceError.from(error)
    // The file exceeds only the rest of the quota. A retry without other files in flight decides whether it is too long.
    if (why.code === 'audio_too_long' && secondsMax < bench.ports.config.audioSecondsMax) throw place.refusal()
    // Diarization needs the same local server, so the call cannot continue without it.
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
 * @param duration Seconds of the audio; undefined if unknown.
 */
export function tellProgress(
  onProgress: (progress: Progress) => void,
  duration: number | undefined,
): (seconds: number) => void {
  let toldAt = Number.NEGATIVE_INFINITY
  return (seconds) => {
    if (performance.now() - toldAt < PROGRESS_MS) return
    toldAt = performance.now()
    const done = Math.floor(seconds)
    // At most 99 %: the end of the job reports completion.
    const percent = duration ? Math.min(99, Math.floor((100 * seconds) / duration)) : null
    const message = duration ? `${done} of ${Math.ceil(duration)} seconds` : `${done} seconds`
    onProgress({ phase: 'transcribing', percent, message })
  }
}
