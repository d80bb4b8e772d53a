import type { Part } from '#schemas/generate.ts'
import type { ModelConfig } from '#schemas/models.ts'
import { type InputPart, PARTS } from '#schemas/responses/request.ts'
import {
  refuse,
  requireBase64,
  requireDataUrl,
  requireImageUrl,
  requireMedia,
  requireRemoteUrl,
} from '#services/ingress/body/decode.ts'
import { extraOf, parseAt } from '#services/ingress/body/validate.ts'
import { dialectOf } from '#shared/engines/adapt.ts'

export interface PartContext {
  readonly model: ModelConfig
  readonly remoteImages: boolean
}

export interface AnyPart {
  readonly type: string
  readonly [field: string]: unknown
}

const CONSUMED: ReadonlySet<string> = new Set([
  ...['type', 'text', 'refusal', 'image_url', 'file_data', 'file_url', 'filename', 'input_audio'],
])
const IMAGE_CONSUMED: ReadonlySet<string> = new Set([...CONSUMED, 'detail'])

/**
 * Decodes a part of a message (docs/guides/responses.md, Items). Parts of unknown types become native parts.
 *
 * @throws ServiceError a 400 with the path of the part
 */
export function decodePart(part: AnyPart, path: readonly PropertyKey[], context: PartContext): Part {
  const { type } = part
  if (!isKnown(type)) return native(part, typeof part.text === 'string' ? part.text : undefined)
  const known = PARTS[type].safeParse(part).data ?? parseAt(PARTS[type], part, path)
  const decoded = decodeKnown(known, part, paramOf(path), context)
  const extra = extraOf(part, type === 'input_image' ? IMAGE_CONSUMED : CONSUMED)
  return extra && decoded.type !== 'native' ? { ...decoded, extra } : decoded
}

function decodeKnown(part: InputPart, raw: AnyPart, param: string, context: PartContext): Part {
  switch (part.type) {
    case 'input_text':
    case 'output_text':
      return { type: 'text', text: part.text }
    case 'refusal':
      return native(raw, part.refusal)
    case 'input_image':
      return decodeImage(part, raw, param, context)
    case 'input_file':
      return decodeFile(part, raw, param, context)
    case 'input_audio': {
      const { data, format } = part.input_audio
      requireMedia(context.model, 'audio', param)
      requireBase64(data, `${param}.input_audio.data`)
      return { type: 'audio', data, format }
    }
  }
}

function isKnown(type: string): type is keyof typeof PARTS {
  return Object.hasOwn(PARTS, type)
}

function native(part: AnyPart, text: string | undefined): Part {
  return { type: 'native', dialect: 'responses', value: { ...part }, text }
}

type ImagePart = Extract<InputPart, { type: 'input_image' }>
type FilePart = Extract<InputPart, { type: 'input_file' }>

function decodeImage(part: ImagePart, raw: AnyPart, param: string, context: PartContext): Part {
  const { image_url: url, file_id, detail } = part
  requireMedia(context.model, 'images', param)
  if (!url) return withoutContent(raw, file_id, param, 'image_url', context)
  requireImageUrl(url, `${param}.image_url`, context.remoteImages)
  return { type: 'image', url, detail: detail ?? undefined }
}

function decodeFile(part: FilePart, raw: AnyPart, param: string, context: PartContext): Part {
  const { file_data: data, file_url: url, file_id, filename } = part
  requireMedia(context.model, 'files', param)
  const name = filename ?? undefined
  if (data) {
    requireDataUrl(data, `${param}.file_data`)
    return { type: 'file', data, filename: name }
  }
  if (!url) return withoutContent(raw, file_id, param, 'file_data', context)
  requireRemoteUrl(url, `${param}.file_url`, context.remoteImages)
  return { type: 'file', data: url, filename: name }
}

/**
 * Handles a part without inline content. If the part names a file of the upstream, then an upstream of the Responses
 * API receives the part unchanged.
 */
function withoutContent(
  raw: AnyPart,
  file_id: string | null | undefined,
  param: string,
  field: string,
  { model }: PartContext,
): Part {
  if (file_id && dialectOf({}, model) === 'responses') return native(raw, undefined)
  if (file_id) {
    const message = `Unsupported parameter: 'file_id'. Send the content of the file as '${field}' instead.`
    return refuse('unsupported_parameter', `${param}.file_id`, message)
  }
  const path = `${param}.${field}`
  return refuse('missing_required_parameter', path, `Missing required parameter: '${path}'.`)
}

function paramOf(path: readonly PropertyKey[]): string {
  return path.map((key, at) => (typeof key === 'number' ? `[${key}]` : `${at === 0 ? '' : '.'}${String(key)}`)).join('')
}
