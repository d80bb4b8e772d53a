import { createHash } from 'node:crypto'
import type { Request } from 'express'
import type { IdempotencyKey } from '#shared/store/store.ts'

/** How long a key stands for its job. */
const KEEP_MS = 24 * 3_600_000

/**
 * The key of a call with what it stands for: method, path and body (contract H.5).
 *
 * @param retentionMs How long an ended job is kept: its key must not outlive it.
 */
export function idempotencyOf(
  key: string | undefined,
  req: Pick<Request, 'method' | 'path'>,
  body: unknown,
  retentionMs: number = KEEP_MS,
): IdempotencyKey | undefined {
  if (key === undefined) return undefined
  const fingerprint = createHash('sha256')
    .update(`${req.path}\n${canonical(body)}`)
    .digest('hex')
  return { scope: `${req.method} ${req.path}`, key, fingerprint, keepMs: Math.min(KEEP_MS, retentionMs) }
}

/** JSON with sorted keys: the same request written in another order is the same. Bodies are not nested deep (body.ts). */
function canonical(value: unknown): string {
  return JSON.stringify(value, (_key, inner) =>
    typeof inner === 'object' && inner !== null && !Array.isArray(inner)
      ? Object.fromEntries(Object.entries(inner).sort(([a], [b]) => (a < b ? -1 : 1)))
      : inner,
  )
}
