import type { LookupAddress } from 'node:dns'
import type { IncomingHttpHeaders, IncomingMessage } from 'node:http'
import { request as requestHttps } from 'node:https'
import type { LookupFunction } from 'node:net'
import type { Transform } from 'node:stream'
import { pipeline } from 'node:stream/promises'
import { constants, createBrotliDecompress, createGunzip, createInflate } from 'node:zlib'
import { ServiceError } from '#shared/lib/error.ts'
import { request as requestHttp } from '#shared/process/node-http.ts'
import { checkUrl, hostOf, type OutboundPolicy, type Resolve, resolveAllowed } from './guard.ts'

export interface OutboundCall {
  readonly headers: Readonly<Record<string, string>>
  readonly policy: OutboundPolicy
  /** Timeout in ms for the whole call, from DNS to the end of the answer. */
  readonly timeoutMs: number
  /** Maximum bytes of the answer's body, before and after decompression. Beyond this size, the connection is closed. */
  readonly bytesMax: number
  readonly signal: AbortSignal
  readonly resolve?: Resolve
}

export interface OutboundRequest extends OutboundCall {
  readonly body: string
}

export interface OutboundMethod {
  readonly method: 'GET' | 'POST' | 'DELETE'
  readonly body?: string | undefined
}

export interface PageCall extends OutboundCall {
  /** Returns the number of bytes of the answer that the caller needs. Reading stops after this number. Default: all. */
  readonly usedBytesOf?: (answer: OutboundAnswer) => number
}

export interface OutboundPage extends OutboundAnswer {
  readonly body: Buffer
}

export interface OutboundAnswer {
  readonly status: number
  readonly headers: IncomingHttpHeaders
}

/**
 * Posts to a URL that a user has chosen, if the guard permits it.
 *
 * To prevent DNS rebinding, the name is resolved once, and the socket connects to the addresses that were checked. A second DNS answer therefore
 * cannot redirect the call. TLS still verifies the name. Each call has its own connection, and proxies of the environment are ignored.
 *
 * Interim answers (1xx) are skipped, as RFC 9110 §15.2 requires. undici closes the connection at an unrequested `100 Continue`, so this client uses
 * `node:http`. A redirect is returned as an answer. To follow it, the caller calls again with its target, which is then checked.
 *
 * @throws ServiceError `invalid_value` (refused by the guard), `upstream_error`, `upstream_timeout`, with a message that may be shown to the user,
 * or the abort reason of the signal
 */
export async function postOutbound(text: string, options: OutboundRequest): Promise<OutboundAnswer> {
  return await callOutbound(text, { ...options, method: 'POST' }, async (answer) => {
    await dropBody(answer, options.bytesMax)
    return { status: answer.statusCode ?? 0, headers: answer.headers }
  })
}

/**
 * Reads a page if the guard permits the URL. A redirect is returned as an answer, so that the caller can check its target.
 *
 * @throws ServiceError `invalid_value`, `upstream_error`, `upstream_timeout`, `request_too_large`, or the abort reason of the signal
 */
export async function getOutbound(text: string, options: PageCall): Promise<OutboundPage> {
  const requestHeaders = { ...options.headers, 'accept-encoding': 'gzip, deflate, br' }
  return await callOutbound(text, { ...options, headers: requestHeaders, method: 'GET' }, async (message) => {
    const { statusCode: status = 0, headers } = message
    const usedBytes = options.usedBytesOf?.({ status, headers }) ?? Number.POSITIVE_INFINITY
    const body = usedBytes > 0 ? await readBody(message, options.bytesMax, usedBytes) : Buffer.alloc(0)
    return { status, headers, body }
  })
}

/**
 * A `fetch` for client libraries that checks each URL with the guard. The body of the answer is a stream. `timeoutMs` covers the body too, and the
 * stream fails with `request_too_large` after `bytesMax`. A redirect is returned as an answer. A compressed answer is refused, because the request
 * asks for an uncompressed one.
 *
 * @throws ServiceError `invalid_value`, `upstream_error`, `upstream_timeout`, or the abort reason of the signal. Reading the body throws these errors
 * too
 */
export async function streamOutbound(text: string, options: OutboundCall & OutboundMethod): Promise<Response> {
  const { promise, resolve, reject } = Promise.withResolvers<Response>()
  const headers = { ...options.headers, 'accept-encoding': 'identity' }
  const call = callOutbound(text, { ...options, headers }, async (answer, signal) => {
    if ((answer.headers['content-encoding'] ?? 'identity') !== 'identity')
      throw new ServiceError('upstream_error', 'Unsupported Content-Encoding from the host.')
    const { readable, writable } = new TransformStream<Uint8Array, Uint8Array>()
    resolve(responseOf(answer.statusCode ?? 0, answer.headers, readable))
    await ReadableStream.from(upTo(options.bytesMax, answer)).pipeTo(writable, { signal })
  })
  // An error before the response rejects this promise. A later error reaches the reader of the body, and `reject` then has no effect.
  call.catch(reject)
  return await promise
}

function responseOf(status: number, headers: IncomingHttpHeaders, body: ReadableStream): Response {
  const isEmpty = status === 204 || status === 205 || status === 304
  const lines = Object.entries(headers).flatMap(([name, value]) => [value ?? []].flat().map((one) => [name, one]))
  return new Response(isEmpty ? null : body, { status, headers: lines as [string, string][] })
}

async function* upTo(bytesMax: number, body: AsyncIterable<Buffer>): AsyncGenerator<Buffer> {
  let bytes = 0
  for await (const chunk of body) {
    bytes += chunk.length
    if (bytes > bytesMax) throw tooLarge(bytesMax)
    yield chunk
  }
}

async function callOutbound<T>(
  text: string,
  options: OutboundCall & OutboundMethod,
  read: (answer: IncomingMessage, signal: AbortSignal) => Promise<T>,
): Promise<T> {
  const { policy, timeoutMs } = options
  const url = checkUrl(text, policy)
  const signal = AbortSignal.any([options.signal, AbortSignal.timeout(timeoutMs)])
  let answer: IncomingMessage | undefined
  try {
    signal.throwIfAborted()
    const addresses = await unlessAborted(resolveAllowed(hostOf(url), policy, options.resolve), signal)
    answer = await answerOf(url, addresses, options, signal)
    return await read(answer, signal)
  } catch (error) {
    if (options.signal.aborted) throw options.signal.reason
    if (!signal.aborted) throw failureOf(error)
    throw new ServiceError('upstream_timeout', `The host did not respond within ${timeoutMs} ms.`, { cause: error })
  } finally {
    answer?.destroy()
  }
}

async function answerOf(
  url: URL,
  addresses: readonly LookupAddress[],
  { method, headers, body }: OutboundCall & OutboundMethod,
  signal: AbortSignal,
): Promise<IncomingMessage> {
  const send = url.protocol === 'https:' ? requestHttps : requestHttp
  const request = send(url, { method, headers, signal, agent: false, lookup: lookupAmong(addresses) })
  const { promise, resolve, reject } = Promise.withResolvers<IncomingMessage>()
  const closed = new ServiceError('upstream_error', 'The host closed the connection without a response.')
  request.once('response', resolve).on('error', reject)
  // If a server switches protocols unasked, then Node emits neither `response` nor `error`. The wait therefore also ends at `close`.
  request.once('close', () => reject(closed))
  request.end(body)
  return await promise
}

function lookupAmong(addresses: readonly LookupAddress[]): LookupFunction {
  return (_host, { all }, callback) => {
    const [first] = addresses
    if (all) callback(null, [...addresses])
    else callback(null, first?.address ?? '', first?.family)
  }
}

/** Reads and discards a body. Errors are ignored, because the caller needs only status and headers. */
async function dropBody(body: AsyncIterable<Buffer>, bytesMax: number): Promise<void> {
  let bytes = 0
  try {
    for await (const chunk of body) {
      bytes += chunk.length
      if (bytes > bytesMax) return
    }
  } catch {
    // The connection closed early, or the timeout elapsed. Both are ignored, because the body is discarded anyway.
  }
}

async function readBody(answer: IncomingMessage, bytesMax: number, usedBytes: number): Promise<Buffer> {
  const chunks: Buffer[] = []
  let bytes = 0
  for await (const chunk of decompressed(answer, bytesMax)) {
    chunks.push(chunk)
    bytes += chunk.length
    if (bytes > usedBytes) break
  }
  return Buffer.concat(chunks)
}

async function* decompressed(answer: IncomingMessage, bytesMax: number): AsyncGenerator<Buffer> {
  const name = (answer.headers['content-encoding'] ?? '').trim().toLowerCase()
  const received = upTo(bytesMax, answer)
  if (name === '' || name === 'identity') return yield* received
  const decoder = DECODERS[name]?.()
  if (!decoder) throw new ServiceError('upstream_error', 'Unsupported Content-Encoding from the host.')
  try {
    // The rejection is ignored, because reading from the decoder throws the same error.
    pipeline(received, decoder).catch(() => {})
    yield* upTo(bytesMax, decoder)
  } catch (error) {
    if (error instanceof ServiceError || answer.errored) throw error
    throw new ServiceError('upstream_error', `Could not decompress the response body as ${name}.`, { cause: error })
  }
}

/** Options that accept incomplete and empty compressed data, as browsers do. Missing data is detected earlier, by the length of the body. */
const ZLIB = { finishFlush: constants.Z_SYNC_FLUSH }
const BROTLI = { finishFlush: constants.BROTLI_OPERATION_FLUSH }

const DECODERS: Readonly<Record<string, () => Transform>> = {
  gzip: () => createGunzip(ZLIB),
  'x-gzip': () => createGunzip(ZLIB),
  deflate: () => createInflate(ZLIB),
  br: () => createBrotliDecompress(BROTLI),
}

function tooLarge(bytesMax: number): ServiceError {
  return new ServiceError('request_too_large', `The response of the host has more than ${bytesMax} bytes.`)
}

/** Waits for a promise until the signal aborts. For promises that cannot be aborted, such as a DNS lookup without an answer. */
async function unlessAborted<T>(promise: Promise<T>, signal: AbortSignal): Promise<T> {
  const { promise: aborted, reject } = Promise.withResolvers<never>()
  const onAbort = () => reject(signal.reason)
  signal.addEventListener('abort', onAbort, { once: true })
  try {
    return await Promise.race([promise, aborted])
  } finally {
    signal.removeEventListener('abort', onAbort)
  }
}

function failureOf(error: unknown): ServiceError {
  if (error instanceof ServiceError) return error
  const code = (error as { code?: unknown } | null)?.code
  const why = typeof code === 'string' ? ` (${code})` : ''
  return new ServiceError('upstream_error', `The connection to the host failed${why}.`, { cause: error })
}
