import type { Part } from '#schemas/generate.ts'
import type { ModelConfig } from '#schemas/models.ts'
import type { InputPart } from '#schemas/responses/request.ts'
import { requireBase64, requireDataUrl, requireImageUrl, requireRemoteUrl } from '#services/ingress/body/media.ts'
import { refuse, requireMedia } from '#services/ingress/endpoints/decode.ts'

/** What a part is checked against. */
export interface PartContext {
  readonly model: ModelConfig
  readonly remoteImages: boolean
}

/** What a part of a message means (docs/responses.md, Items). @throws ServiceError a 400 that names it */
export function decodePart(part: InputPart, param: string, context: PartContext): Part {
  switch (part.type) {
    case 'input_text':
    case 'output_text':
      return { type: 'text', text: part.text }
    case 'refusal':
      return { type: 'text', text: part.refusal }
    case 'input_image':
      return decodeImage(part, param, context)
    case 'input_file':
      return decodeFile(part, param, context)
    case 'input_audio': {
      const { data, format } = part.input_audio
      requireMedia(context.model, 'audio', param)
      requireBase64(data, `${param}.input_audio.data`)
      return { type: 'audio', data, format }
    }
  }
}

type ImagePart = Extract<InputPart, { type: 'input_image' }>
type FilePart = Extract<InputPart, { type: 'input_file' }>

function decodeImage({ image_url: url, file_id, detail }: ImagePart, param: string, context: PartContext): Part {
  requireMedia(context.model, 'images', param)
  if (!url) return refuseContent(file_id, param, 'image_url')
  requireImageUrl(url, `${param}.image_url`, context.remoteImages)
  return { type: 'image', url, detail: detail ?? undefined }
}

function decodeFile(part: FilePart, param: string, context: PartContext): Part {
  const { file_data: data, file_url: url, file_id, filename } = part
  requireMedia(context.model, 'files', param)
  const name = filename ?? undefined
  if (data) {
    requireDataUrl(data, `${param}.file_data`)
    return { type: 'file', data, filename: name }
  }
  if (!url) return refuseContent(file_id, param, 'file_data')
  requireRemoteUrl(url, `${param}.file_url`, context.remoteImages)
  return { type: 'file', data: url, filename: name }
}

/** A part without content, or whose content lies elsewhere. */
function refuseContent(file_id: string | null | undefined, param: string, field: string): never {
  if (file_id) {
    const message = `Unsupported parameter: 'file_id'. Send the content of the file as '${field}' instead.`
    return refuse('unsupported_parameter', `${param}.file_id`, message)
  }
  const path = `${param}.${field}`
  return refuse('missing_required_parameter', path, `Missing required parameter: '${path}'.`)
}
