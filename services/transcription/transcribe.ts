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

/** Progress is told at most twice a second (docs/protocol.md, Job events). */
const PROGRESS_MS = 500

/** What a worker of the pool works with. */
export interface Workbench {
  readonly ports: Pick<Ports, 'models' | 'blobs' | 'log'> & {
    readonly config: Pick<Ports['config'], 'audioSecondsMax'>
  }
  /** What each key has in work here. */
  readonly share: AudioQuota
  readonly tools: AudioTools
  /** The engine of a model, opened when it is first asked for. */
  engineOf(model: ModelConfig): TranscriptionEngine
  /** Hears that audio goes to an upstream without having been decoded here, and why. */
  onUnchecked(why: ServiceError): void
}

/**
 * Transcribes, or translates, one request: looks at its audio, then asks the model, and, when that fails before any output, its fallbacks in
 * their order; tells speakers apart meanwhile.
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
    // What only upstreams work on takes no more time here.
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
 * How long the audio is; undefined where nothing here can decode it. A deployment whose models all run elsewhere works
 * without Python: then the upstream is the one to refuse what it cannot read.
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
    // Alone it may still be taken, or be told that it never will.
    if (why.code === 'audio_too_long' && secondsMax < bench.ports.config.audioSecondsMax) throw place.refusal()
    // Speakers are told apart by the same server.
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
 * Turns seconds of audio that are done into what people who wait see.
 *
 * @param duration Seconds of the audio; undefined where nobody knows.
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
    // The end is told by the job's own end.
    const percent = duration ? Math.min(99, Math.floor((100 * seconds) / duration)) : null
    const message = duration ? `${done} of ${Math.ceil(duration)} seconds` : `${done} seconds`
    onProgress({ phase: 'transcribing', percent, message })
  }
}
