import { DEFAULT_NAMES, ModerationsBody, WORD_LIST } from '#schemas/moderations.ts'
import { parseBody } from '#services/ingress/body/validate.ts'
import type { IngressContext } from '#services/ingress/call.ts'
import type { Caller, JobEndpoint } from '#services/ingress/endpoints/endpoint.ts'
import { getModel, isUsable } from '#services/ingress/endpoints/model.ts'
import { ServiceError } from '#shared/error.ts'
import { moderate } from '#shared/kinds/moderate.ts'
import { readModerationInputs } from './inputs.ts'

/** POST /v1/moderations (docs/guides/moderations.md): by the word list, or by a moderation model. */
export const moderations: JobEndpoint = {
  path: '/v1/moderations',
  format: 'openai',
  kind: moderate,
  requireModel: (context, caller, model) => void moderatorOf(context, caller, model),
  prepare(context, caller, body) {
    const asked = parseBody(ModerationsBody, body, 'openai')
    const model = moderatorOf(context, caller, asked.model ?? DEFAULT_NAMES[0])
    const { remoteImages } = context.config
    const imageModels = imageModelsOf(context, caller)
    const readsImages = imageModels.includes(model)
    const inputs = readModerationInputs(asked.input, { model, readsImages, imageModels, remoteImages })
    const named = asked.model != null && context.models.find(asked.model) ? asked.model : undefined
    return { model, named, body: { model, inputs }, stream: false, timeoutMs: context.config.requestTimeoutMs }
  },
}

function imageModelsOf({ models }: IngressContext, { key }: Caller): string[] {
  const able = models.models.filter((one) => one.task === 'moderation' && one.capabilities.images && isUsable(one, key))
  return able.map(({ id }) => id)
}

/**
 * Id of the moderation model or of the word list.
 *
 * @throws ServiceError as `getModel`
 */
function moderatorOf(context: IngressContext, caller: Caller, asked: string): string {
  const isDefault = (DEFAULT_NAMES as readonly string[]).includes(asked)
  const name = isDefault && !context.models.find(asked) ? DEFAULT_NAMES[0] : asked
  const isWordList = (isDefault || name === WORD_LIST) && !context.models.find(name)
  if (!isWordList) return getModel(context, caller, name, 'moderation').id
  if (!caller.key.models || caller.key.models.includes(WORD_LIST)) return WORD_LIST
  throw new ServiceError('model_not_allowed', `This API key may not use the model '${WORD_LIST}'.`, { param: 'model' })
}
