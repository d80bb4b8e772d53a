import type { DurableJob, WebhookDelivery } from '#schemas/durable-job.ts'
import type { Cursor, OperatorDeliveries, OperatorJobs, OperatorStore, Pause, PauseTarget } from '#shared/store/jobs.ts'
import * as statements from './operator-statements.ts'
import { deliveryOf, jobOf } from './rows.ts'
import type { Row, SqlDatabase } from './sql.ts'

/** Maximum rows that are read for one page. Without this bound, a filter that few rows match would read the whole table. */
const SCAN_MAX = 500

export class SqlOperator implements OperatorStore {
  readonly #db: SqlDatabase

  constructor(db: SqlDatabase) {
    this.#db = db
  }

  async listJobs(query: OperatorJobs): Promise<{ jobs: DurableJob[]; next: Cursor }> {
    const { statement, params } = statements.jobsToScan(query, SCAN_MAX)
    const rows = await this.#db.run(statement, params)
    const { page, next } = pageOf(rows, query.limit, (row) => isAsked(row, query))
    return { jobs: page.map(jobOf), next }
  }

  async countAhead({ id, pool, kind, model, priority }: Parameters<OperatorStore['countAhead']>[0]): Promise<number> {
    const [row] = await this.#db.run(statements.COUNT_AHEAD, { id, pool, kind, model, priority })
    return Number(row?.count ?? 0)
  }

  async listDeliveries(query: OperatorDeliveries): Promise<{ deliveries: WebhookDelivery[]; next: Cursor }> {
    const { statement, params } = statements.deliveriesToScan(query, SCAN_MAX)
    const rows = await this.#db.run(statement, params)
    const { page, next } = pageOf(rows, query.limit, ({ tenant }) => tenant === (query.tenant ?? tenant))
    return { deliveries: page.map(deliveryOf), next }
  }

  async retryDelivery(id: string): Promise<WebhookDelivery | undefined> {
    const [row] = await this.#db.run(statements.RETRY_DELIVERY, { id })
    return row && deliveryOf(row)
  }

  async listPauses(): Promise<Pause[]> {
    const rows = await this.#db.run(statements.LIST_PAUSES, {})
    return rows.map((row) => ({
      target: row.what === 'pool' ? 'pool' : 'model',
      id: String(row.id),
      by: String(row.by_key),
      since_ms: Number(row.since_ms),
    }))
  }

  async pause({ target, id }: PauseTarget, by: string): Promise<void> {
    await this.#db.run(statements.PAUSE, { what: target, id, by_key: by })
  }

  async resume({ target, id }: PauseTarget): Promise<void> {
    await this.#db.run(statements.RESUME, { what: target, id })
  }
}

function isAsked(row: Row, { pool, model, states, isOwn }: OperatorJobs): boolean {
  if (row.erased_at_ms !== null || (isOwn && Number(row.depth) > 0)) return false
  // If the retention of the row has ended by the clock of this process, then the row is hidden. The purge, which uses the clock of the
  // database, may not have run yet.
  if (row.purge_at_ms !== null && Number(row.purge_at_ms) <= Date.now()) return false
  const isOfState = states === undefined || states.some((state) => state === row.state)
  return isOfState && row.pool === (pool ?? row.pool) && row.model === (model ?? row.model)
}

/** Returns the matching rows, and the cursor of the next page: the last returned row if the page is full, otherwise the last row read. */
function pageOf(rows: readonly Row[], limit: number, isWanted: (row: Row) => boolean) {
  const wanted = rows.filter(isWanted)
  const page = wanted.slice(0, limit)
  const last = wanted.length > limit ? page.at(-1) : rows.length === SCAN_MAX ? rows.at(-1) : undefined
  return { page, next: last === undefined ? null : String(last.id) }
}
