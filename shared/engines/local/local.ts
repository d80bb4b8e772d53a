import type { ModelConfig, UpstreamConfig } from '#schemas/models.ts'
import type { TranscribeRequest } from '#schemas/transcription/transcription.ts'
import type { EmbeddingEngine } from '#shared/engines/embedding.ts'
import { OpenAiEmbeddings } from '#shared/engines/openai/embeddings.ts'
import { encodeFields } from '#shared/engines/openai/transcript/encode.ts'
import { callTranscription } from '#shared/engines/openai/transcript/transcription.ts'
import type { TranscriptionEngine } from '#shared/engines/transcription.ts'
import { Upstream, type UpstreamOptions } from '#shared/engines/upstream/upstream.ts'

/** Longer than any deadline. */
const CALL_MS_MAX = 24 * 3_600_000

/** Finds the local model server, and the model if it is an optional one. @throws ServiceError `model_loading` */
type Connect = (
  signal: AbortSignal,
  model?: string,
) => ReturnType<NonNullable<UpstreamOptions['connect']>>

/** An embedding engine on the local model server, which speaks the OpenAI dialect and tells the tokens of each text. */
export function openLocalEmbeddings(model: ModelConfig, connect: Connect): EmbeddingEngine {
  return new OpenAiEmbeddings(model.id, configOf(model), {}, { connect: (signal) => connect(signal) })
}

/**
 * A transcription engine on the local model server, which speaks OpenAI's dialect with more in its streams: segments,
 * words, log probabilities and progress beside the text.
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

/** How the local model server is called: it keeps its own clocks, and a call's deadline is the caller's. */
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

/** Its streams bring all there is; voice activity is one JSON object. */
function localFields({ vad, ...request }: TranscribeRequest, model: ModelConfig): [string, string][] {
  const fields = encodeFields(request, model, 'verbose_json')
  if (request.logprobs) fields.push(['include[]', 'logprobs'])
  if (vad) fields.push(['vad', JSON.stringify(vad)])
  return [...fields, ['stream', 'true']]
}
