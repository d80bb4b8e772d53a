import { join } from 'node:path'
import { DatabaseSync } from 'node:sqlite'
import { Client } from 'pg'
import { openPostgres } from '../machine/servers.ts'
import { KEY, type Sluice, startSluice } from '../machine/sluice.ts'
import { median } from '../results/samples.ts'
import { type Goal, renderGoals, renderTable, show } from '../results/tables.ts'
import type { Run, Section } from '../section.ts'

const HOUR_MS = 3_600_000
const DAY_MS = 24 * HOUR_MS
/** Age of the oldest row. A little less than the retention of the request log, so that no row is deleted during the measurement. */
const SPAN_MS = 7 * DAY_MS - HOUR_MS
const READS = 20
const ROWS = { normal: 1_000_000, quick: 50_000 }
const STORES = ['SQLite', 'Postgres'] as const

export const REQUESTS: Section = {
  name: 'requests',
  summary: 'lists of the request log and usage reports over a million calls',
  title: '## Request log and usage',
  introduction: `One process, whose request log has a million calls of a week: 50 projects, 200 API keys and 20 models. One of the models has
half of the calls, 3 % of the calls failed, and 10 % belong to batches. The usage ledger has the sums of these calls. One caller reads each list
${READS} times over HTTP, in rotation, with 100 rows per page.`,
  measure,
}

interface Read {
  readonly name: string
  readonly path: string
}

async function measure(run: Run): Promise<string[]> {
  await using postgres = await openPostgres().then((found) => {
    if (typeof found === 'string') throw new Error(found)
    return found
  })
  run.versions.add(postgres.version)
  await using processes = run.processes()
  const rows = run.options.isQuick ? ROWS.quick : ROWS.normal
  const times: Record<string, Map<string, number[]>> = {}
  for (const store of STORES) {
    const name = `requests-${store.toLowerCase()}`
    const endMs = Date.now()
    const url = store === 'Postgres' ? await postgres.createDatabase('requests') : undefined
    const start = async () =>
      await startSluice(processes, {
        name,
        models: ['{ id: m0, engine: { type: echo } }'],
        env: { FIRST_KEY_ADMIN: 'true', ...(url !== undefined && { DATABASE_URL: url }) },
      })
    const stop = async (sluice: Sluice) => {
      for (const { pid } of sluice.processes) await processes.stop(pid)
    }
    // The first start creates the tables. After the stop, the rows are written directly into the database.
    await stop(await start())
    run.print(`writing ${rows.toLocaleString()} rows to ${store}`)
    if (url === undefined) fillSqlite(join(processes.dir, name, 'store.db'), rows, endMs)
    else await fillPostgres(url, rows, endMs)
    const sluice = await start()
    times[store] = await timesOf(sluice.url, readsOf(endMs, rows), run.signal)
    await stop(sluice)
  }
  const goals = STORES.map((store): Goal => {
    const slowest = Math.max(...[...(times[store]?.values() ?? [])].map((ms) => Math.max(...ms)))
    return { name: `slowest read, ${store}`, measured: slowest, unit: 'ms', decimals: 1, max: 100 }
  })
  const table = [...(times.SQLite?.keys() ?? [])].map((name) => [
    name,
    ...STORES.flatMap((store) => {
      const ms = times[store]?.get(name) ?? []
      return [show(median(ms), 1), show(Math.max(...ms), 1)]
    }),
  ])
  return [renderGoals(goals), renderTable(['ms', ...STORES.flatMap((store) => [`${store} median`, 'max'])], table)]
}

async function timesOf(url: URL, reads: readonly Read[], signal: AbortSignal): Promise<Map<string, number[]>> {
  const times = new Map<string, number[]>(reads.map(({ name }) => [name, []]))
  // The first round fills caches and prepares statements, so its times are dropped.
  for (let round = 0; round <= READS; round++) {
    for (const { name, path } of reads) {
      const startedAt = performance.now()
      const response = await fetch(new URL(path, url), { headers: { authorization: `Bearer ${KEY}` }, signal })
      const text = await response.text()
      const ms = performance.now() - startedAt
      if (!response.ok) throw new Error(`${name}: ${response.status} ${text.slice(0, 300)}`)
      if (round > 0) times.get(name)?.push(ms)
    }
  }
  return times
}

function readsOf(endMs: number, rows: number): Read[] {
  const ago = (ms: number) => Math.floor((endMs - ms) / 1_000)
  const filters = {
    all: '',
    'all, with the lines of batches': 'batch_lines=true',
    'middle of the log': `after=${endMs - SPAN_MS / 2}_1`,
    project: 'project=key_env',
    'model, half of the calls': 'model=m0',
    model: 'model=m3',
    'project and model': 'project=key_env&model=m2',
    'project and a model that it never called': 'project=key_env&model=m99',
    key: 'key=k7',
    'key of one old call': 'key=once',
    'key without calls': 'key=none',
    endpoint: 'endpoint=/v1/embeddings',
    'endpoint without calls': 'endpoint=/v1/rerank',
    server: 'server=1',
    failed: 'status=failed',
    'failed, of a project': 'status=failed&project=key_env',
    'failed, of a model': 'status=failed&model=m3',
    'completed, of a project': 'status=2xx&project=key_env',
    'status 429': 'status=429',
    'status without calls': 'status=418',
    cancelled: 'status=499',
    'error code': 'error_code=upstream_error',
    'error code without calls': 'error_code=overloaded',
    slow: 'min_duration_ms=9900',
    'slow, without calls': 'min_duration_ms=100000',
    'last hour': `since=${ago(HOUR_MS)}`,
    'a day, three days ago': `since=${ago(4 * DAY_MS)}&until=${ago(3 * DAY_MS)}`,
    'failed in a day of a project': `status=failed&project=key_env&since=${ago(4 * DAY_MS)}&until=${ago(3 * DAY_MS)}`,
    batch: `batch_id=job_batch${Math.floor(rows / 2_000)}`,
    trace: `trace_id=${'0'.repeat(24)}${10_000_000 + Math.floor(rows / 2)}`,
    job: `job_id=job_${Math.floor(rows / 20) * 10}`,
    'request id': `request_id=req_${Math.floor(rows / 2) + 1}`,
    'unknown request id': 'request_id=req_none',
  }
  const day = (ms: number) => new Date(ms).toISOString().slice(0, 10)
  const week = `from=${day(endMs - 6 * DAY_MS)}&to=${day(endMs)}`
  const reports = {
    'days of a week': `${week}&group_by=day`,
    'projects of a week': `${week}&group_by=project&order_by=cost`,
    'keys of a week': `${week}&group_by=key&order_by=cost`,
    'models of a week': `${week}&group_by=model&order_by=cost`,
    'endpoints of a week': `${week}&group_by=endpoint&order_by=cost`,
    'models of a project': `${week}&group_by=model&project=key_env`,
    'models of a key': `${week}&group_by=model&key=k7`,
    'projects of a model': `${week}&group_by=project&model=m3`,
    'days of an endpoint': `${week}&group_by=day&endpoint=/v1/embeddings`,
    'days, projects, keys and models of a week': `${week}&group_by=day,project,key,model`,
    'hours of a day': `from=${day(endMs - DAY_MS)}&to=${day(endMs - DAY_MS)}&group_by=hour`,
    'projects of 90 days': `from=${day(endMs - 89 * DAY_MS)}&to=${day(endMs)}&group_by=project&order_by=cost`,
  }
  return [
    ...Object.entries(filters).map(([name, query]) => ({
      name: `requests: ${name}`,
      path: `/v1/admin/requests?limit=100&${query}`,
    })),
    ...Object.entries(reports).map(([name, query]) => ({ name: `usage: ${name}`, path: `/v1/usage?${query}` })),
  ]
}

const COLUMNS = `id, started_at_ms, ended_at_ms, project, key_id, endpoint, kind, model, worker, server, status, error_code, queue_ms,
  first_output_ms, duration_ms, input_tokens, cached_input_tokens, output_tokens, cost_nanos, attempts, job_id, batch_id, trace_id, user_agent`
const SUMS = `count(*), sum(CASE WHEN status >= 500 THEN 1 ELSE 0 END), sum(input_tokens), 0, sum(output_tokens), 0, sum(cost_nanos)`

/** Returns the SQL statement that adds the calls. @param numbers SQL source of rows with one column `i`, from 1 to the number of calls */
function callsOf(rows: number, endMs: number, numbers: string): string {
  const endedAt = `CAST(${endMs - SPAN_MS} + i * ${SPAN_MS / rows} AS bigint)`
  const duration = 'i * 7919 % 10000'
  return `INSERT INTO requests (${COLUMNS})
    SELECT 'req_' || i, ${endedAt} - ${duration}, ${endedAt}, CASE WHEN k % 50 = 7 THEN 'key_env' ELSE 'p' || (k % 50) END, CASE WHEN i = 1 THEN 'once' ELSE 'k' || k END,
      CASE WHEN i % 8 = 0 THEN '/v1/embeddings' ELSE '/v1/chat/completions' END, 'generate',
      CASE WHEN i % 2 = 0 THEN 'm0' ELSE 'm' || ((k * 3 + i / 2 % 3) % 20) END, 'sluice_bench', CAST(i % 2 AS text),
      CASE WHEN nth % 50 = 1 THEN 502 WHEN nth % 100 = 2 THEN 429 WHEN nth % 200 = 3 THEN 499 ELSE 200 END,
      CASE WHEN nth % 50 = 1 THEN 'upstream_error' WHEN nth % 100 = 2 THEN 'rate_limit_exceeded' END,
      1, 20, ${duration}, 700, 0, 300, 5000, 1,
      CASE WHEN i % 10 = 0 THEN 'job_' || i END, CASE WHEN i % 10 = 0 THEN 'job_batch' || (i / 1000) END,
      '${'0'.repeat(24)}' || (10000000 + i), 'OpenAI/Python 1.99'
    FROM (SELECT i, i + i / 200 AS nth, i * 7919 % 200 AS k FROM ${numbers}) AS numbers`
}

function fillSqlite(file: string, rows: number, endMs: number): void {
  const db = new DatabaseSync(file)
  const numbers = `(WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < ${rows}) SELECT i FROM n) AS n`
  db.exec(callsOf(rows, endMs, numbers))
  db.exec(`INSERT INTO usage_hours SELECT project, strftime('%Y-%m-%dT%H', ended_at_ms / 1000, 'unixepoch'), key_id, model, endpoint, ${SUMS}
    FROM requests GROUP BY 1, 2, 3, 4, 5`)
  db.close()
}

/** Creates the partitions of the past week first, because the service creates partitions only for the present. */
async function fillPostgres(url: string, rows: number, endMs: number): Promise<void> {
  const client = new Client({ connectionString: url })
  await client.connect()
  for (let day = Math.floor((endMs - SPAN_MS) / DAY_MS); day <= Math.floor(endMs / DAY_MS); day++) {
    const suffix = new Date(day * DAY_MS).toISOString().slice(0, 10).replaceAll('-', '')
    await client.query(`SET client_min_messages = error; CREATE TABLE IF NOT EXISTS requests_${suffix}
      PARTITION OF requests FOR VALUES FROM (${day * DAY_MS}) TO (${(day + 1) * DAY_MS})`)
  }
  await client.query(callsOf(rows, endMs, `generate_series(1::bigint, ${rows}) AS n(i)`))
  await client.query(`INSERT INTO usage_hours
    SELECT project, to_char(to_timestamp(ended_at_ms / 1000) AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24'), key_id, model, endpoint, ${SUMS}
    FROM requests GROUP BY 1, 2, 3, 4, 5`)
  await client.query('ANALYZE requests; ANALYZE usage_hours')
  await client.end()
}
