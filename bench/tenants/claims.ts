import type { Store } from '#shared/store/store.ts'
import {
  alive,
  newJob,
  openPostgresDatabase,
  openSqliteDatabase,
  type TestDatabase,
} from '../../test/support/jobs/stores.ts'
import { findPostgres } from '../../test/support/processes/postgres.ts'
import { cpuMs } from '../machine/usage.ts'

const LANE = { pool: 'inference', kind: 'generate', model: 'echo-1', priority: 'normal' } as const
/** Jobs of the tenant that has many. */
export const MANY = 100_000
const CLAIMS = 100
const WARM_UP = 30

/** What one claim of one job costs while so many tenants have one job waiting each, beside one that has {@link MANY}. */
export interface ClaimCost {
  readonly store: 'SQLite' | 'Postgres'
  readonly tenants: number
  /** Milliseconds that it took, the median. */
  readonly ms: number
  /** Milliseconds of CPU: of this process, and of those of the database. */
  readonly cpuMs: number
}

/** Measures claims over both stores. */
export async function measureClaims(tenants: readonly number[], signal: AbortSignal): Promise<ClaimCost[]> {
  const postgres = await findPostgres()
  if (typeof postgres === 'string') throw new Error(`claims need a Postgres: ${postgres}`)
  const costs: ClaimCost[] = []
  try {
    for (const count of tenants) {
      signal.throwIfAborted()
      {
        await using database = await openSqliteDatabase()
        costs.push({ store: 'SQLite', tenants: count, ...(await measureOver(database, count)) })
      }
      await using database = await openPostgresDatabase(postgres.url)
      costs.push({ store: 'Postgres', tenants: count, ...(await measureOver(database, count)) })
    }
  } finally {
    await postgres.stop()
  }
  return costs
}

async function measureOver(database: TestDatabase & { url?: string }, tenants: number) {
  await fill(await database.open(), database, tenants)
  const store = await database.open()
  const boot = await alive(store, undefined, 600_000)
  const others = database.url === undefined ? [] : await backends(database)
  await claim(store, boot, WARM_UP, tenants)
  const before = cpuOf(others)
  const took = await claim(store, boot, CLAIMS, tenants)
  return { ms: took.toSorted((a, b) => a - b)[CLAIMS / 2] ?? 0, cpuMs: (cpuOf(others) - before) / CLAIMS }
}

/** Claims one job after the other, each from another place in the round, and ends none: what runs is counted. */
async function claim(store: Store, boot: string, count: number, tenants: number): Promise<number[]> {
  const took: number[] = []
  for (let index = 0; index < count; index++) {
    const startedAt = performance.now()
    const claimed = await store.claimNext(LANE, boot, 1, `t${(index * 37) % tenants}`)
    took.push(performance.now() - startedAt)
    if (claimed.length !== 1) throw new Error(`${claimed.length} jobs were claimed, not one`)
  }
  return took
}

/** Fills the tables past the port: it would take minutes. */
async function fill(store: Store, database: TestDatabase, tenants: number): Promise<void> {
  // SQLite is one process' own.
  if (!('url' in database)) await store.close()
  const created = Date.now()
  for (const [tenant, count] of [
    [`'many'`, MANY],
    [`'t' || CAST(i AS text)`, tenants],
  ] as const) {
    await database.query(`INSERT INTO jobs (id, tenant, pool, kind, endpoint, model, priority, stream, state, run_at_ms, expires_at_ms,
        deadline_ms, created_at_ms, retention_ms, metadata, webhook_events, request, last_seq)
      WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < ${count})
      SELECT '${newJob().id}' || CAST(1000000000 + i AS text), ${tenant}, 'inference', 'generate', '/v1/chat/completions', 'echo-1',
        'normal', CAST(0 = 1 AS boolean), 'queued', ${created}, ${created + 86_400_000}, ${created + 86_400_000}, ${created}, 86400000,
        '{}', '[]', '{"body":"hello"}', 0 FROM n`)
  }
  await database.query('ANALYZE')
}

async function backends(database: TestDatabase): Promise<number[]> {
  const rows = await database.query('SELECT pid FROM pg_stat_activity WHERE datname = current_database()')
  return rows.map(({ pid }) => Number(pid))
}

function cpuOf(others: readonly number[]): number {
  const { user, system } = process.cpuUsage()
  return (user + system) / 1_000 + others.reduce((sum, pid) => sum + cpuMs(pid), 0)
}
