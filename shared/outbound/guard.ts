/**
 * The guard against requests forged through us (SSRF): which addresses that a user chose we may call.
 *
 * Two steps, because a name says nothing about where it leads. {@link checkUrl} looks at the URL alone, when a request is
 * accepted and again before each call; {@link resolveAllowed} resolves the name once and gives the addresses that may be
 * connected to, and only these are (`outbound.ts`).
 *
 * WHATWG's parser turns every notation of an IPv4 address (decimal, octal, hex, short, full-width digits) into the dotted
 * one before it is looked at. A deployment's own NAT64 prefix inside public space cannot be told from other addresses:
 * such a network must not route it to private ones (RFC 6052 §3.1 says the same).
 */
import type { LookupAddress } from 'node:dns'
import { lookup } from 'node:dns/promises'
import { isIP } from 'node:net'
import { ServiceError } from '#shared/error.ts'
import { reachOf } from './address.ts'

/** What a deployment allows. */
export interface OutboundPolicy {
  /** For development: http as well as https, this machine and private networks. Metadata services stay out of reach. */
  readonly allowPrivate: boolean
}

/** Gives all addresses of a name. @throws When there are none */
export type Resolve = (host: string) => Promise<readonly LookupAddress[]>

const URL_CHARS_MAX = 2_048
/** Lower ports belong to other protocols, most of which would make something of what we send. */
const PORT_MIN = 1_024
const WEB_PORTS = new Set(['', '80', '443'])
/** Said where the policy could allow it. */
const IN_DEVELOPMENT = ' For development, set WEBHOOK_ALLOW_PRIVATE=true where the service runs.'
/** Names that by RFC 6761, 6762, 8375 and ICANN's resolution never mean a public host. */
const PRIVATE_NAME = /(^|\.)(localhost|local|internal|home\.arpa)$/

/**
 * Checks everything about a URL that can be known without asking DNS: https, no credentials, port 80, 443 or from 1024
 * on, no private name, no address that is not public.
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
 * Checks the URL of a webhook when a job is submitted, without DNS; where the name leads is looked at before each call.
 *
 * @throws ServiceError `invalid_value`, param `webhook.url`
 */
export function checkWebhookUrl(url: string, policy: OutboundPolicy): void {
  checkUrl(url, policy, 'webhook.url')
}

/** The host of a URL as resolvers and sockets want it: an IPv6 address without its brackets. */
export function hostOf(url: URL): string {
  return url.hostname.replace(/^\[|\]$/g, '')
}

/**
 * Resolves a host once and gives its addresses that may be connected to; a literal address is its own.
 *
 * @throws ServiceError `invalid_value` when none may. It says no more than an unknown name, or our resolver would tell
 *   strangers which names exist inside
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

/** What nobody may make us ask for, whatever the settings say: for URLs that others fetch. */
const STRICT: OutboundPolicy = { allowPrivate: false }

/** True unless the host alone, without asking DNS, is known to lead to no public address. */
export function mayBePublic(url: URL): boolean {
  return isHostAllowed(hostOf(url), STRICT)
}

/**
 * Checks a host before its URL is passed to a server that resolves it again: every address it has must be public, since
 * any of them may be taken. Later changes of the name are not seen.
 *
 * @param mayBeUnknown Accept a name without an address here, which only the network of that server knows
 * @throws ServiceError `invalid_value` for no address too: it says no more than an unknown name
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
  // A name without dots is completed by the resolver, with the domains of our own network.
  return policy.allowPrivate || (name.includes('.') && !PRIVATE_NAME.test(name))
}

function isReachAllowed(address: string, policy: OutboundPolicy): boolean {
  const reach = reachOf(address)
  return reach === 'public' || (reach === 'private' && policy.allowPrivate)
}
