import type { ModelConfig } from '#schemas/models.ts'
import type { TranscribeRequest } from '#schemas/transcription.ts'
import { encodeFields } from '#shared/engines/openai/transcript/encode.ts'
import { callTranscription } from '#shared/engines/openai/transcript/transcription.ts'
import type { TranscriptionEngine } from '#shared/engines/transcription.ts'
import { Upstream, type UpstreamOptions } from '#shared/engines/upstream/upstream.ts'
import { localConfig } from './config.ts'

/**
 * A transcription engine on the local model server, which speaks OpenAI's dialect with more in its streams: segments,
 * words, log probabilities and progress beside the text.
 *
 * @param model A model whose engine is of type `local`.
 * @param connect Finds the server. @throws ServiceError `model_loading`
 */
export function openLocalTranscription(
  model: ModelConfig,
  connect: NonNullable<UpstreamOptions['connect']>,
): TranscriptionEngine {
  const { engine } = model
  if (engine.type !== 'local') throw new Error(`model '${model.id}' does not run on the local model server`)
  const config = localConfig('/v1', engine.concurrency)
  const upstream = new Upstream(model, config, {}, { connect })
  return {
    transcribe(request, audio, options) {
      const call = { fields: localFields(request, model), isStream: true }
      return callTranscription(upstream, model, request, audio, options, call)
    },
    close: () => upstream.close(),
  }
}

/** Its streams bring all there is; voice activity is one JSON object. */
function localFields({ vad, ...request }: TranscribeRequest, model: ModelConfig): [string, string][] {
  const fields = encodeFields(request, model, 'verbose_json')
  if (request.logprobs) fields.push(['include[]', 'logprobs'])
  if (vad) fields.push(['vad', JSON.stringify(vad)])
  return [...fields, ['stream', 'true']]
}
