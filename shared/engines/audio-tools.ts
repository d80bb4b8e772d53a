import { z } from 'zod'
import type { TranscribeRequest } from '#schemas/transcription/transcription.ts'
import { ServiceError } from '#shared/error.ts'
import type { AudioFile, TranscribeOptions } from './transcription.ts'

/** A stretch of time in which one person speaks. Seconds. */
export const Turn = z.object({ start: z.number(), end: z.number(), speaker: z.string() })
export type Turn = z.infer<typeof Turn>
export type CallOptions = Pick<TranscribeOptions, 'signal'>

export interface ProbeOptions extends CallOptions {
  /** Where decoding ends; what declares to be longer is refused before. */
  readonly secondsMax: number
}

/** The port of what is to be known of audio beside its words: whether it can be decoded, and who speaks when. */
export interface AudioTools {
  /**
   * Decodes a file and gives how many seconds it lasts.
   *
   * @throws ServiceError `invalid_audio`, `audio_too_short`, `audio_too_long`; `model_loading`
   */
  probe(audio: AudioFile, options: ProbeOptions): Promise<number>
  /**
   * Tells who speaks when, in order. Speakers whose voice is known have their name, the others letters.
   *
   * @throws ServiceError as {@link probe} does, for the samples of voices as well
   */
  diarize(audio: AudioFile, speakers: TranscribeRequest['speakers'], options: CallOptions): Promise<Turn[]>
  /** Releases sockets. */
  close(): Promise<void>
}

/** The same failure about one of the samples of voices, which are checked like the file. */
export function aboutReference(error: unknown, index: number): unknown {
  if (!(error instanceof ServiceError) || error.status !== 400) return error
  const param = `known_speaker_references[${index}]`
  return new ServiceError('invalid_value', `Invalid '${param}': ${error.message}`, { param, cause: error })
}
