import type { LookupAddress } from 'node:dns'
import type { IncomingHttpHeaders } from 'node:http'
import type { LookupFunction } from 'node:net'
import { Agent, request } from 'undici'
import { ServiceError } from '#shared/error.ts'
import { checkUrl, hostOf, type OutboundPolicy, type Resolve, resolveAllowed } from './guard.ts'

/** One request to an address that a user chose. */
export interface OutboundRequest {
  readonly headers: Readonly<Record<string, string>>
  readonly body: string
  readonly policy: OutboundPolicy
  /** For everything: name, connection, request and answer. */
  readonly timeoutMs: number
  /** Bytes of the answer's body that are read; at more the connection is cut. */
  readonly bytesMax: number
  /** Ends the request early. */
  readonly signal: AbortSignal
  /** How names are resolved; default: the system's way. */
  readonly resolve?: Resolve
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
 * not used. A redirect is an answer like any other: whoever wants to follow one calls again with its target, which is
 * then checked and resolved anew.
 *
 * @throws ServiceError `invalid_value` (refused by the guard), `upstream_error`, `upstream_timeout`, with a message that
 *   may be shown to the user; the signal's reason when it aborts
 */
export async function postOutbound(text: string, options: OutboundRequest): Promise<OutboundAnswer> {
  const { policy, timeoutMs } = options
  const url = checkUrl(text, policy)
  const signal = AbortSignal.any([options.signal, AbortSignal.timeout(timeoutMs)])
  try {
    signal.throwIfAborted()
    const addresses = await unlessAborted(resolveAllowed(hostOf(url), policy, options.resolve), signal)
    return await postTo(addresses, url, options, signal)
  } catch (error) {
    if (options.signal.aborted) throw options.signal.reason
    if (!signal.aborted) throw failureOf(error)
    throw new ServiceError('upstream_timeout', `The host did not answer within ${timeoutMs} ms.`, { cause: error })
  }
}

async function postTo(
  addresses: readonly LookupAddress[],
  url: URL,
  { headers, body, timeoutMs, bytesMax }: OutboundRequest,
  signal: AbortSignal,
): Promise<OutboundAnswer> {
  const agent = new Agent({
    connect: { lookup: lookupAmong(addresses), timeout: timeoutMs },
    allowH2: false,
    // The signal keeps the time.
    headersTimeout: 0,
    bodyTimeout: 0,
  })
  try {
    const answer = await request(url, { dispatcher: agent, method: 'POST', headers, body, signal })
    await dropBody(answer.body, bytesMax)
    return { status: answer.statusCode, headers: answer.headers }
  } finally {
    await agent.destroy()
  }
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
