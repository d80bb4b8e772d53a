import { type ModelPool, POOLS } from '#schemas/job.ts'
import type { ModelConfig } from '#schemas/models.ts'
import type { IngressContext } from '#services/ingress/call.ts'
import { ServiceError } from '#shared/error.ts'
import { nearestOf } from '#shared/nearest.ts'
import type { Caller } from './endpoint.ts'

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
    throw modelNotFound(context, key, id, pool)
  }
  if (!isUsable(model, key)) {
    throw new ServiceError('model_not_allowed', `This API key may not use the model '${model.id}'.`, { param: 'model' })
  }
  if (model.pool !== pool) {
    const message = `The model '${model.id}' does not ${POOLS[pool]}. GET /v1/models lists what each can do.`
    throw new ServiceError('model_not_supported', message, { param: 'model' })
  }
  return model
}

/** Models that are named to whoever asked for one that is not there. */
const NAMED_MAX = 10

/**
 * The failure for an id that is no model: it names those that the key may use, the nearest first.
 *
 * @param pool Only its models are named; undefined: all.
 */
export function modelNotFound(
  { models }: Pick<IngressContext, 'models'>,
  key: Caller['key'],
  id: string,
  pool?: ModelPool,
): ServiceError {
  const usable = models.models.filter((model) => isUsable(model, key) && (pool ?? model.pool) === model.pool)
  const names = nearestOf(
    id,
    usable.flatMap((model) => [model.id, ...model.aliases]),
  ).map(({ name }) => name)
  const more = names.length > NAMED_MAX ? ` and ${names.length - NAMED_MAX} more` : ''
  const list = names.length > 0 ? ` This key may use: ${names.slice(0, NAMED_MAX).join(', ')}${more}.` : ''
  return new ServiceError('model_not_found', `The model '${id.slice(0, 200)}' ${NO_ACCESS}${list}`, { param: 'model' })
}

/** The end of the sentence about a model that cannot be used. What follows it in the message names models that can. */
export const NO_ACCESS = 'does not exist or you do not have access to it.'

/** Whether a key may use a model. */
export function isUsable(model: ModelConfig, key: Caller['key']): boolean {
  return !key.models || key.models.includes(model.id)
}
