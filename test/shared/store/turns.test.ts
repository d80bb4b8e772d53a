/** Tests that claims are fair among tenants with waiting jobs (docs/internals/design.md, Fairness), on each adapter. */
import { join } from 'node:path'
import { DatabaseSync } from 'node:sqlite'
import { Client, escapeLiteral } from 'pg'
import { afterEach, beforeEach, describe, expect, inject, it } from 'vitest'
import { sweepStatement } from '#shared/store/postgres/transition.ts'
import { compile, pickOf } from '#shared/store/sql/sql.ts'
import { CLAIM_NEXT } from '#shared/store/sql/transitions.ts'
import type { Store } from '#shared/store/store.ts'
import {
  alive,
  newJob,
  openPostgresDatabase,
  openSqliteDatabase,
  type TestDatabase,
} from '../../support/jobs/stores.ts'

const postgres = inject('postgres')
const ADAPTERS = [
  { name: 'sqlite', isHere: true, openDatabase: openSqliteDatabase },
  { name: 'postgres', isHere: postgres !== null, openDatabase: () => openPostgresDatabase(postgres ?? '') },
]
const OF = { pool: 'inference', kind: 'generate', model: 'echo-1', priority: 'normal' } as const

describe.each(ADAPTERS)('the fair claim of the next jobs on $name', ({ isHere, openDatabase }) => {
  let database: TestDatabase & { url?: string }
  let store: Store
  let boot: string
  beforeEach(async (context) => {
    if (!isHere) context.skip('no Postgres')
    database = await openDatabase()
    store = await database.open()
    boot = await alive(store)
  })
  afterEach(async () => {
    if (isHere) await database[Symbol.asyncDispose]()
  })

  /** Creates jobs. Each letter of an argument is a tenant that gets one job, in the order of the letters. */
  async function submit(...tenants: string[]): Promise<void> {
    for (const letters of tenants) {
      for (const tenant of letters) await store.create(newJob({ tenant }))
    }
  }
  /** Claims jobs, and returns the letters of their tenants in alphabetical order. */
  async function claim(limit: number, after?: string): Promise<string> {
    const claimed = await store.claimNext(OF, boot, limit, after)
    return claimed
      .map(({ job }) => job.tenant)
      .toSorted()
      .join('')
  }

  it('returns one job per tenant first, and then further jobs up to the requested number', async () => {
    await submit('aaaaaaaaaa', 'b', 'ccc')
    expect(await claim(3)).toBe('abc')
    expect(await claim(5)).toBe('aaacc')
    expect(await claim(64)).toBe('aaaaaa')
    expect(await claim(1)).toBe('')
  })

  it('starts after the tenant that was served last, and visits each tenant once', async () => {
    await submit('a', 'b', 'c')
    expect(await claim(1, 'a')).toBe('b')
    expect(await claim(1, 'b')).toBe('c')
    expect(await claim(1, 'c')).toBe('a')
    await submit('aa')
    expect(await claim(2, 'a')).toBe('aa')
    await submit('a')
    expect(await claim(1, 'nobody')).toBe('a')
  })

  it('prefers tenants with the fewest running jobs of an equal kind, model and priority', async () => {
    await submit('aaaa', 'bbbb')
    await store.claimNext(OF, boot, 2, 'b')
    await store.create(newJob({ tenant: 'c', model: 'other' }))
    await store.claimNext({ ...OF, model: 'other' }, boot, 1)
    await submit('c')
    // At this point, tenants a and b have one running job of this model each, and c has none.
    expect(await claim(1, 'c')).toBe('c')
    expect(await claim(1, 'a')).toBe('b')
    expect(await claim(1, 'b')).toBe('a')
    expect(await claim(1, 'a')).toBe('b')
    // The round robin alone would claim a job of b. But b already has three running jobs, so a job of a is claimed.
    expect(await claim(1, 'a')).toBe('a')
  })

  it('skips a tenant whose jobs are past their start deadline', async () => {
    await store.create(newJob({ tenant: 'a', startInMs: 1_000 }))
    await submit('b')
    await database.advance(1_500)
    expect(await claim(1)).toBe('b')
  })

  /**
   * Sets concurrency limits of tenants. The SQLite adapter gets them by a method of the store, and the Postgres adapter reads them from the
   * table `projects`.
   */
  async function limit(limits: Record<string, number>): Promise<void> {
    if (database.url === undefined) {
      return store.tenants.limitRunning({ mostOf: (tenant) => limits[tenant], callsOf: () => 0 })
    }
    for (const [tenant, running] of Object.entries(limits)) {
      await database.query(`INSERT INTO projects VALUES ('${tenant}', NULL, 0, '{"queued":9,"running":${running}}')`)
    }
  }

  it('respects the concurrency limit of a tenant over all models, even if 1,200 tenants are at their limit', async () => {
    const full = Array.from({ length: 1_200 }, (_, i) => `f${i}`)
    await limit({ a: 3, c: 1, ...Object.fromEntries(full.map((tenant) => [tenant, 0])) })
    await submit('aaaaaa', 'bb', 'cc')
    await store.create(newJob({ tenant: 'c', model: 'other' }))
    expect(await store.claimNext({ ...OF, model: 'other' }, boot, 9)).toHaveLength(1)
    expect(await claim(9)).toBe('aaabb')
    expect(await claim(9)).toBe('')
    expect([await store.tenants.isWaiting(OF), await store.tenants.running('a')]).toEqual([true, 3])
    await Promise.all(full.map((tenant) => store.create(newJob({ tenant }))))
    await submit('z')
    expect(await claim(1, 'd')).toBe('z')
  })

  it('respects the concurrency limit of a tenant, even if three workers claim at the same time', async () => {
    await limit({ a: 4 })
    await submit('a'.repeat(40))
    const stores = [store, await database.open(), await database.open()]
    for (let round = 0; round < 5; round++) await Promise.all(stores.map((one) => one.claimNext(OF, boot, 2)))
    expect(await store.tenants.running('a')).toBe(4)
  })

  it('serves three tenants equally with three concurrent workers', async () => {
    await submit('a'.repeat(60), 'bbbb', 'cccc')
    const stores = [store, await database.open(), await database.open()]
    const boots = await Promise.all(stores.map((one) => alive(one)))
    const last = boots.map(() => '')
    const order: string[] = []
    for (let round = 0; round < 4; round++) {
      const all = await Promise.all(
        stores.map(async (one, nth) => {
          const claimed = await one.claimNext(OF, boots[nth] ?? '', 1, last[nth])
          last[nth] = claimed[0]?.job.tenant ?? last[nth] ?? ''
          return claimed
        }),
      )
      order.push(...all.flat().map(({ job }) => job.tenant))
    }
    expect(order).toHaveLength(12)
    const counts = ['a', 'b', 'c'].map((tenant) => order.filter((one) => one === tenant).length)
    // Each tenant must get about as many jobs as the others. Workers that claim at the same time may each cause a difference of one.
    expect(Math.max(...counts) - Math.min(...counts)).toBeLessThanOrEqual(3)
  })

  it('reads a bounded number of rows among 100,000 jobs of one tenant and 1,000 of others', {
    timeout: 120_000,
  }, async () => {
    await store.close()
    for (const [tenant, count] of [
      [`'a'`, 100_000],
      [`'t' || i`, 1_000],
    ] as const) {
      await database.query(`INSERT INTO jobs (id, tenant, pool, kind, endpoint, model, priority, stream, state, run_at_ms, expires_at_ms,
          deadline_ms, created_at_ms, retention_ms, metadata, webhook_events)
        WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < ${count})
        SELECT '${newJob().id}' || CAST(1000000000 + i AS text), ${tenant}, 'inference', 'generate', '/v1', 'echo-1', 'normal',
          CAST(0 = 1 AS boolean), 'queued', 0, 9000000000000, 9000000000000, 0, 0, '{}', '[]' FROM n`)
    }
    await database.query('ANALYZE')
    for (const [after, limit] of [
      ['', 1],
      ['t500', 4],
      ['zz', 64],
    ] as const) {
      const params = { ...OF, owner: boot, after, limit, tenants: limit + 8, each: 1 }
      expect(await readBy(database, params)).toEqual([])
    }
  })
})

type Params = Record<string, string | number>

/** Returns the steps of a claim's plan that read too much: a scan of a whole table, or more than a few rows per tenant. */
async function readBy(
  database: TestDatabase & { url?: string; directory?: string },
  params: Params,
): Promise<string[]> {
  return database.url === undefined
    ? readBySqlite(database.directory ?? '', params)
    : await readByPostgres(database.url, params)
}

/** SQLite reports no row counts. The statement reads the clock once per inspected job, so the calls of the clock are counted. */
function readBySqlite(directory: string, params: Params): string[] {
  const db = new DatabaseSync(join(directory, 'store.db'))
  let asked = 0
  db.function('now_ms', () => {
    asked++
    return Date.now()
  })
  db.function('running_most', (_tenant) => null)
  const { sql, names } = compile(pickOf(CLAIM_NEXT, false), '?')
  const plan = db.prepare(`EXPLAIN QUERY PLAN ${sql}`).all()
  const steps = plan.map(({ detail }) => String(detail)).filter((detail) => /\b(jobs|own)\b/.test(detail))
  const wrong = steps.filter(
    (step) =>
      !/^SEARCH \w+ USING (COVERING )?INDEX .*\((pool=.* priority=\?.*|tenant=\? AND state=\?|id=\?)\)$/.test(step),
  )
  const rows = db.prepare(sql).all(...names.map((name) => params[name] ?? null))
  db.close()
  const most = 10 * Number(params.tenants)
  return [
    ...wrong,
    ...(asked > most ? [`${asked} jobs looked at`] : []),
    ...(rows.length === params.limit ? [] : [`${rows.length} picked`]),
  ]
}

async function readByPostgres(url: string, params: Params): Promise<string[]> {
  const { sql, names } = compile(sweepStatement(CLAIM_NEXT).sql, '$')
  const client = new Client({ connectionString: url })
  await client.connect()
  try {
    await client.query(`BEGIN; PREPARE explained AS ${sql}`)
    const values = names.map((name) => escapeLiteral(String(params[name])))
    const { rows } = await client.query(
      `EXPLAIN (ANALYZE, TIMING OFF, FORMAT JSON) EXECUTE explained(${values.join(', ')})`,
    )
    const read = rowsOf(rows[0]['QUERY PLAN'][0].Plan)
    await client.query('ROLLBACK; DEALLOCATE ALL')
    const most = 10 * Number(params.tenants)
    return read > most ? [`${read} rows read for ${params.tenants} tenants`] : []
  } finally {
    await client.end()
  }
}

type PlanNode = Record<string, unknown> & { Plans?: PlanNode[] }

/** Number of rows of the jobs table that a plan read, including rows that it discarded. */
function rowsOf(node: PlanNode): number {
  const number = (name: string) => Number(node[name] ?? 0)
  const isRead = /^jobs/.test(String(node['Relation Name'] ?? '')) && String(node['Node Type']).includes('Scan')
  const own = isRead ? (number('Actual Rows') + number('Rows Removed by Filter')) * number('Actual Loops') : 0
  return (node.Plans ?? []).reduce((sum, below) => sum + rowsOf(below), own)
}
