import type { LookupAddress } from 'node:dns'
import type { IncomingHttpHeaders, IncomingMessage } from 'node:http'
import { request as requestHttps } from 'node:https'
import type { LookupFunction } from 'node:net'
import { promisify } from 'node:util'
import { brotliDecompress, gunzip, inflate } from 'node:zlib'
import { ServiceError } from '#shared/error.ts'
import { request as requestHttp } from '#shared/process/node-http.ts'
import { checkUrl, hostOf, type OutboundPolicy, type Resolve, resolveAllowed } from './guard.ts'

/** How an address that a user chose is called. */
export interface OutboundCall {
  readonly headers: Readonly<Record<string, string>>
  readonly policy: OutboundPolicy
  /** For everything: name, connection, request and answer. */
  readonly timeoutMs: number
  /** Bytes of the answer's body that are read, also after decompression; at more the connection is cut. */
  readonly bytesMax: number
  /** Ends the request early. */
  readonly signal: AbortSignal
  /** How names are resolved; default: the system's way. */
  readonly resolve?: Resolve
}

/** One request to an address that a user chose. */
export interface OutboundRequest extends OutboundCall {
  readonly body: string
}

/** What a call asks for. */
export interface OutboundMethod {
  readonly method: 'GET' | 'POST' | 'DELETE'
  readonly body?: string | undefined
}

/** A page as it was read. */
export interface OutboundPage extends OutboundAnswer {
  readonly body: Buffer
}

/** The head of an answer; its body was read and dropped. */
export interface OutboundAnswer {
  readonly status: number
  readonly headers: IncomingHttpHeaders
}

/**
 * Posts to a URL that a user chose, if the guard lets it.
 *
 * The name is resolved once, here, and the socket connects to what was checked, so that a second answer of the DNS cannot
 * lead elsewhere; TLS still asks for the name. Each call has a connection of its own, and proxies of the environment are
 * not used. Interim answers (1xx) are passed over, as RFC 9110 §15.2 demands even for those that nothing asked for; undici
 * ends the connection at a `100 Continue`, so that the client here is Node's. A redirect is an answer like any other: whoever wants to follow one calls again with its target, which is
 * then checked and resolved anew.
 *
 * @throws ServiceError `invalid_value` (refused by the guard), `upstream_error`, `upstream_timeout`, with a message that
 *   may be shown to the user; the signal's reason when it aborts
 */
export async function postOutbound(text: string, options: OutboundRequest): Promise<OutboundAnswer> {
  return await callOutbound(text, { ...options, method: 'POST' }, async (answer) => {
    await dropBody(answer, options.bytesMax)
    return { status: answer.statusCode ?? 0, headers: answer.headers }
  })
}

/**
 * Reads a page that a user or another page chose, if the guard lets it. As for {@link postOutbound}, a redirect is an answer.
 *
 * @throws ServiceError `invalid_value`, `upstream_error`, `upstream_timeout`, `request_too_large`; the signal's reason
 */
export async function getOutbound(text: string, options: OutboundCall): Promise<OutboundPage> {
  const headers = { ...options.headers, 'accept-encoding': 'gzip, deflate, br' }
  return await callOutbound(text, { ...options, headers, method: 'GET' }, async (answer) => {
    const body = await readBody(answer, answer.headers['content-encoding'], options.bytesMax)
    return { status: answer.statusCode ?? 0, headers: answer.headers, body }
  })
}

/**
 * Calls an address as client libraries do by their `fetch`, if the guard lets it: the answer's body is read while it comes. All of
 * it has `timeoutMs`, and its body ends with `request_too_large` after `bytesMax`. As for {@link postOutbound}, a redirect is an
 * answer; one that is packed is refused, since nobody asked for that.
 *
 * @throws ServiceError `invalid_value`, `upstream_error`, `upstream_timeout`; the signal's reason. The body throws the same
 */
export async function streamOutbound(text: string, options: OutboundCall & OutboundMethod): Promise<Response> {
  const { promise, resolve, reject } = Promise.withResolvers<Response>()
  const headers = { ...options.headers, 'accept-encoding': 'identity' }
  const call = callOutbound(text, { ...options, headers }, async (answer, signal) => {
    if ((answer.headers['content-encoding'] ?? 'identity') !== 'identity')
      throw new ServiceError('upstream_error', 'The host packs its answer in an unknown way.')
    const { readable, writable } = new TransformStream<Uint8Array, Uint8Array>()
    resolve(responseOf(answer.statusCode ?? 0, answer.headers, readable))
    await ReadableStream.from(upTo(options.bytesMax, answer)).pipeTo(writable, { signal })
  })
  // The answer may be there before its body fails: whoever reads that hears of it.
  call.catch(reject)
  return await promise
}

/** By the statuses of the Fetch standard that have no body. */
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

/** Makes one call on a connection of its own, to an address that was checked. */
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
    throw new ServiceError('upstream_timeout', `The host did not answer within ${timeoutMs} ms.`, { cause: error })
  } finally {
    answer?.destroy()
  }
}

/** Sends a request and awaits the head of its answer. */
async function answerOf(
  url: URL,
  addresses: readonly LookupAddress[],
  { method, headers, body }: OutboundCall & OutboundMethod,
  signal: AbortSignal,
): Promise<IncomingMessage> {
  const send = url.protocol === 'https:' ? requestHttps : requestHttp
  const request = send(url, { method, headers, signal, agent: false, lookup: lookupAmong(addresses) })
  const { promise, resolve, reject } = Promise.withResolvers<IncomingMessage>()
  const closed = new ServiceError('upstream_error', 'The host closed the connection without an answer.')
  request.once('response', resolve).on('error', reject)
  // A protocol switch that nothing asked for ends the request with neither of these.
  request.once('close', () => reject(closed))
  request.end(body)
  return await promise
}

/** Answers a socket's question for addresses with those that were checked. */
function lookupAmong(addresses: readonly LookupAddress[]): LookupFunction {
  return (_host, { all }, callback) => {
    const [first] = addresses
    if (all) callback(null, [...addresses])
    else callback(null, first?.address ?? '', first?.family)
  }
}

/** The answer counts from its head on: what happens to its body changes nothing. */
async function dropBody(body: AsyncIterable<Buffer>, bytesMax: number): Promise<void> {
  let bytes = 0
  try {
    for await (const chunk of body) {
      bytes += chunk.length
      if (bytes > bytesMax) return
    }
  } catch {
    // Cut off, or too slow for the deadline.
  }
}

/** All of a body, unpacked. @throws ServiceError `request_too_large`, `upstream_error` when it is not packed as it says */
async function readBody(
  body: AsyncIterable<Buffer>,
  encoding: string | string[] | undefined,
  bytesMax: number,
): Promise<Buffer> {
  const chunks: Buffer[] = []
  let bytes = 0
  for await (const chunk of body) {
    bytes += chunk.length
    if (bytes > bytesMax) throw tooLarge(bytesMax)
    chunks.push(chunk)
  }
  const packed = Buffer.concat(chunks)
  const name = typeof encoding === 'string' ? encoding.trim().toLowerCase() : (encoding?.join(',') ?? '')
  if (packed.length === 0 || name === '' || name === 'identity') return packed
  const unpack = UNPACK[name]
  if (!unpack) throw new ServiceError('upstream_error', 'The host packs its answer in an unknown way.')
  return await unpack(packed, { maxOutputLength: bytesMax }).catch((error: NodeJS.ErrnoException) => {
    if (error.code === 'ERR_BUFFER_TOO_LARGE') throw tooLarge(bytesMax)
    throw new ServiceError('upstream_error', 'The answer of the host is damaged.', { cause: error })
  })
}

/** By the names of RFC 9110 §8.4.1; they work in the thread pool. */
const UNPACK: Readonly<Record<string, (packed: Buffer, options: { maxOutputLength: number }) => Promise<Buffer>>> = {
  gzip: promisify<Buffer, object, Buffer>(gunzip),
  'x-gzip': promisify<Buffer, object, Buffer>(gunzip),
  deflate: promisify<Buffer, object, Buffer>(inflate),
  br: promisify<Buffer, object, Buffer>(brotliDecompress),
}

function tooLarge(bytesMax: number): ServiceError {
  return new ServiceError('request_too_large', `The answer of the host has more than ${bytesMax} bytes.`)
}

/** Leaves a promise that does not listen to the signal behind, such as a name server that does not answer. */
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
