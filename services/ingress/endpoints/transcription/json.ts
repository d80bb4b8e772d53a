import { createHash } from 'node:crypto'
import { JsonAudioBody } from '#schemas/transcription/body.ts'
import type { TranscribeRequest } from '#schemas/transcription/transcription.ts'
import { requireBase64 } from '#services/ingress/body/media.ts'
import { parseBody } from '#services/ingress/body/validate.ts'
import { ServiceError } from '#shared/error.ts'
import { AudioSniffer } from './sniff.ts'
import { tooLarge } from './upload.ts'

/**
 * Audio in a JSON body: `data:audio/wav;base64,…`, or an object with the base64 text and the file name.
 *
 * @param file Field `file` of the body
 * @throws ServiceError `missing_required_parameter`, `invalid_type`, `invalid_value`, `request_too_large`,
 * `invalid_audio`
 */
export function audioOfJson(file: unknown, bytesMax: number): TranscribeRequest['audio'] {
  const given = parseBody(JsonAudioBody, { file }, 'openai').file
  const { data, filename } = typeof given === 'string' ? { data: base64OfUrl(given, 'file'), filename: null } : given
  if (data === '') throw new ServiceError('invalid_audio', 'The audio file is empty.', { param: 'file' })
  if (typeof given !== 'string') requireBase64(data, 'file.data')
  if (data.length > Math.ceil(bytesMax / 3) * 4) throw tooLarge(bytesMax)
  const bytes = Buffer.from(data, 'base64')
  if (bytes.length > bytesMax) throw tooLarge(bytesMax)
  const sniffer = new AudioSniffer(filename ?? undefined)
  sniffer.push(bytes)
  const format = sniffer.end()
  return { base64: data, sha256: createHash('sha256').update(bytes).digest('hex'), bytes: bytes.length, format }
}

/**
 * Beginning of a data URL (RFC 2397): data:<type>/<subtype>[;attribute=value]*;base64,<data>. The type is optional,
 * because the content determines the format.
 */
const HEAD = /^data:(?:[a-z]+\/[a-z0-9.+-]+)?(?:;[a-z0-9-]+=[^;,]*)*;base64,/i
/** Maximum characters before the data; a longer URL is refused. */
const HEAD_CHARS_MAX = 256

/**
 * Base64 content of a data URL.
 *
 * @throws ServiceError `invalid_value`
 */
export function base64OfUrl(url: string, param: string): string {
  const [head] = HEAD.exec(url.slice(0, HEAD_CHARS_MAX)) ?? []
  if (head === undefined) {
    const message = `Invalid '${param}': expected a base64-encoded data URL, such as data:audio/wav;base64,UklGRg….`
    throw new ServiceError('invalid_value', message, { param })
  }
  const data = url.slice(head.length)
  requireBase64(data, param)
  return data
}
