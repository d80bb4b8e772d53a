import type { Dispatch, QueuedOf } from '#shared/store/store.ts'
import type { Params, SqlDatabase, TransitionRow } from './sql.ts'
import { CLAIM_NEXT } from './transitions.ts'
import { lastScanned, SCANNED_MAX, TENANTS_AHEAD } from './turns.ts'
import { dispatchOf } from './writes.ts'

/** Maximum number of statements per claim that skip tenants at their limits. Together the statements read at most 20,000 tenants. */
const WAYS_MAX = 20

export async function claimFair(
  db: SqlDatabase,
  of: QueuedOf,
  boot: string,
  limit: number,
  after: string,
): Promise<Dispatch[]> {
  const { pool, kind, model, priority } = of
  const lane = { pool, kind, model, priority }
  const claimed: Dispatch[] = []
  const way = new ClaimPosition(after)
  for (let each = 1, rest = limit; rest > 0; rest = limit - claimed.length) {
    const turns = { after: way.from, tenants: rest + TENANTS_AHEAD }
    const rows = await db.transition(CLAIM_NEXT, { ...lane, ...turns, owner: boot, each, limit: rest }, [])
    if (rows.length === 0) {
      if (claimed.length > 0 || !(await way.goesOn(db, { ...lane, ...turns }))) break
      continue
    }
    claimed.push(...rows.map(dispatchOf))
    const counts = Map.groupBy(rows, ({ tenant }) => tenant)
    if (!mayHaveMore(rows, counts)) break
    // If there are fewer tenants than free slots, then each tenant contributes more jobs.
    each = Math.ceil((limit - claimed.length) / counts.size)
  }
  // Sorted here, because a database may return changed rows in any order.
  return claimed.toSorted((a, b) => (a.job.id < b.job.id ? -1 : 1))
}

/**
 * True if some tenant contributed as many jobs as one statement may take from a tenant, so that further jobs may wait. Also true if the
 * database does not report that maximum.
 */
function mayHaveMore([row]: readonly TransitionRow[], counts: ReadonlyMap<unknown, readonly TransitionRow[]>): boolean {
  const each = Number(row?.each ?? 1)
  return counts.values().some(({ length }) => length >= each)
}

/** Position in the round robin at which the next statement starts: after the tenants that earlier statements have skipped. */
class ClaimPosition {
  from: string
  readonly #after: string
  #nth = 0
  #isRound = false

  constructor(after: string) {
    this.from = after
    this.#after = after
  }

  async goesOn(db: SqlDatabase, params: Params): Promise<boolean> {
    const [last] = await db.run({ name: 'last_looked', sql: lastScanned(db.isShared) }, params)
    if (!last || Number(last.step) < SCANNED_MAX || ++this.#nth === WAYS_MAX) return false
    const to = String(last.tenant)
    this.#isRound ||= to <= this.from
    this.from = to
    return !this.#isRound || to < this.#after
  }
}
