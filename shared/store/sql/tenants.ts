import {
  EXACT_POSITIONS,
  type HeldBytes,
  POSITIONS_MAX,
  POSITIONS_STEP,
  type QueuedPosition,
  type StoredBytes,
  type TenantDepth,
  type TenantReads,
} from '#shared/store/records.ts'
import type { QueuedOf } from '#shared/store/store.ts'
import type { SqlDatabase } from './sql.ts'
import type { Statement } from './statements.ts'

const OF = `state = 'queued' AND pool = :pool AND kind = :kind AND model = :model AND priority = :priority`

export const TENANT_DEPTH: Statement = {
  name: 'tenant_depth',
  sql: 'SELECT tenant, state, count(*) AS count FROM jobs WHERE purge_at_ms IS NULL GROUP BY tenant, state',
}

export const QUEUED_TENANTS: Statement = {
  name: 'queued_tenants',
  sql: `SELECT tenant, count(*) AS count FROM jobs WHERE ${OF} GROUP BY tenant`,
}

export const QUEUED_POSITIONS: Statement = {
  name: 'queued_places',
  sql: `SELECT id, nth FROM (
          SELECT id, row_number() OVER (ORDER BY id) AS nth FROM (
            SELECT id FROM jobs WHERE ${OF} AND tenant = :tenant ORDER BY id LIMIT ${POSITIONS_MAX}) AS oldest) AS placed
        WHERE nth <= ${EXACT_POSITIONS} OR nth % ${POSITIONS_STEP} = 0 ORDER BY nth`,
}

export const TENANT_RUNNING: Statement = {
  name: 'tenant_running',
  sql: `SELECT count(*) AS count FROM jobs WHERE tenant = :tenant AND state = 'in_progress' AND purge_at_ms IS NULL`,
}

export const KEY_WAITING: Statement = {
  name: 'key_waiting',
  sql: `SELECT state, count(*) AS count FROM jobs WHERE key_id = :key_id AND state IN ('queued', 'scheduled') GROUP BY state`,
}

export const IS_WAITING: Statement = { name: 'is_waiting', sql: `SELECT 1 AS one FROM jobs WHERE ${OF} LIMIT 1` }

export function tenantReads(db: SqlDatabase): TenantReads {
  return {
    depth: async () => (await db.run(TENANT_DEPTH, {})).map((row) => ({ ...row }) as unknown as TenantDepth),
    queued: async (of) =>
      (await db.run(QUEUED_TENANTS, paramsOf(of))).map(({ tenant, count }) => ({
        tenant: String(tenant),
        count: Number(count),
      })),
    positions: async (of, tenant) =>
      (await db.run(QUEUED_POSITIONS, { ...paramsOf(of), tenant })).map(
        ({ id, nth }): QueuedPosition => ({ id: String(id), nth: Number(nth) }),
      ),
    running: async (tenant) => Number((await db.run(TENANT_RUNNING, { tenant }))[0]?.count),
    waitingOfKey: async (keyId) => {
      const counts = new Map(
        (await db.run(KEY_WAITING, { key_id: keyId })).map((row) => [row.state, Number(row.count)]),
      )
      return { queued: counts.get('queued') ?? 0, scheduled: counts.get('scheduled') ?? 0 }
    },
    isWaiting: async (of) => (await db.run(IS_WAITING, paramsOf(of))).length > 0,
    limitRunning: (limits) => db.limitRunning(limits),
  }
}

function paramsOf({ pool, kind, model, priority }: QueuedOf) {
  return { pool, kind, model, priority }
}

const COUNT_TTL_MS = 60_000
const ROWS_MAX = 500

const HOLD: Statement = {
  name: 'stored_hold',
  sql: `SELECT is_granted, used FROM hold_bytes(CAST(:tenant AS text), CAST(:boot AS text), CAST(:bytes AS bigint),
          CAST(:most AS bigint), ${COUNT_TTL_MS})`,
}
/** Stored bytes without reservations. A SQLite store has only one process, which counts its reservations in memory. */
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
