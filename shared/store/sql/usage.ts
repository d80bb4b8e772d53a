import { setImmediate } from 'node:timers/promises'
import { USAGE_DAYS_MAX } from '#schemas/usage.ts'
import type {
  Activity,
  EndedJob,
  EnteredJob,
  HistoryQuery,
  HistorySample,
  HistoryStore,
  NewAlert,
  Spender,
  UsageAmounts,
  UsageEntry,
  UsageLedger,
  UsageQuery,
} from '#shared/store/records.ts'
import { addUsage, GROUP_SEPARATOR } from '#shared/store/records.ts'
import { POSTGRES_GIVEN, POSTGRES_INSERT, paramsOf, SQLITE_INSERT } from './requests.ts'
import { jobOf, jsonOf } from './rows.ts'
import type { Params, Row, SqlDatabase, Write } from './sql.ts'
import { JOB_COLUMNS, type Statement } from './statements.ts'

const SUMS = ['calls', 'failed', 'input_tokens', 'cached_input_tokens', 'output_tokens', 'audio_ms', 'cost_nanos']
const KEYS = ['project', 'hour', 'key_id', 'model', 'endpoint']

/**
 * Table expression `given` with the rows of the JSON text `:rows`. Materialized, because Postgres would otherwise parse the text again for each pair
 * of rows of a join.
 */
const POSTGRES_ROWS = `given AS MATERIALIZED (
        SELECT * FROM json_to_recordset(CAST(:rows AS json))
          AS row(job_id text, ${KEYS.map((name) => `${name} text`).join(', ')}, ${SUMS.map((name) => `${name} bigint`).join(', ')}))`
const SQLITE_ROWS = `given AS MATERIALIZED (
        SELECT ${['job_id', ...KEYS, ...SUMS].map((name) => `value->>'${name}' AS ${name}`).join(', ')} FROM json_each(:rows))`

const HEAD = `INSERT INTO usage_hours AS held (${[...KEYS, ...SUMS].join(', ')})
  SELECT ${[...KEYS, ...SUMS.map((name) => `CAST(sum(${name}) AS bigint)`)].join(', ')}`
/**
 * End of an insert into the ledger, which adds to existing rows. Rows are sorted by key, because two writers that lock rows in different orders would
 * deadlock.
 */
const TAIL = `GROUP BY 1, 2, 3, 4, 5 ORDER BY 1, 2, 3, 4, 5 ON CONFLICT (${KEYS.join(', ')}) DO UPDATE
  SET ${SUMS.map((name) => `${name} = held.${name} + excluded.${name}`).join(', ')}`

/**
 * Postgres stores the last batch number of each process, because a batch is sent again after a lost response. SQLite runs in this process, where no
 * response is lost, so it needs no batch numbers.
 */
const ADD: Write = {
  postgres: {
    name: 'usage_add',
    sql: `WITH ${POSTGRES_ROWS}, turn AS (
        INSERT INTO usage_writers AS held (boot, batch, at_ms) VALUES (:boot, CAST(:batch AS bigint), now_ms())
        ON CONFLICT (boot) DO UPDATE SET batch = excluded.batch, at_ms = excluded.at_ms WHERE held.batch < excluded.batch
        RETURNING boot)
      ${HEAD} FROM given WHERE EXISTS (SELECT 1 FROM turn) ${TAIL}`,
  },
  sqlite: [`WITH ${SQLITE_ROWS} ${HEAD} FROM given WHERE TRUE ${TAIL}`],
}

/**
 * Deletes the usage record of a job, and adds its usage to the ledger and its row to the request log, in one transaction. A record without
 * calls, such as that of a batch, is deleted without a ledger entry.
 */
const ENTER: Write = {
  postgres: {
    name: 'usage_enter',
    sql: `WITH ${POSTGRES_ROWS}, ${POSTGRES_GIVEN}, gone AS (
        DELETE FROM usage_ended USING given WHERE usage_ended.job_id = given.job_id RETURNING given.*),
      logged AS (${POSTGRES_INSERT} WHERE given.job_id IN (SELECT job_id FROM gone))
      ${HEAD} FROM gone WHERE calls > 0 ${TAIL}`,
  },
  sqlite: [
    `${SQLITE_INSERT} WHERE value->>'job_id' IN (SELECT job_id FROM usage_ended)`,
    `WITH ${SQLITE_ROWS} ${HEAD} FROM given WHERE job_id IN (SELECT job_id FROM usage_ended) AND calls > 0 ${TAIL}`,
    `WITH ${SQLITE_ROWS} DELETE FROM usage_ended WHERE job_id IN (SELECT job_id FROM given)`,
  ],
}

/** Deletes the batch numbers of processes after seven days, because no process repeats a batch that late. */
const FORGET_WRITERS: Statement = {
  name: 'usage_forget_writers',
  sql: 'DELETE FROM usage_writers WHERE at_ms < now_ms() - 7 * 86400000',
}

const LIST_ENDED: Statement = {
  name: 'usage_ended',
  sql: `SELECT ended.job_id, ended.project, ended.key_id AS ended_key_id, ended.state AS ended_state, ended.metered AS ended_metered,
          ended.ended_at_ms, ended.pool AS ended_pool, ended.model AS ended_model, ended.endpoint AS ended_endpoint, part.parent_id AS batch_id,
          ${JOB_COLUMNS.split(',')
            .map((name) => `jobs.${name.trim()}`)
            .join(', ')}
        FROM (SELECT * FROM usage_ended ORDER BY job_id LIMIT :limit) AS ended
          LEFT JOIN jobs ON jobs.id = ended.job_id
          LEFT JOIN jobs AS part ON part.id = jobs.parent_id AND part.kind = 'batch_part' AND jobs.depth > 0
        ORDER BY ended.job_id`,
}

/**
 * Selects the hourly rows that are merged into hour 00 of their day. The order has all key columns, because the two statements of SQLite must select
 * the same rows.
 */
const UNMERGED = `SELECT ${KEYS.join(', ')} FROM usage_hours WHERE substr(hour, 12) <> '00' AND hour < :before
  ORDER BY hour, project, key_id, model, endpoint LIMIT :limit`
const ON_KEYS = KEYS.map((name) => `usage_hours.${name} = picked.${name}`).join(' AND ')
const MERGED_KEYS = KEYS.map((name) => (name === 'hour' ? "substr(hour, 1, 10) || 'T00'" : name)).join(', ')
const MERGE_HEAD = `INSERT INTO usage_hours AS held (${[...KEYS, ...SUMS].join(', ')})
  SELECT ${[MERGED_KEYS, ...SUMS.map((name) => `CAST(sum(${name}) AS bigint)`)].join(', ')}`
const MERGE: Write = {
  postgres: {
    name: 'usage_merge',
    sql: `WITH picked AS MATERIALIZED (${UNMERGED}), gone AS (
        DELETE FROM usage_hours USING picked WHERE ${ON_KEYS} RETURNING usage_hours.*)
      ${MERGE_HEAD} FROM gone ${TAIL}`,
  },
  sqlite: [
    `WITH picked AS MATERIALIZED (${UNMERGED})
      ${MERGE_HEAD} FROM usage_hours WHERE (${KEYS.join(', ')}) IN (SELECT * FROM picked) ${TAIL}`,
    `DELETE FROM usage_hours WHERE (${KEYS.join(', ')}) IN (${UNMERGED})`,
  ],
}
const COUNT_UNMERGED: Statement = {
  name: 'usage_unmerged',
  sql: `SELECT 1 FROM usage_hours WHERE substr(hour, 12) <> '00' AND hour < :before LIMIT 1`,
}

const GROUPS = {
  project: 'project',
  key: 'key_id',
  model: 'model',
  endpoint: 'endpoint',
  day: 'substr(hour, 1, 10)',
  hour: 'hour',
} as const
const FILTERS = { project: 'project', keyId: 'key_id', model: 'model', endpoint: 'endpoint' } as const

/** Return the first and the last hour of a range. Each end of the range is a day or an hour. */
const firstHourOf = (time: string) => (time.length > 10 ? time : `${time}T00`)
const lastHourOf = (time: string) => (time.length > 10 ? time : `${time}T23`)

/** Selects the hours from `from_hour` to `to_hour`. Compares the plain column `hour`, so that the database can use the index. */
const IN_DAYS = 'hour >= :from_hour AND hour <= :to_hour'

function sumsBy({ groupBy, orderBy = 'group', ...query }: UsageQuery): { statement: Statement; params: Params } {
  const filters = Object.entries(FILTERS).flatMap(([name, column]) => {
    const value = query[name as keyof typeof FILTERS]
    return value === undefined ? [] : [{ column, value }]
  })
  const dimensions = [groupBy].flat()
  const columns = dimensions.map((name) => GROUPS[name])
  const where = filters.map(({ column }) => `${column} = :${column} AND `).join('')
  const order = orderBy === 'cost' ? 'cost_nanos DESC, calls DESC, name' : 'name'
  const amounts = SUMS.map((name) => `CAST(sum(${name}) AS bigint) AS ${name}`).join(', ')
  const rows = `usage_hours WHERE ${where}${IN_DAYS}`
  // Rows are first summed by hour. If the day of each row were computed, then the statement would take almost twice as long in Postgres.
  const source = dimensions.join() === 'day' ? `(SELECT hour, ${amounts} FROM ${rows} GROUP BY hour) AS hours` : rows
  const statement = {
    name: ['usage_by', ...dimensions, orderBy, ...filters.map(({ column }) => column)].join('_'),
    sql: `SELECT ${columns.join(` || '${GROUP_SEPARATOR}' || `)} AS name, ${amounts} FROM ${source}
        GROUP BY ${columns.join(', ')} ORDER BY ${order} LIMIT :limit`,
  }
  const own = Object.fromEntries(filters.map(({ column, value }) => [column, value]))
  const range = { from_hour: firstHourOf(query.from), to_hour: lastHourOf(query.to) }
  return { statement, params: { ...range, limit: query.limit, ...own } }
}

const activityBy = (owner: Spender['owner']): Statement => ({
  name: `usage_activity_${owner}`,
  sql: `SELECT substr(max(hour), 1, 10) AS last_day,
          CAST(coalesce(sum(CASE WHEN hour >= :from_day THEN calls END), 0) AS bigint) AS calls,
          CAST(coalesce(sum(CASE WHEN hour >= :from_day THEN cost_nanos END), 0) AS bigint) AS cost_nanos
        FROM usage_hours WHERE ${GROUPS[owner]} = :id AND hour >= :since_day`,
})
const spentBy = (owner: Spender['owner']): Statement => ({
  name: `usage_spent_${owner}`,
  // One statement reads all tables in one snapshot. With two statements, a job that moves to the ledger in between could count twice or not at all.
  sql: `SELECT (SELECT CAST(coalesce(sum(cost_nanos), 0) AS bigint) FROM usage_hours
          WHERE ${GROUPS[owner]} = :id AND ${IN_DAYS}) AS cost_nanos,
        (SELECT CAST(coalesce(sum(reserved_nanos), 0) AS bigint) FROM jobs
          WHERE ${owner === 'project' ? 'tenant' : 'key_id'} = :id AND reserved_nanos > 0 AND purge_at_ms IS NULL) AS unended_nanos,
        (SELECT CAST(coalesce(sum(reserved_nanos), 0) AS bigint) FROM usage_ended
          WHERE ${GROUPS[owner]} = :id AND reserved_nanos > 0) AS ended_nanos`,
})

/** A message that belongs to no job has its own id as the job id, so that it waits for no earlier message. */
const ADD_ALERT: Statement = {
  name: 'usage_add_alert',
  sql: `INSERT INTO deliveries (id, job_id, seq, tenant, url, type, state, next_at_ms, created_at_ms, purge_at_ms, data)
        VALUES (:id, :id, 0, :tenant, :url, :type, 'pending', now_ms(), now_ms(), CAST(:purge_at_ms AS bigint), :data)
        ON CONFLICT (id) DO NOTHING RETURNING id`,
}

/** Maximum concurrent reads of one call on Postgres, so that other calls find free connections in the pool. */
const READS_MAX = 4
/**
 * Maximum groups per day that a report reads in SQLite, because each read blocks the event loop. A query with a larger limit reads as many as its
 * limit.
 */
const GROUPS_MAX = 20_000
const DAY_MS = 86_400_000
type GroupSums = UsageAmounts & { readonly group: string }

function daysOf({ from, to }: UsageQuery): readonly string[] {
  const start = Date.parse(from.slice(0, 10))
  const length = Math.max(0, (Date.parse(to.slice(0, 10)) - start) / DAY_MS + 1)
  return Array.from({ length }, (_, nth) => new Date(start + nth * DAY_MS).toISOString().slice(0, 10))
}

export class SqlUsage implements UsageLedger {
  readonly #db: SqlDatabase

  constructor(db: SqlDatabase) {
    this.#db = db
  }

  async add(boot: string, batch: number, entries: readonly UsageEntry[]): Promise<void> {
    await this.#db.write(ADD, { boot, batch, rows: JSON.stringify(entries.map(rowOf)) })
    if (batch === 1) await this.#db.run(FORGET_WRITERS, {})
  }

  async listEnded(limit: number): Promise<EndedJob[]> {
    return (await this.#db.run(LIST_ENDED, { limit })).map(endedOf)
  }

  async enter(jobs: readonly EnteredJob[]): Promise<void> {
    const rows = JSON.stringify(jobs.map((job) => ({ ...rowOf(job), job_id: job.jobId })))
    const requests = JSON.stringify(jobs.flatMap(({ request }) => (request ? [paramsOf(request)] : [])))
    await this.#db.write(ENTER, { rows, requests })
  }

  async addAlert({ data, purgeAtMs, ...alert }: NewAlert): Promise<boolean> {
    const rows = await this.#db.run(ADD_ALERT, { ...alert, data: JSON.stringify(data), purge_at_ms: purgeAtMs })
    return rows.length > 0
  }

  async sum(query: UsageQuery) {
    const days = this.#db.isShared ? [] : daysOf(query)
    if (days.length === 0 || days.length > USAGE_DAYS_MAX) return await this.#sumOf(query)
    // SQLite reads on the event loop. Each statement therefore reads one day, and other work may run between two days.
    const sums = new Map<string, GroupSums>()
    for (const [nth, day] of days.entries()) {
      const range = { from: nth === 0 ? query.from : day, to: nth === days.length - 1 ? query.to : day }
      for (const one of await this.#sumOf({ ...query, ...range, limit: Math.max(GROUPS_MAX, query.limit) })) {
        const before = sums.get(one.group)
        sums.set(one.group, before ? { group: one.group, ...addUsage(before, one) } : one)
      }
      await setImmediate()
    }
    const byGroup = (a: GroupSums, b: GroupSums) => (a.group < b.group ? -1 : 1)
    const byCost = (a: GroupSums, b: GroupSums) => b.costNanos - a.costNanos || b.calls - a.calls || byGroup(a, b)
    return [...sums.values()].toSorted(query.orderBy === 'cost' ? byCost : byGroup).slice(0, query.limit)
  }

  async #sumOf(query: UsageQuery): Promise<GroupSums[]> {
    const { statement, params } = sumsBy(query)
    const rows = await this.#db.run(statement, params)
    return rows.map((row) => ({ group: String(row.name), ...amountsOf(row) }))
  }

  async mergeHours(before: string, limit: number): Promise<boolean> {
    const [found] = await this.#db.run(COUNT_UNMERGED, { before })
    if (found) await this.#db.write(MERGE, { before, limit })
    return found !== undefined
  }

  async activity(of: readonly Spender[], since: string, from: string) {
    return await this.#readEach(of, async ({ owner, id }): Promise<Activity> => {
      const [row] = await this.#db.run(activityBy(owner), { id, since_day: since, from_day: from })
      const lastDay = row?.last_day == null ? null : String(row.last_day)
      return { lastDay, calls: Number(row?.calls ?? 0), costNanos: Number(row?.cost_nanos ?? 0) }
    })
  }

  async spent(of: readonly Spender[], from: string, to: string) {
    return await this.#readEach(of, async ({ owner, id }) => {
      const [row] = await this.#db.run(spentBy(owner), { id, from_hour: firstHourOf(from), to_hour: lastHourOf(to) })
      const reservedNanos = Number(row?.unended_nanos ?? 0) + Number(row?.ended_nanos ?? 0)
      return { owner, id, costNanos: Number(row?.cost_nanos ?? 0), reservedNanos }
    })
  }

  /**
   * Runs one read per project or key. SQLite reads on the event loop, so other work may run between two reads. All reads are started before the first
   * is awaited, so that they wait for the same sync of the disk.
   */
  async #readEach<T>(of: readonly Spender[], read: (one: Spender) => Promise<T>): Promise<T[]> {
    const reads: Promise<T>[] = []
    for (const [nth, one] of of.entries()) {
      if (nth > 0 && !this.#db.isShared) await setImmediate()
      const reading = read(one)
      // Without this handler, a read that fails before the last read has started would end the process. The caller
      // still receives the failure below.
      reading.catch(() => {})
      reads.push(reading)
      if (this.#db.isShared && reads.length % READS_MAX === 0) await Promise.all(reads)
    }
    return await Promise.all(reads)
  }
}

function rowOf(entry: UsageEntry): Row {
  const { project, keyId, model, endpoint, hour, calls, failed, audioMs, costNanos } = entry
  const { inputTokens: input_tokens, cachedInputTokens: cached_input_tokens, outputTokens: output_tokens } = entry
  const tokens = { input_tokens, cached_input_tokens, output_tokens }
  return {
    project,
    key_id: keyId,
    model,
    endpoint,
    hour,
    calls,
    failed,
    ...tokens,
    audio_ms: audioMs,
    cost_nanos: costNanos,
  }
}

function amountsOf(row: Row): UsageAmounts {
  return {
    calls: Number(row.calls),
    failed: Number(row.failed),
    inputTokens: Number(row.input_tokens),
    cachedInputTokens: Number(row.cached_input_tokens),
    outputTokens: Number(row.output_tokens),
    audioMs: Number(row.audio_ms),
    costNanos: Number(row.cost_nanos),
  }
}

function endedOf(row: Row): EndedJob {
  const {
    job_id,
    project,
    ended_key_id,
    ended_pool,
    ended_model,
    ended_endpoint,
    ended_state,
    ended_metered,
    ended_at_ms,
    batch_id,
  } = row
  const whose = { jobId: String(job_id), project: String(project), keyId: String(ended_key_id) }
  const what = {
    pool: ended_pool as EndedJob['pool'],
    model: String(ended_model),
    endpoint: String(ended_endpoint),
    state: String(ended_state),
  }
  const job = row.id == null ? null : jobOf(row)
  const batchId = batch_id == null ? null : String(batch_id)
  return { ...whose, ...what, metered: jsonOf(ended_metered), endedAtMs: Number(ended_at_ms), job, batchId }
}

/** Columns that are summed over processes and over intervals. Columns in `PEAKS` have their maximum instead of a sum. */
const COUNTERS = [
  ...['calls', 'failed', 'input_tokens', 'output_tokens', 'cost_nanos', 'queue_calls', 'queue_ms'],
  ...['first_calls', 'first_ms'],
]
const PEAKS = ['queue_ms_max', 'first_ms_max', 'jobs_running', 'jobs_waiting']
/** Columns that are summed over the processes of an interval. If intervals are merged, then the maximum of their sums is stored. */
const ATTACHED = ['running', 'waiting']
const FIGURES = [...COUNTERS, ...PEAKS, ...ATTACHED]
const SAMPLE_COLUMNS = ['project', 'at_s', ...FIGURES].join(', ')

const higher = (name: string) => `CASE WHEN held.${name} > excluded.${name} THEN held.${name} ELSE excluded.${name} END`
const upsertSamples = (summed: readonly string[], peaks: readonly string[]) =>
  `ON CONFLICT (project, at_s) DO UPDATE SET ${[
    ...summed.map((name) => `${name} = held.${name} + excluded.${name}`),
    ...peaks.map((name) => `${name} = ${higher(name)}`),
  ].join(', ')}`

const ADDED_FIGURES = FIGURES.map((name) =>
  PEAKS.includes(name) ? `max(${name})` : `CAST(sum(${name}) AS bigint)`,
).join(', ')
/** Samples of the same interval are added up before the insert, because Postgres refuses to update a row twice in one statement. */
const ADD_SAMPLES: Write = {
  postgres: {
    name: 'history_add',
    sql: `INSERT INTO history_samples AS held (${SAMPLE_COLUMNS})
      SELECT project, at_s, ${ADDED_FIGURES} FROM json_to_recordset(CAST(:rows AS json))
        AS row(project text, ${['at_s', ...FIGURES].map((name) => `${name} bigint`).join(', ')})
      GROUP BY project, at_s ORDER BY project, at_s ${upsertSamples([...COUNTERS, ...ATTACHED], PEAKS)}`,
  },
  sqlite: [
    `INSERT INTO history_samples AS held (${SAMPLE_COLUMNS})
      SELECT ${['project', 'at_s', ...FIGURES].map((name) => `value->>'${name}'`).join(', ')} FROM json_each(:rows)
      WHERE TRUE ${upsertSamples([...COUNTERS, ...ATTACHED], PEAKS)}`,
  ],
}

/** Interval in seconds into which old samples are merged. */
const MERGED_SECONDS = 300
const FINE = `SELECT project, at_s FROM history_samples WHERE at_s % ${MERGED_SECONDS} <> 0 AND at_s < CAST(:before AS bigint)
  ORDER BY at_s, project LIMIT :limit`
const aggregate = (name: string) => (COUNTERS.includes(name) ? `CAST(sum(${name}) AS bigint)` : `max(${name})`)
const MERGE_SAMPLES_HEAD = `INSERT INTO history_samples AS held (${SAMPLE_COLUMNS})
  SELECT project, at_s - at_s % ${MERGED_SECONDS}, ${FIGURES.map(aggregate).join(', ')}`
const MERGE_SAMPLES_TAIL = `GROUP BY 1, 2 ORDER BY 1, 2 ${upsertSamples(COUNTERS, [...PEAKS, ...ATTACHED])}`
const MERGE_SAMPLES: Write = {
  postgres: {
    name: 'history_merge',
    sql: `WITH picked AS MATERIALIZED (${FINE}), gone AS (
        DELETE FROM history_samples AS fine USING picked
        WHERE fine.project = picked.project AND fine.at_s = picked.at_s RETURNING fine.*)
      ${MERGE_SAMPLES_HEAD} FROM gone ${MERGE_SAMPLES_TAIL}`,
  },
  sqlite: [
    `WITH picked AS MATERIALIZED (${FINE})
      ${MERGE_SAMPLES_HEAD} FROM history_samples WHERE (project, at_s) IN (SELECT * FROM picked) ${MERGE_SAMPLES_TAIL}`,
    `DELETE FROM history_samples WHERE (project, at_s) IN (${FINE})`,
  ],
}
const FIND_FINE: Statement = {
  name: 'history_fine',
  sql: `SELECT 1 FROM history_samples WHERE at_s % ${MERGED_SECONDS} <> 0 AND at_s < CAST(:before AS bigint) LIMIT 1`,
}
const PURGE_SAMPLES: Statement = {
  name: 'history_purge',
  sql: `DELETE FROM history_samples WHERE (project, at_s) IN (
    SELECT project, at_s FROM history_samples WHERE at_s < CAST(:before AS bigint) ORDER BY at_s LIMIT :limit) RETURNING at_s`,
}
const READ_SAMPLES: Statement = {
  name: 'history_read',
  sql: `SELECT at_s - at_s % CAST(:step AS bigint) AS at_s, ${FIGURES.map((name) => `${aggregate(name)} AS ${name}`).join(', ')}
    FROM history_samples WHERE project = :project AND at_s >= CAST(:from_s AS bigint) AND at_s < CAST(:to_s AS bigint)
    GROUP BY 1 ORDER BY 1`,
}

export class SqlHistory implements HistoryStore {
  readonly #db: SqlDatabase

  constructor(db: SqlDatabase) {
    this.#db = db
  }

  async add(samples: readonly HistorySample[]): Promise<void> {
    await this.#db.write(ADD_SAMPLES, { rows: JSON.stringify(samples.map(sampleRow)) })
  }

  async read({ project, from, to, step }: HistoryQuery): Promise<HistorySample[]> {
    const rows = await this.#db.run(READ_SAMPLES, { project, from_s: from, to_s: to, step })
    return rows.map((row) => sampleOf(row, project))
  }

  async tidy(fineAfter: number, purgeBefore: number, limit: number): Promise<boolean> {
    const purged = await this.#db.run(PURGE_SAMPLES, { before: purgeBefore, limit })
    const [fine] = await this.#db.run(FIND_FINE, { before: fineAfter })
    if (fine) await this.#db.write(MERGE_SAMPLES, { before: fineAfter, limit })
    return purged.length === limit || fine !== undefined
  }
}

function sampleRow(sample: HistorySample): Row {
  const { project, atSeconds, calls, failed, running, waiting } = sample
  return {
    ...{ project, at_s: atSeconds, calls, failed, running, waiting },
    ...{ input_tokens: sample.inputTokens, output_tokens: sample.outputTokens, cost_nanos: sample.costNanos },
    ...{ queue_calls: sample.queueCalls, queue_ms: sample.queueMs, queue_ms_max: sample.queueMsMax },
    ...{ first_calls: sample.firstCalls, first_ms: sample.firstMs, first_ms_max: sample.firstMsMax },
    ...{ jobs_running: sample.jobsRunning, jobs_waiting: sample.jobsWaiting },
  }
}

function sampleOf(row: Row, project: string): HistorySample {
  const of = (name: string) => Number(row[name])
  return {
    ...{ project, atSeconds: of('at_s'), calls: of('calls'), failed: of('failed') },
    ...{ inputTokens: of('input_tokens'), outputTokens: of('output_tokens'), costNanos: of('cost_nanos') },
    ...{ queueCalls: of('queue_calls'), queueMs: of('queue_ms'), queueMsMax: of('queue_ms_max') },
    ...{ firstCalls: of('first_calls'), firstMs: of('first_ms'), firstMsMax: of('first_ms_max') },
    ...{ running: of('running'), waiting: of('waiting') },
    ...{ jobsRunning: of('jobs_running'), jobsWaiting: of('jobs_waiting') },
  }
}
