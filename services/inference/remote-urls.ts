import type { GenerateRequest } from '#schemas/kinds/generate.ts'
import { abortable } from '#shared/lib/abortable.ts'
import { ServiceError } from '#shared/lib/error.ts'
import { runYielding } from '#shared/lib/yielding.ts'
import { hostOf, mayBePublic, type Resolve, requirePublicHost } from '#shared/outbound/guard.ts'
import { nativeUrlsOf } from '#shared/outbound/native-urls.ts'

const HOSTS_MAX = 32
/** Timeout of all DNS lookups of one request, in ms. */
const RESOLVE_MS_MAX = 10_000

/**
 * Rejects a request that contains a URL with a non-public address. The upstream fetches these URLs, so callers could otherwise read internal
 * resources through the upstream (server-side request forgery).
 *
 * @param resolve Resolves names. Default: the system resolver.
 * @throws ServiceError `invalid_value`, or the signal's reason
 */
export async function requirePublicUrls(
  request: GenerateRequest,
  signal: AbortSignal,
  resolve?: Resolve,
): Promise<void> {
  const native = [...(await runYielding(nativeUrlsOf(request), signal))]
  const [media, others] = [native.filter(({ isMedia }) => isMedia), native.filter(({ isMedia }) => !isMedia)]
  await requirePublic([...urlsOf(request), ...media.map(({ url }) => url)], 'messages', signal, resolve)
  const urls = others.map(({ url }) => url)
  await requirePublic(urls, 'body', signal, resolve, true)
}

/**
 * Rejects each URL that resolves to a non-public address, as {@link requirePublicUrls} does for a whole request.
 *
 * @param param Field in the error.
 * @param mayBeUnknown Whether names that do not resolve here are accepted.
 */
export async function requirePublic(
  urls: Iterable<string>,
  param: string,
  signal: AbortSignal,
  resolve?: Resolve,
  mayBeUnknown = false,
): Promise<void> {
  const hosts = await runYielding(hostsOf(urls, param), signal)
  if (hosts.size === 0) return
  const check = async () => {
    // Lookups run one at a time, because slow names in parallel would occupy the whole thread pool of the process.
    for (const host of hosts) await requirePublicHost(host, resolve, mayBeUnknown)
  }
  const tooLong = new AbortController()
  const late = refuse(param, 'The hosts of the URLs could not be resolved in time.')
  const timer = setTimeout(() => tooLong.abort(late), RESOLVE_MS_MAX)
  await abortable(check(), AbortSignal.any([signal, tooLong.signal])).finally(() => clearTimeout(timer))
}

function* urlsOf({ turns }: GenerateRequest): Generator<string> {
  for (const { parts } of turns) {
    for (const part of parts) {
      if (part.type === 'image') yield part.url
      if (part.type === 'file') yield part.data
    }
  }
}

function* hostsOf(urls: Iterable<string>, param: string): Generator<undefined, ReadonlySet<string>> {
  const hosts = new Set<string>()
  for (const text of urls) {
    yield
    if (/^data:/i.test(text)) continue
    const url = URL.parse(text)
    if (url?.protocol !== 'https:' || !mayBePublic(url)) {
      throw refuse(param, 'Only https URLs whose host is on the public internet are fetched.')
    }
    hosts.add(hostOf(url))
    if (hosts.size > HOSTS_MAX) throw refuse(param, `Expected URLs of at most ${HOSTS_MAX} different hosts.`)
  }
  return hosts
}

function refuse(param: string, message: string): ServiceError {
  return new ServiceError('invalid_value', message, { param })
}
