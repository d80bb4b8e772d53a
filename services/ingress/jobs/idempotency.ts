import { createHash, type Hash } from 'node:crypto'
import type { Call } from '#services/ingress/call.ts'
import { inTurns } from '#shared/in-turns.ts'
import { writeJson } from '#shared/json/write.ts'
import type { IdempotencyKey } from '#shared/store/store.ts'

/** How long a key stands for its job. */
const KEEP_MS = 24 * 3_600_000

/**
 * The key of a call with what it stands for: method, path and body (docs/protocol.md, Idempotency).
 *
 * @param retentionMs How long an ended job is kept: its key must not outlive it.
 */
export async function idempotencyOf(
  key: string | undefined,
  { method, path }: Pick<Call, 'method' | 'path'>,
  body: unknown,
  retentionMs: number = KEEP_MS,
): Promise<IdempotencyKey | undefined> {
  if (key === undefined) return undefined
  const hash = createHash('sha256').update(`${path}\n`)
  await inTurns(hashCanonical(hash, body))
  const fingerprint = hash.digest('hex')
  return { scope: `${method} ${path}`, key, fingerprint, keepMs: Math.min(KEEP_MS, retentionMs) }
}

/** JSON with sorted keys: the same request written in another order is the same. Bodies are not nested deep. */
function* hashCanonical(hash: Hash, body: unknown): Generator<undefined, void> {
  for (const piece of writeJson(body, { sortsKeys: true })) {
    hash.update(piece)
    yield
  }
}
