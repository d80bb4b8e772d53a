import { z } from 'zod'
import type { TranscribeRequest } from '#schemas/transcription/transcription.ts'
import { type AudioTools, type CallOptions, type ProbeOptions, Turn } from '#shared/engines/audio-tools.ts'
import { openForm } from '#shared/engines/openai/transcript/form.ts'
import type { AudioFile } from '#shared/engines/transcription.ts'
import { answerError } from '#shared/engines/upstream/error.ts'
import { Upstream, type UpstreamCall, type UpstreamOptions } from '#shared/engines/upstream/upstream.ts'
import { localConfig } from './local.ts'

/** Maximum bytes of an answer: several hours of speaker turns with many interruptions. */
const ANSWER_BYTES_MAX = 16 * 1024 * 1024
const NAME = 'local-audio'

const ProbeResult = z.object({ duration: z.number().min(0) })

const Diarized = z.object({ turns: z.array(Turn) })

export class LocalAudioTools implements AudioTools {
  readonly #upstream: Upstream

  /**
   * @param connect Finds the server. @throws ServiceError `model_loading`
   * @param concurrency Maximum concurrent calls.
   */
  constructor(connect: NonNullable<UpstreamOptions['connect']>, concurrency: number) {
    this.#upstream = new Upstream({ id: NAME }, localConfig('', concurrency), {}, { connect })
  }

  async probe(audio: AudioFile, { secondsMax, signal }: ProbeOptions): Promise<number> {
    const body = await audio.open()
    const headers = { 'content-type': 'application/octet-stream', 'content-length': String(audio.bytes) }
    const path = `/audio/probe?seconds_max=${Math.ceil(secondsMax)}`
    try {
      return ProbeResult.parse(await this.#call({ path, headers, body, isStream: false, signal })).duration
    } finally {
      body.destroy()
    }
  }

  async diarize(audio: AudioFile, speakers: TranscribeRequest['speakers'], options: CallOptions): Promise<Turn[]> {
    const fields = speakers.flatMap(({ name, reference }): [string, string][] => [
      ['known_speaker_names[]', name],
      ['known_speaker_references[]', `data:application/octet-stream;base64,${reference}`],
    ])
    const { headers, body } = await openForm(fields, audio)
    try {
      return Diarized.parse(
        await this.#call({ path: '/diarize', headers: { ...headers }, body, isStream: false, signal: options.signal }),
      ).turns
    } finally {
      body.destroy()
    }
  }

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
