import type { Dispatch, QueuedOf } from '#shared/store/store.ts'
import { CLAIM_NEXT } from './moves.ts'
import type { SqlDatabase } from './sql.ts'
import { TENANTS_AHEAD } from './turns.ts'
import { dispatchOf } from './writes.ts'

/** Claims queued jobs in turn of their tenants (see `JobMoves.claimNext`). */
export async function claimInTurn(
  db: SqlDatabase,
  of: QueuedOf,
  boot: string,
  limit: number,
  after: string,
): Promise<Dispatch[]> {
  const { pool, kind, model, priority } = of
  const claimed: Dispatch[] = []
  for (let each = 1, rest = limit; rest > 0; rest = limit - claimed.length) {
    const turns = { owner: boot, after, tenants: rest + TENANTS_AHEAD, each, limit: rest }
    const rows = await db.move(CLAIM_NEXT, { pool, kind, model, priority, ...turns }, [])
    if (rows.length === 0) break
    claimed.push(...rows.map(dispatchOf))
    // Fewer tenants wait than jobs are wanted: each gives as many more.
    each = Math.ceil((limit - claimed.length) / new Set(rows.map(({ tenant }) => tenant)).size)
  }
  // The order in which rows were changed is the database's.
  return claimed.toSorted((a, b) => (a.job.id < b.job.id ? -1 : 1))
}
