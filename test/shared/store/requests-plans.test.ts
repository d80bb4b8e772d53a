/**
 * Tests the lists of the request log. With any filters, a list must read its rows from one index in sorted order, whether the filtered values are
 * rare or frequent.
 */
import { DatabaseSync } from 'node:sqlite'
import { Client } from 'pg'
import { describe, expect, inject, it } from 'vitest'
import { bySetting, PLAN } from '#shared/store/postgres/connection.ts'
import type { RequestQuery } from '#shared/store/requests.ts'
import { loadMigrations } from '#shared/store/sql/migrations.ts'
import { requestsToScan } from '#shared/store/sql/requests.ts'
import { compile, valuesOf } from '#shared/store/sql/sql.ts'
import { openPostgresDatabase } from '../../support/jobs/stores.ts'

const postgres = inject('postgres')
const ROWS = 30_000
const AFTER = { endedAtMs: Date.now() - 60_000, n: 1_000 }
const RANGE = { sinceMs: Date.now() - 3_600_000, untilMs: Date.now() }

/** Filters, each with the name of the index that its list must read. */
const FILTERS: readonly (readonly [Partial<RequestQuery>, string])[] = [
  [{}, 'time'],
  [{ project: 'p' }, 'project'],
  [{ model: 'frequent' }, 'model'],
  [{ project: 'p', model: 'rare' }, 'project'],
  [{ statuses: [500, 599] }, 'failed'],
  [{ errorCode: 'overloaded', project: 'p' }, 'failed_project'],
  [{ statuses: [200, 299] }, 'time'],
  [{ model: 'frequent', statuses: [200, 299] }, 'model'],
  [{ keyId: 'k', endpoint: '/v1/jobs', durationMsMin: 1 }, 'time'],
  [{ jobId: 'job_1' }, 'job'],
  [{ batchId: 'job_1' }, 'batch'],
  [{ isWithoutLines: true }, 'own'],
  [{ isWithoutLines: true, statuses: [200, 299] }, 'own'],
  [{ isWithoutLines: true, project: 'p', keyId: 'k' }, 'own_project'],
  [{ isWithoutLines: true, model: 'frequent' }, 'model'],
  [{ traceId: 'f'.repeat(32) }, 'trace'],
  [{ project: 'p', keyId: 'k', model: 'frequent', sdkRetry: 1 }, 'retries'],
  [{ project: 'p', sdkRetry: 1, isOldestFirst: true }, 'retries'],
]
const CASES = FILTERS.flatMap(([query, index]) =>
  [{}, { after: AFTER }, RANGE, { ...RANGE, after: AFTER }].map((more) => ({
    query: { ...query, ...more, limit: 100 },
    index,
  })),
)

describe('the query plans of the request log', () => {
  it('read each list from one index in SQLite', () => {
    const db = new DatabaseSync(':memory:')
    db.function('now_ms', () => Date.now())
    for (const { sql } of loadMigrations('sqlite')) db.exec(sql)
    for (const { query, index } of CASES) {
      const { page, params } = requestsToScan(query, false)
      const compiled = compile(page.sql, '?')
      const values = valuesOf(compiled, { ...params, limit: 101 }) as (string | number)[]
      const plan = db
        .prepare(`EXPLAIN QUERY PLAN ${compiled.sql}`)
        .all(...values)
        .map(({ detail }) => String(detail))
      const reads = plan.filter((detail) => / requests\b/.test(detail))
      expect(reads, JSON.stringify(query)).toEqual([
        expect.stringMatching(new RegExp(`USING INDEX requests_${index}\\b`)),
      ])
    }
  })

  it.skipIf(!postgres)('read each list from one index in Postgres, and do not sort all matching rows', async () => {
    await using database = await openPostgresDatabase(postgres ?? '')
    await database.open()
    await database.query(`INSERT INTO requests (id, started_at_ms, ended_at_ms, project, key_id, endpoint, model, status,
        duration_ms, input_tokens, cached_input_tokens, output_tokens, cost_nanos, attempts, sdk_retry, batch_id)
      SELECT 'req_' || i, now_ms() - i, now_ms() - i, 'p', 'k', '/v1/jobs', CASE WHEN i % 2 = 0 THEN 'frequent' ELSE 'm' || i END,
        CASE WHEN i % 50 = 0 THEN 503 ELSE 200 END, 1, 0, 0, 0, 0, 1, CASE WHEN i % 50 = 1 THEN 1 END, CASE WHEN i % 3 = 0 THEN 'job_9' END FROM generate_series(1, ${ROWS}) AS i`)
    await database.query('ANALYZE requests')
    const client = new Client({ connectionString: database.url })
    await client.connect()
    await client.query(bySetting(PLAN, 'session'))
    const sorted: object[] = []
    for (const [nth, { query }] of CASES.entries()) {
      const { page, params } = requestsToScan(query, true)
      const compiled = compile(page.sql, '$')
      const values = valuesOf(compiled, { ...params, limit: 101 }).map((value) => `'${value}'`)
      await client.query(`PREPARE planned_${nth} AS ${compiled.sql}`)
      const given = values.length > 0 ? `(${values.join(', ')})` : ''
      const { rows } = await client.query(`EXPLAIN (FORMAT JSON) EXECUTE planned_${nth}${given}`)
      // The requests of one job may be sorted, because there are only a few.
      if (query.jobId === undefined && sortsScan(rows[0]['QUERY PLAN'][0].Plan)) sorted.push(query)
    }
    await client.end()
    expect(sorted).toEqual([])
  })
})

interface Plan {
  readonly 'Node Type': string
  readonly Plans?: readonly Plan[]
}

/** Whether the plan sorts all rows that a scan finds. A sort of the final page is allowed. */
function sortsScan(plan: Plan, isBelow = false, isScan = false): boolean {
  const type = plan['Node Type']
  const isInScan = isScan || (isBelow && type === 'Subquery Scan')
  if (isInScan && (type.includes('Sort') || type.includes('Seq Scan') || type.includes('Bitmap'))) return true
  return (plan.Plans ?? []).some((child) => sortsScan(child, true, isInScan))
}
