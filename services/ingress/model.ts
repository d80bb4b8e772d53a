import type { PoolName } from '#schemas/job.ts'
import type { ModelConfig } from '#schemas/models.ts'
import { ServiceError } from '#shared/error.ts'
import type { IngressContext } from './call.ts'
import type { Caller } from './endpoint.ts'

/** Pools whose work is that of models; code runs in a sandbox. */
type ModelPool = Exclude<PoolName, 'code'>

/** What models of a pool do, for people. */
const WORK: Readonly<Record<ModelPool, string>> = {
  inference: 'generate text',
  embeddings: 'make embeddings',
  transcription: 'transcribe audio',
}

/**
 * Finds a model for a caller, for the work of one pool.
 *
 * @throws ServiceError `model_not_found`, `model_not_allowed`, `model_not_supported`
 */
export function getModel(
  context: IngressContext,
  { key }: Pick<Caller, 'key'>,
  id: string,
  pool: ModelPool,
): ModelConfig {
  const model = context.models.find(id)
  if (!model) {
    const message = `The model '${id.slice(0, 200)}' does not exist or you do not have access to it.`
    throw new ServiceError('model_not_found', message, { param: 'model' })
  }
  if (key.models && !key.models.includes(model.id)) {
    throw new ServiceError('model_not_allowed', `This API key may not use the model '${model.id}'.`, { param: 'model' })
  }
  if (model.pool !== pool) {
    const message = `The model '${model.id}' does not ${WORK[pool]}. GET /v1/models lists what each can do.`
    throw new ServiceError('model_not_supported', message, { param: 'model' })
  }
  return model
}
