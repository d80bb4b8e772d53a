import { POOLS } from '#schemas/job.ts'
import type { ApiKey, KeyScope } from './keys.ts'

/**
 * Paths that a key's `endpoints` may list. Every key may use jobs, files, batches and WebSockets. The path of each call in them is checked
 * when the call is submitted.
 */
export const KEY_ENDPOINTS: readonly string[] = [
  ...Object.values(POOLS).flatMap(({ scopes }) => scopes),
  '/v1/conversations',
  '/v1/models',
  '/v1/key',
  '/v1/usage',
  '/v1/jobs',
  '/v1/files',
  '/v1/batches',
  '/v1/webhook-secrets',
  '/v1/ws',
]

/** Root of the admin API. Paths below it require the scope `admin` and ignore the `endpoints` of a key. */
export const ADMIN_PATH = '/v1/admin'

/**
 * Whether a key has a scope. A key without a list of scopes has only `calls`. A key with the scope `admin` may read and change all
 * projects.
 */
export function hasScope({ scopes = ['calls'] }: Pick<ApiKey, 'scopes'>, scope: KeyScope): boolean {
  return scopes.includes(scope)
}

export function coversPath(endpoints: readonly string[], path: string): boolean {
  return endpoints.some((endpoint) => path === endpoint || path.startsWith(`${endpoint}/`))
}
