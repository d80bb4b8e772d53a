import type { ApiKey, KeyScope } from './keys.ts'

/**
 * Paths that a key's `endpoints` may list. Jobs, batches, files and WebSockets are not listed, because every key may use them. Such
 * requests contain calls to listed paths, and each of these calls is checked.
 *
 * test/services/ingress/callers/key-scopes.test.ts compares this list with the routes of the ingress.
 */
export const KEY_ENDPOINTS: readonly string[] = [
  '/v1/chat/completions',
  '/v1/completions',
  '/v1/messages',
  '/v1/messages/count_tokens',
  '/v1/responses',
  '/v1/conversations',
  '/v1/embeddings',
  '/v1/rerank',
  '/v1/moderations',
  '/v1/audio/transcriptions',
  '/v1/audio/translations',
  '/v1/audio/speech',
  '/v1/tools/code',
  '/v1/deep-research',
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
