import type { IncomingMessage } from 'node:http'
import type { WireFormat } from '#services/ingress/reply/errors.ts'
import { ServiceError } from '#shared/error.ts'
import { coversPath } from '#shared/keys/scopes.ts'
import type { ApiKey, ApiKeys } from './keys.ts'

/**
 * The key of a request: `Authorization: Bearer` or `x-api-key`, on every endpoint (docs/protocol.md, Authentication).
 * With both, the header of the endpoint's own format wins.
 *
 * @throws ServiceError `missing_api_key`, `invalid_api_key`, `permission_denied`
 */
export function authenticate(
  { headers }: Pick<IncomingMessage, 'headers'>,
  keys: ApiKeys,
  format: WireFormat,
  path: string,
): ApiKey {
  const bearer = /^bearer +(\S+) *$/i.exec(headers.authorization ?? '')?.[1]
  const header = headers['x-api-key']?.toString() || undefined
  const secret = format === 'anthropic' ? (header ?? bearer) : (bearer ?? header)
  if (!secret) {
    const how = format === 'anthropic' ? 'the x-api-key header' : 'the header Authorization: Bearer YOUR_KEY'
    throw new ServiceError('missing_api_key', `You didn't provide an API key. Send it in ${how}.`)
  }
  const key = keys.find(secret)
  if (!key) throw new ServiceError('invalid_api_key', `Incorrect API key provided: ${mask(secret)}.`)
  // Jobs stand for calls to other endpoints: each is checked when it is submitted, and only its own key sees it.
  if (!isAboutJobs(path)) requireEndpoint(key, path)
  return key
}

/** Refuses an endpoint that a key may not call. @throws ServiceError `permission_denied` */
export function requireEndpoint(key: ApiKey, path: string): void {
  if (!key.endpoints || coversPath(key.endpoints, path)) return
  throw new ServiceError('permission_denied', `This API key may not call ${path}.`)
}

function isAboutJobs(path: string): boolean {
  return path === '/v1/jobs' || path.startsWith('/v1/jobs/') || path === '/v1/ws'
}

/** A key as it may be shown (docs/protocol.md, Authentication): enough to recognise it, nothing to use. */
function mask(secret: string): string {
  return secret.length < 12 ? '***' : `${secret.slice(0, 3)}...${secret.slice(-4)}`
}
