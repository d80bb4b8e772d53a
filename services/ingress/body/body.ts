import { isUtf8 } from 'node:buffer'
import type { IncomingHttpHeaders, IncomingMessage, ServerResponse } from 'node:http'
import type { Readable, Transform } from 'node:stream'
import * as zlib from 'node:zlib'
import { HELD_PER_BYTE, HELD_PER_VALUE, type HeldBytes } from '#shared/capacity/byte-budgets.ts'
import { JsonSyntaxError, readJson, refuseShape } from '#shared/json/read.ts'
import { findJsonProblem } from '#shared/json/syntax-error.ts'
import { errorHeaders, messagesErrorBody, messagesStatus, openaiErrorBody, openaiStatus } from '#shared/kinds/errors.ts'
import { concatBytes } from '#shared/lib/concat-bytes.ts'
import { ServiceError } from '#shared/lib/error.ts'
import { runToEnd, runYielding } from '#shared/lib/yielding.ts'

/**
 * Reads the JSON body of a request, in UTF-8 with any supported compression.
 *
 * Before parsing, the size of the parsed values is estimated. A body whose values would need far more memory than its
 * bytes is refused. If a key occurs twice in an object, then the last value is used, which RFC 8259 §4 permits.
 *
 * @throws ServiceError (docs/reference/compatibility.md, Requests) 413 `request_too_large`, 415
 * `unsupported_media_type`, 408 `request_timeout`; 400 for an empty body, invalid JSON or UTF-8, and excessive nesting;
 * `overloaded`
 * @param onMalformed Called with a body that is not JSON, before the error is thrown
 */
export async function readJsonBody(
  req: IncomingMessage,
  bounds: BodyBounds,
  held: HeldBytes,
  onMalformed?: (body: Buffer) => void,
): Promise<unknown> {
  const { 'content-length': length = 0, 'transfer-encoding': encoding } = req.headers
  // A request without Transfer-Encoding and Content-Length has no body (RFC 9112 §6.3).
  if (encoding === undefined && Number(length) === 0) throw invalid(NO_BODY)
  const type = req.headers['content-type'] ?? ''
  if (type !== 'application/json') refuseOtherTypes(type)
  const json = withoutByteOrderMark(await readBytes(req, bounds, (bytes) => held.hold(bytes * HELD_PER_BYTE)))
  if (json.length === 0) throw invalid(NO_BODY)
  if (!isUtf8(json)) throw invalid('The body is not valid UTF-8. Encode the body as UTF-8.')
  const values = await runYielding(refuseShape(json))
  held.hold(json.length * HELD_PER_BYTE + values * HELD_PER_VALUE)
  try {
    return await runYielding(readJson(json))
  } catch (error) {
    if (!(error instanceof JsonSyntaxError)) throw error
    onMalformed?.(json)
    const { problem, fix } = (await runYielding(findJsonProblem(json))) ?? { problem: '', fix: '' }
    const message = `We could not parse the JSON body of your request. ${problem} ${fix}`
    throw new ServiceError('invalid_request', message.trim(), { cause: error })
  }
}

const NO_BODY = 'The request has no body. Send a JSON object.'
const CHARSETS: ReadonlySet<string> = new Set(['utf-8', 'utf8', 'us-ascii'])

function refuseOtherTypes(given: string): void {
  const [type, ...parameters] = given.split(';').map((part) => part.trim().toLowerCase())
  if (type !== 'application/json' && !(type?.startsWith('application/') && type.endsWith('+json'))) {
    const got = type ? `but got ${type.slice(0, 100)}` : 'but none was given'
    throw new ServiceError('unsupported_media_type', `Expected Content-Type application/json, ${got}.`)
  }
  const charset = parameters.find((parameter) => parameter.startsWith('charset='))?.slice('charset='.length)
  if (charset === undefined || CHARSETS.has(charset.replaceAll('"', ''))) return
  throw new ServiceError('unsupported_media_type', 'The charset of the body must be utf-8.')
}

function invalid(message: string): ServiceError {
  return new ServiceError('invalid_request', message)
}

const BLOCK_BYTES_MIN = 4 * 1024
const BLOCK_BYTES_MAX = 1024 * 1024
const CODINGS_MAX = 3
/** Base-2 logarithm of the maximum zstd window, which is 8 MiB (RFC 9659). The library's default is 128 MiB. */
const ZSTD_WINDOW_LOG_MAX = 23
/** Undefined in Node.js before 22.15. There, a body with the content encoding zstd is refused as unsupported. */
const { createZstdDecompress } = zlib as Partial<typeof zlib>

const INFLATERS: ReadonlyMap<string, () => Transform> = new Map<string, () => Transform>([
  ['gzip', () => zlib.createGunzip()],
  ['x-gzip', () => zlib.createGunzip()],
  ['deflate', () => zlib.createInflate()],
  ['br', () => zlib.createBrotliDecompress()],
  ...(createZstdDecompress ? [['zstd', () => openZstd(createZstdDecompress)] as const] : []),
])

interface BodyBounds {
  readonly bytesMax: number
  /**
   * Interval in ms at which progress is checked. A body is refused after one to two intervals without a received byte.
   */
  readonly stallMs: number
}

/**
 * Reads and decompresses the whole body of a request. If the body is refused, then the error can be sent at once, and
 * the remaining bytes are discarded while they arrive. If these bytes take too long, then
 * services/ingress/http/server.ts cuts the connection.
 *
 * @param onGrowth Called with the number of bytes so far, after each piece. An error that the callback throws refuses
 * the body
 * @throws ServiceError `request_too_large`, `unsupported_media_type`, `request_timeout`, `invalid_request`
 */
async function readBytes(req: IncomingMessage, bounds: BodyBounds, onGrowth: (bytes: number) => void): Promise<Buffer> {
  if (Number(req.headers['content-length']) > bounds.bytesMax) throw tooLarge(bounds.bytesMax)
  const encoding = req.headers['content-encoding']
  const inflaters = encoding ? openInflaters(encoding) : []
  // Between pipe() and collect() there must be no await. Otherwise a decompressor would stay piped to a request that is
  // no longer read.
  const stages: Readable[] = [req]
  for (const inflater of inflaters) stages.push((stages.at(-1) ?? req).pipe(inflater))
  try {
    const blocks = await collect(req, stages, bounds, onGrowth)
    return await blocks.join()
  } finally {
    for (const [index, inflater] of inflaters.entries()) {
      stages[index]?.unpipe(inflater)
      inflater.destroy()
    }
    req.resume()
  }
}

/**
 * Removes the byte order mark that editors and PowerShell write before UTF-8 text. RFC 8259 §8.1 allows parsers to
 * ignore it.
 */
export function withoutByteOrderMark(text: Buffer): Buffer {
  return text[0] === 0xef && text[1] === 0xbb && text[2] === 0xbf ? text.subarray(3) : text
}

function openInflaters(encoding: string): Transform[] {
  const codings = encoding
    .toLowerCase()
    .split(',')
    .map((coding) => coding.trim())
    .filter((coding) => coding !== '' && coding !== 'identity')
  const opens = codings.map((coding) => INFLATERS.get(coding))
  if (codings.length <= CODINGS_MAX && opens.every((open) => open !== undefined)) {
    return opens.toReversed().map((open) => open())
  }
  const names = [...INFLATERS.keys()].filter((name) => name !== 'x-gzip').join(', ')
  const message = `Content-Encoding must be ${names} or identity, or a list of at most ${CODINGS_MAX} of these.`
  throw new ServiceError('unsupported_media_type', message)
}

function openZstd(create: typeof zlib.createZstdDecompress): Transform {
  return create({ params: { [zlib.constants.ZSTD_d_windowLogMax]: ZSTD_WINDOW_LOG_MAX } })
}

async function collect(
  req: IncomingMessage,
  stages: readonly Readable[],
  { bytesMax, stallMs }: BodyBounds,
  onGrowth: (bytes: number) => void,
): Promise<ByteBlocks> {
  const { promise, resolve, reject } = Promise.withResolvers<void>()
  const blocks = new ByteBlocks()
  const { socket } = req
  const source = stages.at(-1) ?? req
  // Decompressed bytes count as progress too. Otherwise a received body that takes long to decompress would count as
  // stalled.
  const progress = () => socket.bytesRead + blocks.bytes
  let seen = progress()
  const stall = setInterval(() => {
    const isStalled = progress() === seen && !req.complete
    if (isStalled)
      reject(new ServiceError('request_timeout', 'The upload of the body stalled. Send the request again.'))
    seen = progress()
  }, stallMs)
  const onData = (chunk: Buffer) => {
    const bytes = blocks.bytes + chunk.length
    if (bytes > bytesMax) return reject(tooLarge(bytesMax))
    try {
      onGrowth(bytes)
    } catch (error) {
      return reject(error)
    }
    blocks.push(chunk)
  }
  // The compressed body has the same size limit as the decompressed body. Otherwise a body of empty gzip members, which produce no output, could
  // be endless.
  const counters = stages.slice(0, -1).map(() => {
    let bytes = 0
    return (chunk: Buffer) => {
      bytes += chunk.length
      if (bytes > bytesMax) reject(tooLarge(bytesMax))
    }
  })
  // If the connection is cut, then the request emits `close` without `end`. After the request was answered, only the
  // socket emits `close`, so the socket is watched too.
  const onClose = () => {
    if (!req.complete) reject(new ServiceError('request_timeout', 'The body ended before it was complete.'))
  }
  const onError = (stage: Readable, cause: Error) => {
    if (stage === req) return onClose()
    const message = 'The body could not be decompressed: its bytes do not match the Content-Encoding of the request.'
    reject(new ServiceError('invalid_request', message, { cause }))
  }
  source.on('data', onData).on('end', resolve)
  for (const stage of stages) stage.on('error', (cause) => onError(stage, cause))
  for (const [index, count] of counters.entries()) stages[index]?.on('data', count)
  req.on('close', onClose)
  // Pipelined requests on one connection add their listeners to the same socket, so Node's limit on listeners is
  // removed.
  socket.setMaxListeners(0).on('close', onClose)
  if (socket.destroyed) onClose()
  try {
    await promise
    return blocks
  } finally {
    clearInterval(stall)
    for (const [index, count] of counters.entries()) stages[index]?.off('data', count)
    source.off('data', onData).off('end', resolve)
    req.off('close', onClose)
    socket.off('close', onClose)
  }
}

function tooLarge(bytesMax: number): ServiceError {
  return new ServiceError('request_too_large', `The body is larger than the ${bytesMax} bytes the service accepts.`)
}

/**
 * Collects bytes, and uses at most about twice their size of memory.
 *
 * Small pieces are copied into larger blocks. A separate Buffer per piece costs about 100 bytes even for one byte, and
 * keeps the whole 64 KiB block of its socket read in memory.
 */
export class ByteBlocks {
  bytes = 0
  #blocks: Buffer[] = []
  #used = 0

  push(piece: Buffer): void {
    if (this.bytes > 0) this.#copy(piece)
    else {
      this.#blocks = [piece]
      this.#used = piece.length
    }
    this.bytes += piece.length
  }

  async join(): Promise<Buffer> {
    const [only, second] = this.#blocks
    if (only && !second) return only.subarray(0, this.bytes)
    return await runYielding(concatBytes(this.#blocks, this.bytes))
  }

  /**
   * Joins all bytes and empties this object. Does not yield to the event loop, because joining the largest body takes only
   * a few milliseconds.
   */
  take(): Buffer {
    const blocks = this.#blocks
    this.#blocks = []
    const [only, second] = blocks
    return only && !second ? only.subarray(0, this.bytes) : runToEnd(concatBytes(blocks, this.bytes))
  }

  #copy(piece: Buffer): void {
    const last = this.#blocks.at(-1)
    const copied = last ? piece.copy(last, this.#used) : 0
    this.#used += copied
    if (copied === piece.length) return
    const rest = piece.subarray(copied)
    const size = Math.max(rest.length, Math.min(BLOCK_BYTES_MAX, Math.max(BLOCK_BYTES_MIN, this.bytes)))
    const block = Buffer.allocUnsafeSlow(size)
    this.#blocks.push(block)
    this.#used = rest.copy(block)
  }
}

export type WireFormat = 'openai' | 'anthropic'

export function errorBody(error: ServiceError, format: WireFormat, requestId: string): object {
  return format === 'anthropic' ? messagesErrorBody(error, requestId) : openaiErrorBody(error)
}

export function statusOf(error: ServiceError, format: WireFormat): number {
  return format === 'anthropic' ? messagesStatus(error) : openaiStatus(error)
}

/**
 * Sends an error response. Must be called before any other part of the response was sent.
 *
 * @param isFinal True for a stored failure. A repeated request would receive the failure again, so a header prevents
 * retries by SDKs
 */
export function sendError(
  res: ServerResponse,
  error: ServiceError,
  format: WireFormat,
  requestId: string,
  isFinal = false,
): void {
  const body = JSON.stringify(errorBody(error, format, requestId))
  res.writeHead(statusOf(error, format), {
    ...errorHeaders(error, isFinal, retryMsMaxOf(res.req.headers['user-agent'])),
    'content-type': 'application/json',
    'content-length': Buffer.byteLength(body),
  })
  res.end(body)
}

/**
 * Returns the API format of a path, or of a request. SDKs of both vendors call paths with the segment `messages` or `models`. For these paths, the
 * header `anthropic-version` of a request decides, because Anthropic SDKs always send it. Every other path has one format
 * (docs/internals/protocol.md, Errors).
 */
export function formatOf(path: string, headers: IncomingHttpHeaders = {}): WireFormat {
  if (headers['anthropic-version'] !== undefined && /(^|\/)(messages|models)(\/|$)/.test(path)) return 'anthropic'
  return path === '/v1/messages' || path.startsWith('/v1/messages/') ? 'anthropic' : 'openai'
}

/** Maximum `Retry-After` that the known SDKs obey, in ms. If the value is longer, then SDKs use their own retry delay. */
const SDK_RETRY_AFTER_MS_MAX = 60_000
const SDKS = /openai|anthropic|ai-sdk|litellm/i
export const CLIENT_RETRY_AFTER_MS_MAX = 3_600_000

/**
 * Returns the maximum `Retry-After` for a caller, in ms: 60 s for known SDKs, and an hour for other clients. RFC 9110
 * §10.2.3 has no maximum.
 */
export function retryMsMaxOf(userAgent: string | undefined): number {
  return SDKS.test(userAgent ?? '') ? SDK_RETRY_AFTER_MS_MAX : CLIENT_RETRY_AFTER_MS_MAX
}
