import { isUtf8 } from 'node:buffer'
import type { IncomingMessage } from 'node:http'
import { HELD_PER_BYTE, HELD_PER_VALUE, type HeldBytes } from '#shared/capacity/byte-budgets.ts'
import { JsonSyntaxError, readJson } from '#shared/json/read.ts'
import { refuseShape } from '#shared/json/shape.ts'
import { ServiceError } from '#shared/lib/error.ts'
import { runYielding } from '#shared/lib/yielding.ts'
import { type BodyBounds, readBytes, withoutByteOrderMark } from './body-bytes.ts'

/**
 * Reads the JSON body of a request, in UTF-8 with any supported compression. A body is refused before parsing if its
 * values would need far more memory than its bytes. If a key is duplicated, then the last value is used, which RFC 8259
 * §4 permits.
 *
 * @throws ServiceError (docs/reference/compatibility.md, Requests) 413 `request_too_large`, 415
 * `unsupported_media_type`, 408 `request_timeout`; 400 for an empty body, invalid JSON or UTF-8, and excessive nesting;
 * `overloaded`
 */
export async function readJsonBody(req: IncomingMessage, bounds: BodyBounds, held: HeldBytes): Promise<unknown> {
  const { 'content-length': length = 0, 'transfer-encoding': encoding } = req.headers
  // A request without Transfer-Encoding and Content-Length has no body (RFC 9112 §6.3).
  if (encoding === undefined && Number(length) === 0) throw invalid(NO_BODY)
  refuseOtherTypes(req)
  const json = withoutByteOrderMark(await readBytes(req, bounds, (bytes) => held.hold(bytes * HELD_PER_BYTE)))
  if (json.length === 0) throw invalid(NO_BODY)
  if (!isUtf8(json)) throw invalid('The body is not valid UTF-8.')
  const values = await runYielding(refuseShape(json))
  held.hold(json.length * HELD_PER_BYTE + values * HELD_PER_VALUE)
  try {
    return await runYielding(readJson(json))
  } catch (error) {
    if (!(error instanceof JsonSyntaxError)) throw error
    const message = `We could not parse the JSON body of your request. ${positionOf(error)}`
    throw new ServiceError('invalid_request', message.trim(), { cause: error })
  }
}

const NO_BODY = 'The request has no body. Send a JSON object.'
const CHARSETS: ReadonlySet<string> = new Set(['utf-8', 'utf8', 'us-ascii'])

function refuseOtherTypes(req: IncomingMessage): void {
  const given = req.headers['content-type'] ?? ''
  if (given === 'application/json') return
  const [type, ...parameters] = given.split(';').map((part) => part.trim().toLowerCase())
  if (type !== 'application/json' && !(type?.startsWith('application/') && type.endsWith('+json'))) {
    const got = type ? `but got ${type.slice(0, 100)}` : 'but none was given'
    throw new ServiceError('unsupported_media_type', `Expected Content-Type application/json, ${got}.`)
  }
  const charset = parameters.find((parameter) => parameter.startsWith('charset='))?.slice('charset='.length)
  if (charset === undefined || CHARSETS.has(charset.replaceAll('"', ''))) return
  throw new ServiceError('unsupported_media_type', 'The charset of the body must be utf-8.')
}

/**
 * Sentence with the position of a JSON syntax error; empty if unknown. V8 quotes the body in its message, so only the
 * position is taken from it.
 */
function positionOf({ message, offset }: JsonSyntaxError): string {
  // A long body is parsed in pieces, so the position in the message of V8 is wrong.
  if (offset > 0) return `The JSON is incomplete near byte ${offset}.`
  const position = / in JSON at position \d+ \((line \d+ column \d+)\)$/.exec(message)
  if (position) return `${message.slice(0, position.index)} at ${position[1]}.`
  return message === 'Unexpected end of JSON input' ? 'The JSON is incomplete.' : ''
}

function invalid(message: string): ServiceError {
  return new ServiceError('invalid_request', message)
}
