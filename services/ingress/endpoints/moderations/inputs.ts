import { CHARS_MAX, INPUTS_MAX, type ModerationInput, ModerationPart, PARTS_MAX } from '#schemas/moderations.ts'
import { requireImageUrl } from '#services/ingress/body/media.ts'
import { parseAt } from '#services/ingress/body/validate.ts'
import { refuse } from '#services/ingress/endpoints/decode.ts'
import { readInputs } from '#services/ingress/endpoints/inputs.ts'

export interface InputContext {
  readonly model: string
  readonly readsImages: boolean
  /** Models for images that the caller may use, for the error message. */
  readonly imageModels: readonly string[]
  /** Whether the model's server may fetch images by URL. */
  readonly remoteImages: boolean
}

/**
 * Inputs of a call (docs/guides/moderations.md): one text, several texts, or the parts of one input.
 *
 * @throws ServiceError a 400 with the path of the first problem, such as `input[3].image_url.url`
 */
export function readModerationInputs(input: unknown, context: InputContext): ModerationInput[] {
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
    imageModels.length > 0 ? `Name one that does: ${imageModels.join(', ')}` : 'No model here moderates them'
  return `The model '${model}' does not read images. ${others}.`
}

function requireFew({ length }: readonly unknown[], most: number): void {
  if (length <= most) return
  const message = `Invalid 'input': array too long. Expected an array with maximum length ${most}, but got an array with length ${length} instead.`
  refuse('array_above_max_length', 'input', message)
}
