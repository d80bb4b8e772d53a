import { z } from 'zod'
import {
  CHARS_MAX,
  DEFAULT_NAMES,
  INPUTS_MAX,
  type ModerationInput,
  ModerationPart,
  ModerationsBody,
  PARTS_MAX,
  WORD_LIST,
} from '#schemas/kinds/moderations.ts'
import { readInputs, refuse, requireImageUrl } from '#services/ingress/body/decode.ts'
import { parseAt, parseBody } from '#services/ingress/body/validate.ts'
import type { Caller, IngressContext, JobEndpoint } from '#services/ingress/calls/call.ts'
import { getModel, isUsable } from '#services/ingress/calls/endpoint.ts'
import { moderate } from '#shared/kinds/moderate/moderate.ts'
import { ServiceError } from '#shared/lib/error.ts'

export const moderations: JobEndpoint = {
  path: '/v1/moderations',
  async describe() {
    const { ModerationAnswer: Moderation } = await import('#schemas/answers/tools.ts')
    const input = z.union([z.string(), z.array(z.string()).min(1), z.array(ModerationPart).min(1)])
    return {
      id: 'createModeration',
      tag: 'Tools',
      summary: 'Classify text and images for harmful content',
      guide: 'moderations',
      body: { ModerationRequest: ModerationsBody.extend({ input }) },
      answer: { description: 'One result per input, in input order.', json: { Moderation } },
    }
  },
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

function moderatorOf(context: IngressContext, caller: Caller, asked: string): string {
  const isDefault = (DEFAULT_NAMES as readonly string[]).includes(asked)
  const name = isDefault && !context.models.find(asked) ? DEFAULT_NAMES[0] : asked
  const isWordList = (isDefault || name === WORD_LIST) && !context.models.find(name)
  if (!isWordList) return getModel(context, caller, name, 'moderation').id
  if (!caller.key.models || caller.key.models.includes(WORD_LIST)) return WORD_LIST
  throw new ServiceError('model_not_allowed', `This API key may not use the model '${WORD_LIST}'.`, { param: 'model' })
}

interface InputContext {
  readonly model: string
  readonly readsImages: boolean
  readonly imageModels: readonly string[]
  readonly remoteImages: boolean
}

function readModerationInputs(input: unknown, context: InputContext): ModerationInput[] {
  const isParts = Array.isArray(input) && typeof input[0] === 'object' && !Array.isArray(input[0]) && input[0] !== null
  const inputs = isParts ? [readParts(input, context)] : readTexts(input)
  let chars = 0
  for (const one of inputs) {
    const texts = typeof one === 'string' ? [one] : one.map((part) => (part.type === 'text' ? part.text : ''))
    for (const { length } of texts) chars += length
  }
  if (chars <= CHARS_MAX) return inputs
  const message = `Expected at most ${CHARS_MAX} characters in one call, of all inputs together, but got ${chars}.`
  return refuse('invalid_value', 'input', message)
}

function readTexts(input: unknown): string[] {
  if (Array.isArray(input)) requireFew(input, INPUTS_MAX)
  return readInputs(input, 'input').map((text, index) => {
    if (typeof text === 'string') return text.toWellFormed()
    return refuse(
      'invalid_type',
      `input[${index}]`,
      'Expected texts, or parts with a type; token lists are not supported.',
    )
  })
}

function readParts(input: readonly unknown[], context: InputContext): ModerationPart[] {
  requireFew(input, PARTS_MAX)
  return input.map((given, index) => {
    const part = parseAt(ModerationPart, given, ['input', index])
    if (part.type === 'text') return part
    const param = `input[${index}]`
    if (!context.readsImages) refuse('unsupported_value', param, noImages(context))
    requireImageUrl(part.image_url.url, `${param}.image_url.url`, context.remoteImages)
    return part
  })
}

function noImages({ model, imageModels }: InputContext): string {
  const others =
    imageModels.length > 0
      ? `Use one of these models: ${imageModels.join(', ')}`
      : 'No model of this deployment can moderate images'
  return `The model '${model}' does not read images. ${others}.`
}

function requireFew({ length }: readonly unknown[], most: number): void {
  if (length <= most) return
  const message = `Invalid 'input': array too long. Expected an array with maximum length ${most}, but got an array with length ${length} instead.`
  refuse('array_above_max_length', 'input', message)
}
