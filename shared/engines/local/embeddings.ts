import type { ModelConfig } from '#schemas/models.ts'
import type { EmbeddingEngine } from '#shared/engines/embedding.ts'
import { OpenAiEmbeddings } from '#shared/engines/openai/embeddings.ts'
import type { UpstreamOptions } from '#shared/engines/upstream/upstream.ts'
import { localConfig } from './config.ts'

/**
 * An embedding engine on the local model server, which speaks the OpenAI dialect and tells the tokens of each text.
 *
 * @param model A model whose engine is of type `local`.
 * @param connect Finds the server. @throws ServiceError `model_loading`
 */
export function openLocalEmbeddings(
  model: ModelConfig,
  connect: NonNullable<UpstreamOptions['connect']>,
): EmbeddingEngine {
  const { engine } = model
  if (engine.type !== 'local') throw new Error(`model '${model.id}' does not run on the local model server`)
  const config = { ...localConfig('/v1', engine.concurrency), model: engine.model }
  return new OpenAiEmbeddings(model.id, config, {}, { connect })
}
