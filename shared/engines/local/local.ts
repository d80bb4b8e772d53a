import type { ModelConfig, UpstreamConfig } from '#schemas/models.ts'
import type { TranscribeRequest } from '#schemas/transcription/transcription.ts'
import type { EmbeddingEngine } from '#shared/engines/embedding.ts'
import { OpenAiEmbeddings } from '#shared/engines/openai/embeddings.ts'
import { encodeFields } from '#shared/engines/openai/transcript/encode.ts'
import { callTranscription } from '#shared/engines/openai/transcript/transcription.ts'
import type { TranscriptionEngine } from '#shared/engines/transcription.ts'
import { Upstream, type UpstreamOptions } from '#shared/engines/upstream/upstream.ts'

/** Effectively no timeout: longer than any deadline. */
const CALL_MS_MAX = 24 * 3_600_000

/** Finds the local model server, and loads `model` if that model is not loaded by default. @throws ServiceError `model_loading` */
type Connect = (signal: AbortSignal, model?: string) => ReturnType<NonNullable<UpstreamOptions['connect']>>

/** An embedding engine on the local model server, which uses OpenAI's API and reports the tokens of each text. */
export function openLocalEmbeddings(model: ModelConfig, connect: Connect): EmbeddingEngine {
  return new OpenAiEmbeddings(model.id, configOf(model), {}, { connect: (signal) => connect(signal) })
}

/**
 * A transcription engine on the local model server. The server's API is OpenAI's, with additional stream events: segments, words, log
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

/** Client configuration of the local model server. The server has its own timeouts, and a call's deadline is the caller's. */
export function localConfig(path: string, concurrency: number): UpstreamConfig {
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

/** Form fields of a request. The local server streams all details, and accepts voice activity settings as one JSON object. */
function localFields({ vad, ...request }: TranscribeRequest, model: ModelConfig): [string, string][] {
  const fields = encodeFields(request, model, 'verbose_json')
  if (request.logprobs) fields.push(['include[]', 'logprobs'])
  if (vad) fields.push(['vad', JSON.stringify(vad)])
  return [...fields, ['stream', 'true']]
}
