import { POOLS } from '#schemas/job.ts'
import { type ModelConfig, type ModelTask, type ModelWork, workOf } from '#schemas/models.ts'
import { beginningOf } from '#services/ingress/body/problem.ts'
import type { IngressContext } from '#services/ingress/call.ts'
import { ServiceError } from '#shared/lib/error.ts'
import { similarNameOf } from '#shared/lib/similar-name.ts'
import type { Caller } from './endpoint.ts'

/**
 * Finds a model that a caller may use for one of several kinds of work, such as embedding.
 *
 * @throws ServiceError `model_not_found`, `model_not_allowed`, `model_not_supported`
 */
export function getModel(
  context: IngressContext,
  { key }: Pick<Caller, 'key'>,
  id: string,
  ...works: readonly [ModelWork, ...ModelWork[]]
): ModelConfig {
  const model = context.models.find(id)
  if (!model) {
    throw modelNotFound(context, key, id, works)
  }
  if (!isUsable(model, key)) {
    const message = `This API key may not use the model '${model.id}'.${namedFor(context, key, id, works)}`
    throw new ServiceError('model_not_allowed', message, { param: 'model' })
  }
  if (!isDoing(model, works)) {
    const wanted = { ...POOLS, ...TASKS }[works[0]]
    const message = `The model '${model.id}' does not ${wanted}. GET /v1/models lists what each can do.`
    throw new ServiceError('model_not_supported', message, { param: 'model' })
  }
  return model
}

const TASKS: Readonly<Record<ModelTask, string>> = { moderation: 'moderate', speech: 'speak', rerank: 'rerank' }

function isDoing(model: ModelConfig, works: readonly ModelWork[]): boolean {
  const own = workOf(model)
  return own !== undefined && works.includes(own)
}

const NAMED_MAX = 10

/**
 * Error for an unknown model id. The message lists the models that the key may use, most similar first.
 *
 * @param works Suggests only models for this work; undefined: all
 */
export function modelNotFound(
  context: Pick<IngressContext, 'models'>,
  key: Pick<Caller['key'], 'models'>,
  id: string,
  works?: readonly ModelWork[],
): ServiceError {
  const message = `The model '${beginningOf(id, 200)}' ${NO_ACCESS}${namedFor(context, key, id, works)}`
  return new ServiceError('model_not_found', message, { param: 'model' })
}

function namedFor(
  { models }: Pick<IngressContext, 'models'>,
  key: Pick<Caller['key'], 'models'>,
  id: string,
  works: readonly ModelWork[] | undefined,
): string {
  const usable = models.models.filter((model) => isUsable(model, key) && (!works || isDoing(model, works)))
  const names = similarNameOf(
    id,
    usable.flatMap((model) => [model.id, ...model.aliases]),
  ).map(({ name }) => name)
  const more = names.length > NAMED_MAX ? ` and ${names.length - NAMED_MAX} more` : ''
  return names.length > 0 ? ` This key may use: ${names.slice(0, NAMED_MAX).join(', ')}${more}.` : ''
}

/** Reason in the message about an unusable model. Suggested models follow it. */
export const NO_ACCESS = 'does not exist or you do not have access to it.'

export function isUsable(model: ModelConfig, key: Pick<Caller['key'], 'models'>): boolean {
  return !key.models || key.models.includes(model.id)
}
