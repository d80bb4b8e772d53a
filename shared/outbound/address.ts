import { BlockList, isIP } from 'node:net'

/**
 * Class of an IP address for outbound requests.
 * 1. `public`: on the internet.
 * 2. `private`: this machine or its networks.
 * 3. `forbidden`: never a valid target, such as the metadata service of a cloud.
 */
export type Reach = 'public' | 'private' | 'forbidden'

/** IANA's special-purpose registry of IPv4, plus metadata addresses outside of it. All other addresses are public. */
const FORBIDDEN_4 = subnets('ipv4', [
  '0.0.0.0/8', // this network: connects to this machine
  '169.254.0.0/16', // link-local: 169.254.169.254 is the metadata service
  '100.100.100.200/32', // metadata service of Alibaba
  '168.63.129.16/32', // wire server of Azure, a public address
  '192.0.0.0/24', // IETF protocols: 192.0.0.192 is the metadata service of Oracle
  '192.0.2.0/24', // documentation, as the next two
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
 * IPv6 is an allowlist: only addresses that IANA allocates are public, except those that embed other addresses. All else is not public: mapped
 * (::ffff:0:0/96), compatible (::/96), NAT64 (64:ff9b::/96, 64:ff9b:1::/48), link-local, site-local and multicast.
 */
const PUBLIC_6 = subnets('ipv6', ['2000::/3'])
const TRANSLATED_6 = subnets('ipv6', [
  '2001::/23', // Teredo, ORCHID, benchmarks
  '2001:db8::/32', // documentation, as 3fff::/20
  '3fff::/20',
  '2002::/16', // 6to4: an IPv4 address inside
])
const PRIVATE_6 = subnets('ipv6', ['::1/128', 'fc00::/7'])
const METADATA_6 = subnets('ipv6', [
  'fd00:ec2::/32', // AWS
  'fd20:ce::/32', // Google
])

/** Class of an address. Text that is not a plain IP address is `forbidden`, and so is an address with a zone (`fe80::1%eth0`). */
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
