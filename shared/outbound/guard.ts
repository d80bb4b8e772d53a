/**
 * Guard against server-side request forgery (SSRF): decides which addresses chosen by a user Sluice may call.
 *
 * A URL alone does not show where its name leads, so the guard has two steps.
 *
 * 1. {@link checkUrl} checks the text of the URL when a request is accepted, and again before each call.
 * 2. {@link resolveAllowed} resolves the name once. Sluice connects only to the returned addresses (`outbound.ts`).
 *
 * WHATWG's parser normalizes every notation of an IPv4 address (decimal, octal, hex, short, full-width digits) before the check. A NAT64 prefix that
 * a deployment chose inside public space cannot be detected. Such a network must not route it to private addresses (RFC 6052 §3.1).
 */
import type { LookupAddress } from 'node:dns'
import { lookup } from 'node:dns/promises'
import { isIP } from 'node:net'
import { ServiceError } from '#shared/error.ts'
import { reachOf } from './address.ts'

export interface OutboundPolicy {
  /** For development: permits http, loopback and private networks, but never metadata services. */
  readonly allowPrivate: boolean
}

/** Resolves a name to all of its addresses. @throws Error if there are none */
export type Resolve = (host: string) => Promise<readonly LookupAddress[]>

const URL_CHARS_MAX = 2_048
/** Lower ports belong to other protocols, many of which could interpret an HTTP request as commands. */
const PORT_MIN = 1_024
const WEB_PORTS = new Set(['', '80', '443'])
/** Hint that is added if the policy could permit the URL. */
const IN_DEVELOPMENT = ' For development, set WEBHOOK_ALLOW_PRIVATE=true where the service runs.'
/** Names that never mean a public host (RFC 6761, 6762, 8375, and ICANN's resolution). */
const PRIVATE_NAME = /(^|\.)(localhost|local|internal|home\.arpa)$/

/**
 * Checks a URL without DNS.
 * 1. The scheme is https, without credentials.
 * 2. The port is 80, 443 or at least 1024.
 * 3. The host is not a private name or a non-public address.
 *
 * @throws ServiceError `invalid_value`
 */
export function checkUrl(text: string, policy: OutboundPolicy, param: string | null = null): URL {
  const refuse = (message: string) => new ServiceError('invalid_value', message, { param })
  const url = text.length <= URL_CHARS_MAX ? URL.parse(text) : null
  if (!url) throw refuse(`Expected a URL of at most ${URL_CHARS_MAX} characters.`)
  const isScheme = url.protocol === 'https:' || (url.protocol === 'http:' && policy.allowPrivate)
  if (!isScheme) {
    throw refuse(`Expected a URL that begins with https://.${url.protocol === 'http:' ? IN_DEVELOPMENT : ''}`)
  }
  if (url.username || url.password) throw refuse('Expected a URL without a user name and password.')
  if (!WEB_PORTS.has(url.port) && Number(url.port) < PORT_MIN) {
    throw refuse('Expected a URL with port 80, 443 or one from 1024 on.')
  }
  if (!isHostAllowed(hostOf(url), policy)) {
    const hint = isHostAllowed(hostOf(url), { allowPrivate: true }) ? IN_DEVELOPMENT : ''
    throw refuse(`Expected a URL whose host is on the public internet.${hint}`)
  }
  return url
}

/**
 * Checks the URL of a webhook at submission, without DNS; the address is checked before each call.
 *
 * @throws ServiceError `invalid_value`, param `webhook.url`
 */
export function checkWebhookUrl(url: string, policy: OutboundPolicy): void {
  checkUrl(url, policy, 'webhook.url')
}

/** Host of a URL in the form of resolvers and sockets: an IPv6 address has no brackets. */
export function hostOf(url: URL): string {
  return url.hostname.replace(/^\[|\]$/g, '')
}

/**
 * Resolves a host once and returns the permitted addresses. A literal address resolves to itself.
 *
 * @throws ServiceError `invalid_value` if none is permitted. The message is that of an unknown name, so that callers cannot probe which names exist
 * in the internal network.
 */
export async function resolveAllowed(
  host: string,
  policy: OutboundPolicy,
  resolve: Resolve = resolveAll,
): Promise<LookupAddress[]> {
  const family = isIP(host)
  const refuse = (cause?: unknown) => new ServiceError('invalid_value', 'The host has no public address.', { cause })
  const found = await (family
    ? [{ address: host, family }]
    : resolve(host).catch((cause) => Promise.reject(refuse(cause))))
  const allowed = found.filter(({ address }) => isReachAllowed(address, policy))
  if (allowed.length === 0) throw refuse()
  return allowed
}

const STRICT: OutboundPolicy = { allowPrivate: false }

/** False if the host alone, without DNS, shows that the URL is not public. */
export function mayBePublic(url: URL): boolean {
  return isHostAllowed(hostOf(url), STRICT)
}

/**
 * Checks a host before its URL is sent to a server that resolves the name again. Every address must be public, because that server may use any of
 * them. Later DNS changes are not detected.
 *
 * @param mayBeUnknown Accept a name without an address here: only the network of that server may know it.
 * @throws ServiceError `invalid_value`, with the same message for an unknown name
 */
export async function requirePublicHost(
  host: string,
  resolve: Resolve = resolveAll,
  mayBeUnknown = false,
): Promise<void> {
  const addresses = isIP(host) ? [{ address: host }] : await resolve(host).catch(() => [])
  if (mayBeUnknown && addresses.length === 0) return
  const isPublic = addresses.length > 0 && addresses.every(({ address }) => isReachAllowed(address, STRICT))
  if (!isPublic) throw new ServiceError('invalid_value', `The host '${host}' has no public address.`)
}

function resolveAll(host: string): Promise<LookupAddress[]> {
  return lookup(host, { all: true })
}

function isHostAllowed(host: string, policy: OutboundPolicy): boolean {
  if (isIP(host)) return isReachAllowed(host, policy)
  const name = host.replace(/\.+$/, '')
  if (name === '') return false
  // The resolver completes a name without dots with the domains of the internal network.
  return policy.allowPrivate || (name.includes('.') && !PRIVATE_NAME.test(name))
}

function isReachAllowed(address: string, policy: OutboundPolicy): boolean {
  const reach = reachOf(address)
  return reach === 'public' || (reach === 'private' && policy.allowPrivate)
}
