import { isUtf8 } from 'node:buffer'
import type { IncomingMessage } from 'node:http'
import { setImmediate as nextTurn } from 'node:timers/promises'
import { ServiceError } from '#shared/error.ts'
import { type BodyBounds, readBytes } from './body-bytes.ts'
import { refuseShape } from './json-shape.ts'

/** From here on a body is parsed in one turn of the event loop and checked in another. */
const LARGE_BYTES = 256 * 1024

/** Reads the JSON bodies of requests. */
export type ReadJson = (req: IncomingMessage) => Promise<unknown>

/**
 * Makes a reader of JSON bodies: any inflation, UTF-8 only, nothing that would cost more memory than its bytes promise.
 * Of duplicate keys the last one counts (RFC 8259 §4 leaves it open); nothing else ever reads the bytes again.
 *
 * Its errors (contract L): 413 `request_too_large`, 415 `unsupported_media_type`, 408 `request_timeout`, and 400 for an
 * empty body, what is not JSON in UTF-8, and what is nested too deep.
 */
export function jsonReader(bounds: BodyBounds): ReadJson {
  return async (req) => {
    if (isEmpty(req)) throw noBody()
    refuseOtherTypes(req)
    const body = await readBytes(req, bounds)
    if (body.length === 0) throw noBody()
    if (!isUtf8(body)) throw new ServiceError('invalid_request', 'The body is not valid UTF-8.')
    refuseShape(body)
    const json = parse(body.toString())
    // Checking a large body takes as long again, and others have waited already.
    if (body.length > LARGE_BYTES) await nextTurn()
    return json
  }
}

/** A request without either header has no body (RFC 9112 §6.3). */
function isEmpty(req: IncomingMessage): boolean {
  return req.headers['transfer-encoding'] === undefined && Number(req.headers['content-length'] ?? 0) === 0
}

function noBody(): ServiceError {
  return new ServiceError('invalid_request', 'The request has no body. Send a JSON object.')
}

const CHARSETS: ReadonlySet<string> = new Set(['utf-8', 'utf8', 'us-ascii'])

function refuseOtherTypes(req: IncomingMessage): void {
  const [type, ...parameters] = (req.headers['content-type'] ?? '').split(';').map((part) => part.trim().toLowerCase())
  if (type !== 'application/json' && !(type?.startsWith('application/') && type.endsWith('+json'))) {
    const got = type ? `but got ${type.slice(0, 100)}` : 'but none was given'
    throw new ServiceError('unsupported_media_type', `Expected Content-Type application/json, ${got}.`)
  }
  const charset = parameters.find((parameter) => parameter.startsWith('charset='))?.slice('charset='.length)
  if (charset === undefined || CHARSETS.has(charset.replaceAll('"', ''))) return
  throw new ServiceError('unsupported_media_type', 'The charset of the body must be utf-8.')
}

function parse(text: string): unknown {
  try {
    return JSON.parse(text)
  } catch (error) {
    const message = `We could not parse the JSON body of your request. ${placeOf((error as Error).message)}`
    throw new ServiceError('invalid_request', message.trim(), { cause: error })
  }
}

/** Where JSON breaks off, by what V8 says of it, without what it quotes; empty where it does not tell. */
function placeOf(message: string): string {
  const place = / in JSON at position \d+ \((line \d+ column \d+)\)$/.exec(message)
  if (place) return `${message.slice(0, place.index)} at ${place[1]}.`
  return message === 'Unexpected end of JSON input' ? 'It ends too early.' : ''
}
