/**
 * Guard against server-side request forgery (SSRF). Decides whether Sluice may call an address that a user has chosen.
 *
 * The text of a URL does not show to which address its name resolves, so the guard has two steps.
 *
 * 1. {@link checkUrl} checks the text of the URL when a request is accepted, and again before each call.
 * 2. {@link resolveAllowed} resolves the name once. Sluice connects only to the returned addresses (`outbound.ts`).
 *
 * WHATWG's URL parser first normalizes every notation of an IPv4 address (decimal, octal, hex, short, full-width digits). The guard cannot detect a
 * NAT64 prefix inside public address space. A network with such a prefix must not route the prefix to private addresses (RFC 6052 §3.1).
 */
import type { LookupAddress } from 'node:dns'
import { lookup } from 'node:dns/promises'
import { BlockList, isIP } from 'node:net'
import { ServiceError } from '#shared/lib/error.ts'

export interface OutboundPolicy {
  /** True to permit http, loopback and private networks, for development. Metadata services of clouds are never permitted. */
  readonly allowPrivate: boolean
}

export type Resolve = (host: string) => Promise<readonly LookupAddress[]>

const URL_CHARS_MAX = 2_048
/**
 * Minimum port, except 80 and 443. Lower ports belong to other protocols, and servers of such protocols may interpret an HTTP
 * request as commands.
 */
const PORT_MIN = 1_024
const WEB_PORTS = new Set(['', '80', '443'])
const IN_DEVELOPMENT = ' For development, set WEBHOOK_ALLOW_PRIVATE=true where the service runs.'
/** Names that never belong to a public host (RFC 6761, 6762, 8375; `internal` is reserved by ICANN). */
const PRIVATE_NAME = /(^|\.)(localhost|local|internal|home\.arpa)$/

/**
 * Checks that a URL follows these rules, without DNS:
 * 1. The scheme is https, and the URL has no credentials.
 * 2. The port is 80, 443 or at least 1024.
 * 3. The host is neither a private name nor an address that is not public.
 *
 * @throws ServiceError `invalid_value` for any other URL
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
    throw refuse('Expected a URL with port 80, port 443 or a port from 1024 on.')
  }
  if (!isHostAllowed(hostOf(url), policy)) {
    const hint = isHostAllowed(hostOf(url), { allowPrivate: true }) ? IN_DEVELOPMENT : ''
    throw refuse(`Expected a URL whose host is on the public internet.${hint}`)
  }
  return url
}

/**
 * Checks the URL of a webhook when it is submitted. DNS is not used, because the address is checked before each call.
 *
 * @throws ServiceError `invalid_value`, param `webhook.url`
 */
export function checkWebhookUrl(url: string, policy: OutboundPolicy): void {
  checkUrl(url, policy, 'webhook.url')
}

export function hostOf(url: URL): string {
  return url.hostname.replace(/^\[|\]$/g, '')
}

/**
 * Resolves a host once and returns the addresses that are permitted. A literal address resolves to itself.
 *
 * @throws ServiceError `invalid_value` if no address is permitted. A name that does not exist causes the same message. Callers therefore cannot find
 * out which names exist in the internal network
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

/** Whether a URL may be public, judged only by the host in its text, without DNS. */
export function mayBePublic(url: URL): boolean {
  return isHostAllowed(hostOf(url), STRICT)
}

/**
 * Checks the host of a URL that is sent to another server, which resolves the name again. That server may connect to any address of the name, so all
 * of them must be public. A later change in DNS is not detected.
 *
 * @param mayBeUnknown True to accept a name that does not resolve here. The name may exist only in the network of the other server
 * @throws ServiceError `invalid_value` if an address is not public, or if the name does not resolve and `mayBeUnknown` is false. The message is the
 * same in both cases, so that callers cannot find out which names exist in the internal network
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
  // A name without dots is refused, because a resolver may append a domain of the internal network.
  return policy.allowPrivate || (name.includes('.') && !PRIVATE_NAME.test(name))
}

function isReachAllowed(address: string, policy: OutboundPolicy): boolean {
  const reach = reachOf(address)
  return reach === 'public' || (reach === 'private' && policy.allowPrivate)
}

/**
 * Class of an IP address as a target of requests.
 * 1. `public`: on the internet.
 * 2. `private`: this machine or its networks.
 * 3. `forbidden`: never a valid target, such as the metadata service of a cloud.
 */
type Reach = 'public' | 'private' | 'forbidden'

/**
 * IPv4 addresses that are never a valid target: the special-purpose addresses of the IANA registry, and metadata services. Private networks are
 * listed separately.
 */
const FORBIDDEN_4 = subnets('ipv4', [
  '0.0.0.0/8', // this network: connects to this machine
  '169.254.0.0/16', // link-local: 169.254.169.254 is the metadata service
  '100.100.100.200/32', // metadata service of Alibaba
  '168.63.129.16/32', // wire server of Azure, a public address
  '192.0.0.0/24', // IETF protocols: 192.0.0.192 is the metadata service of Oracle
  '192.0.2.0/24', // documentation, as are the next two networks
  '198.51.100.0/24',
  '203.0.113.0/24',
  '192.88.99.0/24', // 6to4 relays
  '198.18.0.0/15', // benchmarks
  '224.0.0.0/4', // multicast
  '240.0.0.0/4', // reserved, and broadcast
])
const PRIVATE_4 = subnets('ipv4', [
  '10.0.0.0/8',
  '100.64.0.0/10', // carrier-grade NAT: networks of clouds and VPNs
  '127.0.0.0/8',
  '172.16.0.0/12',
  '192.168.0.0/16',
])

/**
 * The range from which IANA allocates public IPv6 addresses, except {@link TRANSLATED_6}. All addresses outside are not public. Examples are
 * link-local, site-local and multicast addresses, and those that contain an IPv4 address (::ffff:0:0/96, ::/96, 64:ff9b::/96).
 */
const PUBLIC_6 = subnets('ipv6', ['2000::/3'])
const TRANSLATED_6 = subnets('ipv6', [
  '2001::/23', // Teredo, ORCHID, benchmarks
  '2001:db8::/32', // documentation, as is 3fff::/20
  '3fff::/20',
  '2002::/16', // 6to4: an IPv4 address inside
])
const PRIVATE_6 = subnets('ipv6', ['::1/128', 'fc00::/7'])
const METADATA_6 = subnets('ipv6', [
  'fd00:ec2::/32', // AWS
  'fd20:ce::/32', // Google
])

/** Returns the class of an address. A text that is not an IP address is `forbidden`, and so is an address with a zone (`fe80::1%eth0`). */
export function reachOf(address: string): Reach {
  const family = address.includes('%') ? 0 : isIP(address)
  if (family === 4) return reachOf4(address)
  return family === 6 ? reachOf6(address) : 'forbidden'
}

function reachOf4(address: string): Reach {
  if (FORBIDDEN_4.check(address, 'ipv4')) return 'forbidden'
  return PRIVATE_4.check(address, 'ipv4') ? 'private' : 'public'
}

function reachOf6(address: string): Reach {
  if (PUBLIC_6.check(address, 'ipv6')) return TRANSLATED_6.check(address, 'ipv6') ? 'forbidden' : 'public'
  return PRIVATE_6.check(address, 'ipv6') && !METADATA_6.check(address, 'ipv6') ? 'private' : 'forbidden'
}

function subnets(family: 'ipv4' | 'ipv6', list: readonly string[]): BlockList {
  const blocks = new BlockList()
  for (const subnet of list) {
    const [network = '', prefix] = subnet.split('/')
    blocks.addSubnet(network, Number(prefix), family)
  }
  return blocks
}
