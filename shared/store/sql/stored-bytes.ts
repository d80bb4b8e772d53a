import type { HeldBytes, StoredBytes } from '#shared/store/stored-bytes.ts'
import type { SqlDatabase } from './sql.ts'
import type { Statement } from './statements.ts'

const COUNT_TTL_MS = 60_000
const ROWS_MAX = 500

const HOLD: Statement = {
  name: 'stored_hold',
  sql: `SELECT is_granted, used FROM hold_bytes(CAST(:tenant AS text), CAST(:boot AS text), CAST(:bytes AS bigint),
          CAST(:most AS bigint), ${COUNT_TTL_MS})`,
}
/** Stored bytes without reservations. An embedded store has one process, which counts its own reservations. */
const USED: Statement = {
  name: 'stored_used',
  sql: 'SELECT bytes FROM stored_bytes WHERE tenant = :tenant AND shard = 0',
}

const TIDY: Statement = {
  name: 'stored_tidy',
  sql: `WITH gone AS (
          DELETE FROM stored_bytes WHERE (tenant, shard) IN (
            SELECT tenant, shard FROM stored_bytes WHERE shard <> 0 LIMIT ${ROWS_MAX} FOR UPDATE SKIP LOCKED)
          RETURNING tenant, bytes)
        INSERT INTO stored_bytes AS held (tenant, shard, bytes)
        SELECT tenant, 0, CAST(sum(bytes) AS bigint) FROM gone GROUP BY tenant ORDER BY tenant
        ON CONFLICT (tenant, shard) DO UPDATE SET bytes = held.bytes + excluded.bytes`,
}
const FORGET: Statement = { name: 'stored_forget', sql: 'DELETE FROM reserved_bytes WHERE until_ms < now_ms()' }

export class SqlStoredBytes implements StoredBytes {
  readonly keepMs = COUNT_TTL_MS
  readonly #db: SqlDatabase

  constructor(db: SqlDatabase) {
    this.#db = db
  }

  async hold(tenant: string, boot: string, bytes: number, most: number): Promise<HeldBytes> {
    if (this.#db.isShared) {
      const [row] = await this.#db.run(HOLD, { tenant, boot, bytes, most })
      return { isGranted: row?.is_granted === true, used: Number(row?.used ?? 0) }
    }
    const [row] = await this.#db.run(USED, { tenant })
    const used = Number(row?.bytes ?? 0)
    return { isGranted: bytes === 0 || used + bytes <= most, used }
  }

  async tidy(): Promise<void> {
    if (!this.#db.isShared) return
    await this.#db.run(TIDY, {})
    await this.#db.run(FORGET, {})
  }
}
