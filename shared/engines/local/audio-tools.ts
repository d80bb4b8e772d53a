import { z } from 'zod'
import type { TranscribeRequest } from '#schemas/transcription.ts'
import { openForm } from '#shared/engines/openai/transcript/form.ts'
import type { AudioFile, TranscribeOptions } from '#shared/engines/transcription.ts'
import { answerError } from '#shared/engines/upstream/error.ts'
import { Upstream, type UpstreamCall, type UpstreamOptions } from '#shared/engines/upstream/upstream.ts'
import { ServiceError } from '#shared/error.ts'
import { localConfig } from './config.ts'

/** Bytes of an answer: turns of some hours of people who interrupt each other. */
const ANSWER_BYTES_MAX = 16 * 1024 * 1024
/** Stands for the server in messages. */
const NAME = 'local-audio'

const Probed = z.object({ duration: z.number().min(0) })

/** A stretch of time in which one person speaks. Seconds. */
export const Turn = z.object({ start: z.number(), end: z.number(), speaker: z.string() })
export type Turn = z.infer<typeof Turn>
const Diarized = z.object({ turns: z.array(Turn) })

type CallOptions = Pick<TranscribeOptions, 'signal'>

/** What the local model server knows of audio beside its words: whether it can be decoded, and who speaks when. */
export class AudioTools {
  readonly #upstream: Upstream

  /**
   * @param connect Finds the server. @throws ServiceError `model_loading`
   * @param concurrency Calls at once.
   */
  constructor(connect: NonNullable<UpstreamOptions['connect']>, concurrency: number) {
    this.#upstream = new Upstream({ id: NAME }, localConfig('', concurrency), {}, { connect })
  }

  /**
   * Decodes a file and gives how many seconds it lasts.
   *
   * @param options.secondsMax Where decoding ends; what declares to be longer is refused before.
   * @throws ServiceError `invalid_audio`, `audio_too_short`, `audio_too_long`; `model_loading`
   */
  async probe(
    audio: AudioFile,
    { secondsMax, signal }: CallOptions & { readonly secondsMax: number },
  ): Promise<number> {
    const body = await audio.open()
    const headers = { 'content-type': 'application/octet-stream', 'content-length': String(audio.bytes) }
    const path = `/audio/probe?seconds_max=${Math.ceil(secondsMax)}`
    try {
      return Probed.parse(await this.#call({ path, headers, body, isStream: false, signal })).duration
    } finally {
      body.destroy()
    }
  }

  /**
   * Tells who speaks when, in order. Speakers whose voice is known have their name, the others letters.
   *
   * @throws ServiceError as {@link probe} does, for the samples of voices as well
   */
  async diarize(audio: AudioFile, speakers: TranscribeRequest['speakers'], { signal }: CallOptions): Promise<Turn[]> {
    const fields = speakers.flatMap(({ name, reference }): [string, string][] => [
      ['known_speaker_names[]', name],
      ['known_speaker_references[]', `data:application/octet-stream;base64,${reference}`],
    ])
    const { headers, body } = await openForm(fields, audio)
    try {
      return Diarized.parse(
        await this.#call({ path: '/diarize', headers: { ...headers }, body, isStream: false, signal }),
      ).turns
    } finally {
      body.destroy()
    }
  }

  /** Releases sockets. */
  close(): Promise<void> {
    return this.#upstream.close()
  }

  async #call(call: UpstreamCall): Promise<unknown> {
    const exchange = await this.#upstream.call(call)
    try {
      return JSON.parse(await exchange.text(ANSWER_BYTES_MAX))
    } catch (error) {
      if (error instanceof SyntaxError) throw answerError(NAME, 'sent JSON that cannot be read', error)
      throw error
    }
  }
}

/** The same failure about one of the samples of voices, which are checked like the file. */
export function aboutReference(error: unknown, index: number): unknown {
  if (!(error instanceof ServiceError) || error.status !== 400) return error
  const param = `known_speaker_references[${index}]`
  return new ServiceError('invalid_value', `Invalid '${param}': ${error.message}`, { param, cause: error })
}
