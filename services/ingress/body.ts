import { isUtf8 } from 'node:buffer'
import express, { type Request, type Response } from 'express'
import { ServiceError } from '#shared/error.ts'

/** Deepest nesting of a JSON body: far beyond any real request, far below what overflows a stack. */
const DEPTH_MAX = 128
/** How long a refused upload may go on before its connection is cut. */
const LINGER_MS = 2_000

/** Reads the JSON bodies of requests. */
export type ReadJson = (req: Request, res: Response) => Promise<unknown>

/**
 * Makes a reader of JSON bodies that inflates gzip, deflate and br, counts inflated bytes, and gives up on stalled uploads.
 * Of duplicate keys the last one counts (RFC 8259 §4 leaves it open); nothing else ever reads the bytes again.
 *
 * Its errors (contract L): 413 `request_too_large`, 415 `unsupported_media_type`, 408 `request_timeout`, and 400 for what
 * is not JSON in UTF-8 or is nested too deep.
 */
export function jsonReader(options: { bytesMax: number; stallMs: number }): ReadJson {
  const raw = express.raw({ type: () => true, limit: options.bytesMax })
  return async (req, res) => {
    refuseOtherTypes(req)
    const body = await readBytes(raw, req, res, options.stallMs)
    if (!body) throw new ServiceError('invalid_request', 'The request has no body. Send a JSON object.')
    if (!isUtf8(body)) throw new ServiceError('invalid_request', 'The body is not valid UTF-8.')
    const json = parse(body.toString())
    refuseDeep(json)
    return json
  }
}

function refuseOtherTypes(req: Request): void {
  const type = req.headers['content-type']?.split(';')[0]?.trim().toLowerCase()
  if (type === 'application/json' || (type?.startsWith('application/') && type.endsWith('+json'))) return
  const got = type ? `but got ${type.slice(0, 100)}` : 'but none was given'
  throw new ServiceError('unsupported_media_type', `Expected Content-Type application/json, ${got}.`)
}

function readBytes(
  raw: ReturnType<typeof express.raw>,
  req: Request,
  res: Response,
  stallMs: number,
): Promise<Buffer | undefined> {
  return new Promise((resolve, reject) => {
    let bytesRead = req.socket.bytesRead
    const stall = setInterval(() => {
      if (req.socket.bytesRead === bytesRead) settle(new ServiceError('request_timeout', 'The body stopped arriving.'))
      bytesRead = req.socket.bytesRead
    }, stallMs)
    const settle = (error?: unknown) => {
      clearInterval(stall)
      if (!error) return resolve(Buffer.isBuffer(req.body) ? req.body : undefined)
      if (!req.complete) cutAfterResponse(req, res)
      reject(translate(error))
    }
    raw(req, res, settle)
  })
}

/** The rest of a refused body is not wanted: answer, give the client a moment to read that, then cut. */
function cutAfterResponse(req: Request, res: Response): void {
  res.setHeader('connection', 'close')
  res.once('finish', () => setTimeout(() => req.socket.destroy(), LINGER_MS).unref())
}

function translate(error: unknown): ServiceError {
  if (error instanceof ServiceError) return error
  const { type } = error as { type?: string }
  switch (type) {
    case 'entity.too.large':
      return new ServiceError('request_too_large', 'The body is larger than the service accepts.')
    case 'encoding.unsupported':
      return new ServiceError('unsupported_media_type', 'Content-Encoding must be gzip, deflate, br or identity.')
    case 'request.aborted':
      return new ServiceError('request_timeout', 'The body ended before it was complete.')
    case 'request.size.invalid':
      return new ServiceError('invalid_request', 'The body is not as long as Content-Length says.')
    default:
      // What is left are errors of zlib: the bytes are not what Content-Encoding says.
      return new ServiceError('invalid_request', 'The body could not be decoded.', { cause: error })
  }
}

function parse(text: string): unknown {
  try {
    return JSON.parse(text)
  } catch (error) {
    throw new ServiceError('invalid_request', 'We could not parse the JSON body of your request.', { cause: error })
  }
}

/** Walks the value without recursion; everything after this may recurse. */
function refuseDeep(json: unknown): void {
  let level: object[] = typeof json === 'object' && json !== null ? [json] : []
  for (let depth = 1; level.length > 0; depth++) {
    if (depth > DEPTH_MAX)
      throw new ServiceError('invalid_request', `The JSON is nested deeper than ${DEPTH_MAX} levels.`)
    const next: object[] = []
    for (const value of level) {
      for (const child of Object.values(value)) if (typeof child === 'object' && child !== null) next.push(child)
    }
    level = next
  }
}
