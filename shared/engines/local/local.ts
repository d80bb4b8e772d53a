import { z } from 'zod'
import type { TranscribeRequest } from '#schemas/kinds/transcription.ts'
import type { ModelConfig, UpstreamConfig } from '#schemas/models.ts'
import {
  type AudioFile,
  type AudioTools,
  type CallOptions,
  type EmbeddingEngine,
  type ProbeOptions,
  type TranscriptionEngine,
  Turn,
} from '#shared/engines/engine.ts'
import { OpenAiEmbeddings } from '#shared/engines/openai/embeddings.ts'
import { callTranscription, encodeFields, openForm } from '#shared/engines/openai/transcript/transcription.ts'
import { answerError } from '#shared/engines/upstream/error.ts'
import { Upstream, type UpstreamCall, type UpstreamOptions } from '#shared/engines/upstream/upstream.ts'

/**
 * Timeout of calls to the local server. The value exceeds the deadline of any job, so that the deadline ends a call
 * first.
 */
const CALL_MS_MAX = 24 * 3_600_000

/**
 * Finds the address of the local model server, which loads `model` if necessary.
 *
 * @throws ServiceError `model_loading`
 */
type Connect = (signal: AbortSignal, model?: string) => ReturnType<NonNullable<UpstreamOptions['connect']>>

export function openLocalEmbeddings(model: ModelConfig, connect: Connect): EmbeddingEngine {
  return new OpenAiEmbeddings(model, configOf(model), {}, { connect: (signal) => connect(signal) })
}

/**
 * Opens a transcription engine on the local model server. The server has OpenAI's API with additional stream events: segments, words, log
 * probabilities and progress.
 */
export function openLocalTranscription(model: ModelConfig, connect: Connect): TranscriptionEngine {
  const config = configOf(model)
  const upstream = new Upstream(model, config, {}, { connect: (signal) => connect(signal, config.model) })
  return {
    transcribe(request, audio, options) {
      const call = { fields: localFields(request, model), isStream: true }
      return callTranscription(upstream, model, request, audio, options, call)
    },
    close: () => upstream.close(),
  }
}

function configOf({ id, engine }: ModelConfig): UpstreamConfig {
  if (engine.type !== 'local') throw new Error(`model '${id}' does not run on the local model server`)
  return { ...localConfig('/v1', engine.concurrency), model: engine.model }
}

/**
 * Client configuration of the local model server. Except for connecting, the client's timeouts are too long to have an effect. The server has its own
 * timeouts, and the caller has a deadline.
 */
function localConfig(path: string, concurrency: number): UpstreamConfig {
  const [first_token_ms, between_tokens_ms, total_ms] = [CALL_MS_MAX, CALL_MS_MAX, CALL_MS_MAX]
  return {
    type: 'openai',
    base_url: `http://local-model-server${path}`,
    headers: {},
    timeouts: { connect_ms: 5_000, first_token_ms, between_tokens_ms, total_ms },
    concurrency,
    breaker: { failures: 5, reset_ms: 1_000 },
    force_usage: false,
    api: 'chat',
  }
}

/** Encodes the form fields of a request. The local server returns all details as a stream, and accepts voice activity settings as one JSON object. */
function localFields({ vad, ...request }: TranscribeRequest, model: ModelConfig): [string, string][] {
  const fields = encodeFields(request, model, 'verbose_json')
  if (request.logprobs) fields.push(['include[]', 'logprobs'])
  if (vad) fields.push(['vad', JSON.stringify(vad)])
  return [...fields, ['stream', 'true']]
}

const ANSWER_BYTES_MAX = 16 * 1024 * 1024
const NAME = 'local-audio'

const ProbeResult = z.object({ duration: z.number().min(0) })

const Diarized = z.object({ turns: z.array(Turn) })

export class LocalAudioTools implements AudioTools {
  readonly #upstream: Upstream

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
