import type { ApiKey, KeyScope } from './keys.ts'

/**
 * Paths a key may be limited to. Jobs, batches with their files, and WebSockets stand for calls to the others, each of which is
 * checked; every key has them. The routes of the ingress are the same (test/services/ingress/callers/key-scopes.test.ts).
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

/**
 * The operator's door. What lies below it is for keys with the scope `admin`, whatever paths they are limited to, and for no
 * others.
 */
export const ADMIN_PATH = '/v1/admin'

/**
 * Whether a key is for something. One that names no scope is for calls. `admin` opens the operator's door: what is shown and
 * moved there is that of every project.
 */
export function hasScope({ scopes = ['calls'] }: Pick<ApiKey, 'scopes'>, scope: KeyScope): boolean {
  return scopes.includes(scope)
}

/** Whether the right to some paths is one to `path`: a path covers those below it. */
export function coversPath(endpoints: readonly string[], path: string): boolean {
  return endpoints.some((endpoint) => path === endpoint || path.startsWith(`${endpoint}/`))
}
