import { z } from 'zod'
import type { TranscribeRequest } from '#schemas/transcription/transcription.ts'
import { ServiceError } from '#shared/lib/error.ts'
import type { AudioFile, TranscribeOptions } from './transcription.ts'

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
