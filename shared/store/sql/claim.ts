import type { Dispatch, QueuedOf } from '#shared/store/store.ts'
import type { Params, SqlDatabase, TransitionRow } from './sql.ts'
import { CLAIM_NEXT } from './transitions.ts'
import { LOOKED_MAX, lastLooked, TENANTS_AHEAD } from './turns.ts'
import { dispatchOf } from './writes.ts'

/** How often one claim goes on behind tenants who may run no more: it looks at twenty thousand of them. */
const WAYS_MAX = 20

/** Claims queued jobs in turn of their tenants (see `JobMoves.claimNext`). */
export async function claimInTurn(
  db: SqlDatabase,
  of: QueuedOf,
  boot: string,
  limit: number,
  after: string,
): Promise<Dispatch[]> {
  const { pool, kind, model, priority } = of
  const lane = { pool, kind, model, priority }
  const claimed: Dispatch[] = []
  const way = new Way(after)
  for (let each = 1, rest = limit; rest > 0; rest = limit - claimed.length) {
    const turns = { after: way.from, tenants: rest + TENANTS_AHEAD }
    const rows = await db.move(CLAIM_NEXT, { ...lane, ...turns, owner: boot, each, limit: rest }, [])
    if (rows.length === 0) {
      if (claimed.length > 0 || !(await way.goesOn(db, { ...lane, ...turns }))) break
      continue
    }
    claimed.push(...rows.map(dispatchOf))
    const counts = Map.groupBy(rows, ({ tenant }) => tenant)
    if (!mayHaveMore(rows, counts)) break
    // Fewer tenants wait than jobs are wanted: each gives as many more.
    each = Math.ceil((limit - claimed.length) / counts.size)
  }
  // The order in which rows were changed is the database's.
  return claimed.toSorted((a, b) => (a.job.id < b.job.id ? -1 : 1))
}

/** Whether some tenant gave as many as it could at most; also where the database does not say how many those are. */
function mayHaveMore([row]: readonly TransitionRow[], counts: ReadonlyMap<unknown, readonly TransitionRow[]>): boolean {
  const each = Number(row?.each ?? 1)
  return counts.values().some(({ length }) => length >= each)
}

/** Where a claim begins in the round of tenants: behind those whom the statements before it have looked at in vain. */
class Way {
  from: string
  readonly #after: string
  #nth = 0
  #isRound = false

  constructor(after: string) {
    this.from = after
    this.#after = after
  }

  /** Whether there are tenants behind those whom the last statement has looked at. */
  async goesOn(db: SqlDatabase, params: Params): Promise<boolean> {
    const [last] = await db.run({ name: 'last_looked', sql: lastLooked(db.isShared) }, params)
    if (!last || Number(last.step) < LOOKED_MAX || ++this.#nth === WAYS_MAX) return false
    const to = String(last.tenant)
    this.#isRound ||= to <= this.from
    this.from = to
    return !this.#isRound || to < this.#after
  }
}
