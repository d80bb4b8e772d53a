import type {
  Activity,
  EndedJob,
  Spender,
  UsageAmounts,
  UsageEntry,
  UsageLedger,
  UsageQuery,
} from '#shared/store/records.ts'
import { jsonOf } from './rows.ts'
import type { Row, SqlDatabase, Write } from './sql.ts'
import type { Statement } from './statements.ts'

const SUMS = ['calls', 'failed', 'input_tokens', 'cached_input_tokens', 'output_tokens', 'audio_ms', 'cost_nanos']
const KEYS = ['project', 'day', 'key_id', 'model']

/**
 * Rows of a JSON text, as the table expression `given`. The expression is materialized, because a join would otherwise parse the text
 * again for each pair of rows.
 */
const POSTGRES_ROWS = `given AS MATERIALIZED (
        SELECT * FROM json_to_recordset(CAST(:rows AS json))
          AS row(job_id text, ${KEYS.map((name) => `${name} text`).join(', ')}, ${SUMS.map((name) => `${name} bigint`).join(', ')}))`
const SQLITE_ROWS = `given AS MATERIALIZED (
        SELECT ${['job_id', ...KEYS, ...SUMS].map((name) => `value->>'${name}' AS ${name}`).join(', ')} FROM json_each(:rows))`

const HEAD = `INSERT INTO usage_days AS held (${[...KEYS, ...SUMS].join(', ')})
  SELECT ${[...KEYS, ...SUMS.map((name) => `CAST(sum(${name}) AS bigint)`)].join(', ')}`
/** Rows are written in the order of their keys, because two writers that lock rows in different orders would deadlock. */
const TAIL = `GROUP BY 1, 2, 3, 4 ORDER BY 1, 2, 3, 4 ON CONFLICT (${KEYS.join(', ')}) DO UPDATE
  SET ${SUMS.map((name) => `${name} = held.${name} + excluded.${name}`).join(', ')}`

/** SQLite stores no batch numbers, because an embedded store always answers and no batch is sent a second time. */
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
 * Deletes the usage record of a job and adds its usage to the ledger, in one transaction. A record without calls, such as that of a batch,
 * is deleted without a ledger entry.
 */
const ENTER: Write = {
  postgres: {
    name: 'usage_enter',
    sql: `WITH ${POSTGRES_ROWS}, gone AS (
        DELETE FROM usage_ended USING given WHERE usage_ended.job_id = given.job_id RETURNING given.*)
      ${HEAD} FROM gone WHERE calls > 0 ${TAIL}`,
  },
  sqlite: [
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
  sql: `SELECT job_id, project, key_id, pool, model, state, metered, ended_at_ms FROM usage_ended
        ORDER BY job_id LIMIT :limit`,
}

const GROUPS = { project: 'project', key: 'key_id', model: 'model', day: 'day' } as const
const sumsBy = (group: keyof typeof GROUPS, isOfOne: boolean, isOfKey: boolean): Statement => ({
  name: `usage_by_${group}${isOfOne ? '_of_one' : ''}${isOfKey ? '_of_key' : ''}`,
  sql: `SELECT ${GROUPS[group]} AS name, ${SUMS.map((name) => `CAST(sum(${name}) AS bigint) AS ${name}`).join(', ')}
        FROM usage_days WHERE ${isOfOne ? 'project = :project AND' : ''} ${isOfKey ? 'key_id = :key_id AND' : ''} day >= :from_day AND day <= :to_day
        GROUP BY ${GROUPS[group]} ORDER BY ${GROUPS[group]} LIMIT :limit`,
})
const activityBy = (owner: Spender['owner']): Statement => ({
  name: `usage_activity_${owner}`,
  sql: `SELECT max(day) AS last_day,
          CAST(coalesce(sum(CASE WHEN day >= :from_day THEN calls END), 0) AS bigint) AS calls,
          CAST(coalesce(sum(CASE WHEN day >= :from_day THEN cost_nanos END), 0) AS bigint) AS cost_nanos
        FROM usage_days WHERE ${GROUPS[owner]} = :id AND day >= :since_day`,
})
const spentBy = (owner: Spender['owner']): Statement => ({
  name: `usage_spent_${owner}`,
  // One statement reads all tables, so that a job that is entered into the ledger at the same time counts exactly once.
  sql: `SELECT (SELECT CAST(coalesce(sum(cost_nanos), 0) AS bigint) FROM usage_days
          WHERE ${GROUPS[owner]} = :id AND day >= :from_day AND day <= :to_day) AS cost_nanos,
        (SELECT CAST(coalesce(sum(reserved_nanos), 0) AS bigint) FROM jobs
          WHERE ${owner === 'project' ? 'tenant' : 'key_id'} = :id AND reserved_nanos > 0 AND purge_at_ms IS NULL) AS unended_nanos,
        (SELECT CAST(coalesce(sum(reserved_nanos), 0) AS bigint) FROM usage_ended
          WHERE ${GROUPS[owner]} = :id AND reserved_nanos > 0) AS ended_nanos`,
})

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

  async enter(jobs: readonly (UsageEntry & { readonly jobId: string })[]): Promise<void> {
    const rows = JSON.stringify(jobs.map((job) => ({ ...rowOf(job), job_id: job.jobId })))
    await this.#db.write(ENTER, { rows })
  }

  async sum({ project, keyId, from, to, groupBy, limit }: UsageQuery) {
    const whose = { ...(project !== undefined && { project }), ...(keyId !== undefined && { key_id: keyId }) }
    const params = { from_day: from, to_day: to, limit, ...whose }
    const rows = await this.#db.run(sumsBy(groupBy, project !== undefined, keyId !== undefined), params)
    return rows.map((row) => ({ group: String(row.name), ...amountsOf(row) }))
  }

  async activity(of: readonly Spender[], since: string, from: string) {
    const ask = async ({ owner, id }: Spender): Promise<Activity> => {
      const [row] = await this.#db.run(activityBy(owner), { id, since_day: since, from_day: from })
      const lastDay = row?.last_day == null ? null : String(row.last_day)
      return { lastDay, calls: Number(row?.calls ?? 0), costNanos: Number(row?.cost_nanos ?? 0) }
    }
    return await Promise.all(of.map(ask))
  }

  async spent(of: readonly Spender[], from: string, to: string) {
    const ask = async ({ owner, id }: Spender) => {
      const [row] = await this.#db.run(spentBy(owner), { id, from_day: from, to_day: to })
      const reservedNanos = Number(row?.unended_nanos ?? 0) + Number(row?.ended_nanos ?? 0)
      return { owner, id, costNanos: Number(row?.cost_nanos ?? 0), reservedNanos }
    }
    return await Promise.all(of.map(ask))
  }
}

function rowOf(entry: UsageEntry): Row {
  const {
    project,
    keyId,
    model,
    day,
    calls,
    failed,
    inputTokens,
    cachedInputTokens,
    outputTokens,
    audioMs,
    costNanos,
  } = entry
  const tokens = { input_tokens: inputTokens, cached_input_tokens: cachedInputTokens, output_tokens: outputTokens }
  return { project, key_id: keyId, model, day, calls, failed, ...tokens, audio_ms: audioMs, cost_nanos: costNanos }
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
  const { job_id, project, key_id, pool, model, state, metered, ended_at_ms } = row
  const whose = { jobId: String(job_id), project: String(project), keyId: String(key_id) }
  const what = { pool: pool as EndedJob['pool'], model: String(model), state: String(state) }
  return { ...whose, ...what, metered: jsonOf(metered), endedAtMs: Number(ended_at_ms) }
}
