import type { TranscribeRequest } from '#schemas/transcription/transcription.ts'
import { type AudioTools, aboutReference } from '#shared/engines/audio-tools.ts'
import type { AudioFile } from '#shared/engines/transcription.ts'
import { ServiceError } from '#shared/error.ts'
import { sampleOf } from './audio.ts'

/** How long a sample of a voice must be, in seconds (docs/guides/transcription.md, Fields). */
const SAMPLE_SECONDS = { min: 2, max: 10 }
/** Limit of decoding a sample. For a sample between 10 and 60 s the error message thus contains its exact length. */
const SAMPLE_SECONDS_DECODED = 60
/** Decoders may return some milliseconds more or less than the recording. */
const TOLERANCE_SECONDS = 0.05

/**
 * Decodes and checks the caller's audio and voice samples before any engine runs.
 *
 * @param secondsMax Maximum length of the audio.
 * @returns Seconds of the audio.
 * @throws ServiceError `invalid_audio`, `audio_too_short`, `audio_too_long`; `invalid_value` for a sample of a voice;
 *   `model_loading` when the local model server is not there
 */
export async function inspectAudio(
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
