/** What only Postgres can do to the store port: go away and come back, be shared, be partitioned, be migrated by many. */
import { setTimeout as delay } from 'node:timers/promises'
import { describe, expect, inject, it, vi } from 'vitest'
import { childJobId, newJobId } from '#shared/store/job-id.ts'
import { openPostgresStore } from '#shared/store/postgres.ts'
import type { Run, Store } from '#shared/store/store.ts'
import { until } from '../stack.ts'
import { startLocalPostgres, whyNoLocalPostgres } from '../support/postgres.ts'
import { alive, claimed, HOUR_MS, newJob, openPostgresDatabase, running } from '../support/stores.ts'

const DAY_MS = 24 * HOUR_MS
const WITHIN = { withinMs: 30_000 }
const postgres = inject('postgres')
const noLocal = postgres ? whyNoLocalPostgres() : 'no Postgres'
if (noLocal && process.env.CI === 'true') throw new Error(`The restart tests cannot run: ${noLocal}`)

const open = (url: string, options = {}) => openPostgresStore({ url, onProblem: () => undefined, ...options })

describe.skipIf(!postgres)('the store on a shared Postgres', () => {
  it('is migrated once, by however many processes start at once, and again and again', async () => {
    await using database = await openPostgresDatabase(postgres ?? '')
    const stores = await Promise.all([1, 2, 3, 4].map(() => open(database.url)))
    stores.push(await open(database.url))
    expect(await database.query('SELECT name FROM migrations')).toHaveLength(4)
    for (const store of stores) {
      await store.create(newJob())
      await store.close()
    }
    expect(await database.query('SELECT id FROM jobs')).toHaveLength(5)
  })

  it('refuses a schema whose migrations are not those of the code, and takes one with later ones', async () => {
    await using database = await openPostgresDatabase(postgres ?? '')
    await (await open(database.url)).close()
    await database.query("INSERT INTO migrations VALUES ('999-later.sql', 'x')")
    await (await open(database.url)).close()
    await database.query("UPDATE migrations SET hash = 'other'")
    await expect(open(database.url)).rejects.toThrow('001-durable-jobs.sql was applied in another form')
  })

  it('counts leases and deadlines by the clock of the database, whatever the process thinks', async () => {
    await using database = await openPostgresDatabase(postgres ?? '')
    const store = await database.open()
    const boot = await alive(store, undefined, 2_000)
    const given = newJob({ deadlineInMs: 3_000 })
    vi.useFakeTimers({ toFake: ['Date'], now: Date.now() + HOUR_MS })
    try {
      await store.create(given)
      expect(await store.expire(10)).toEqual([])
      await claimed(store, given.id, boot)
    } finally {
      vi.useRealTimers()
    }
    await database.advance(2_000)
    const other = newJob()
    await store.create(other)
    expect(await store.claim(other.id, boot)).toBeUndefined()
  })

  it('keeps jobs and events in partitions by day, made ahead, and drops them whole', async () => {
    await using database = await openPostgresDatabase(postgres ?? '')
    const store = await database.open()
    const partitions = async () =>
      (
        await database.query(
          `SELECT relname FROM pg_inherits JOIN pg_class ON oid = inhrelid
           WHERE inhparent = to_regclass('jobs') OR inhparent = to_regclass('job_events')`,
        )
      ).filter(({ relname }) => /^job(s|_events)_\d{8}$/.test(String(relname))).length
    expect(await partitions()).toBe(10)
    const parent = await running(store)
    const child = newJob({ id: childJobId(parent.id, 'a') })
    await store.create(child)
    await store.complete(parent, { result: 1 })
    const rows = await database.query('SELECT DISTINCT tableoid::regclass::text AS partition FROM jobs')
    expect(rows).toHaveLength(1)
    await database.advance(3 * DAY_MS)
    await store.purge()
    // The child still waits, so its day stays.
    expect(await database.query('SELECT id FROM jobs')).toHaveLength(2)
    await store.cancel('key_a', child.id)
    await database.advance(DAY_MS)
    await store.purge()
    expect(await database.query('SELECT id FROM jobs')).toEqual([])
    expect(await database.query('SELECT job_id FROM job_events')).toEqual([])
    expect(await partitions()).toBe(10)
  })

  it('reads and moves one job in one partition only', async () => {
    await using database = await openPostgresDatabase(postgres ?? '')
    await database.open()
    const plan = JSON.stringify(await database.query(`EXPLAIN SELECT * FROM jobs WHERE id = '${newJobId()}'`))
    expect(plan.match(/jobs_\d{8}_pkey/g)).toHaveLength(1)
  })

  it('finds the jobs it moves by their ids, also with a plan that was made while there were none', async () => {
    await using database = await openPostgresDatabase(postgres ?? '')
    const store = await open(database.url, { connectionsMax: 2 })
    const boot = await alive(store)
    const createAll = async (count: number) => {
      const jobs = Array.from({ length: count }, () => newJob())
      await Promise.all(jobs.map((job) => store.create(job)))
      return jobs
    }
    // A statement is planned for good when it has run a few times.
    for (const { id } of await createAll(20)) await store.claim(id, boot)
    const many = await createAll(400)
    for (const { id } of many.slice(0, 50)) await store.claim(id, boot)
    await store.close()
    const read = async (index: string) => {
      const sql = `SELECT coalesce(sum(idx_tup_read), 0)::int AS rows FROM pg_stat_user_indexes
                   WHERE schemaname = current_schema AND indexrelname LIKE '${index}'`
      return Number((await database.query(sql))[0]?.rows)
    }
    // A connection tells what it has read when it ends.
    await until(async () => (await read('jobs_%_pkey')) >= 70, WITHIN)
    expect(await read('jobs_%_published_at_ms_idx')).toBeLessThan(400)
  })

  it('gives up a statement that waits too long, and works on', async () => {
    await using database = await openPostgresDatabase(postgres ?? '')
    const first = await database.open()
    const store = await open(database.url, { statementTimeoutMs: 300 })
    const given = newJob()
    await first.create(given)
    await database.query('BEGIN')
    await database.query(`SELECT 1 FROM jobs WHERE id = '${given.id}' FOR UPDATE`)
    await expect(store.cancel('key_a', given.id)).rejects.toMatchObject({ code: 'overloaded' })
    expect(store.isReachable).toBe(true)
    // A sweep steps around what somebody else holds.
    await database.advance(HOUR_MS)
    expect(await store.expire(10)).toEqual([])
    await database.query('ROLLBACK')
    expect(await store.cancel('key_a', given.id)).toBeDefined()
    await store.close()
  })

  it('does not reap the jobs of a process whose renewal is under way', async () => {
    await using database = await openPostgresDatabase(postgres ?? '')
    const store = await database.open()
    const run = await running(store)
    await store.goodbye(run.owner)
    await store.holdLease('reaper', 'scheduler', 5_000)
    const policy = { crashesMax: 3, cancelGraceMs: 10_000, deadlineGraceMs: 5_000 }
    await database.query('BEGIN')
    await database.query(`UPDATE processes SET lease_ms = 9000, lease_until_ms = now_ms() + 9000`)
    expect(await store.reap('scheduler', policy, 10)).toEqual([])
    await database.query('COMMIT')
    expect(await store.reap('scheduler', policy, 10)).toEqual([])
    expect(await store.complete(run, { result: 1 })).toBeDefined()
  })
})

describe.skipIf(noLocal !== undefined)('when Postgres goes away', () => {
  it.each(['SIGINT', 'SIGKILL'] as const)(
    'the store refuses at once, comes back by itself, and has all it answered (%s)',
    async (signal) => {
      await using server = await startLocalPostgres()
      const problems: string[] = []
      const store = await open(server.url, { onProblem: (message: string) => problems.push(message) })
      const run = await running(store)
      const accepted: string[] = []
      const traffic = submitSteadily(store, accepted)
      const appended = appendSteadily(store, run)
      await until(() => accepted.length > 20, WITHIN)

      await server.down(signal)
      await until(() => !store.isReachable, WITHIN)
      await expect(store.find('key_a', run.id)).rejects.toMatchObject({ code: 'overloaded', retryAfterMs: 2_000 })
      const before = accepted.length
      await server.resume()
      await until(() => store.isReachable && accepted.length > before + 20, WITHIN)
      await traffic.stop()
      const texts = await appended.stop()

      for (const id of accepted) expect((await store.find('key_a', id))?.state).toBe('queued')
      const events = await store.listEvents('key_a', run.id, 0, 100_000)
      expect(events.map(({ seq }) => seq)).toEqual(events.map((_, i) => i + 1))
      // Each append was repeated until it was answered, and each was taken once.
      expect(events.slice(2).map(({ data }) => data)).toEqual(texts)
      expect(problems).toEqual(['job store lost; trying again', 'job store is back'])
      await store.close()
    },
    120_000,
  )

  it('a server that hangs is given up after the timeout, and found again', async () => {
    await using server = await startLocalPostgres()
    const store = await open(server.url, { statementTimeoutMs: 500 })
    const given = newJob()
    await store.create(given)
    server.freeze()
    await expect(store.find('key_a', given.id)).rejects.toMatchObject({ code: 'overloaded' })
    expect(store.isReachable).toBe(false)
    server.thaw()
    await until(() => store.isReachable, WITHIN)
    expect(await store.find('key_a', given.id)).toMatchObject({ id: given.id })
    await store.close()
  }, 60_000)

  it('a store cannot be opened, and says why', async () => {
    await expect(open('postgres://sluice@127.0.0.1:1/none')).rejects.toMatchObject({ code: 'overloaded' })
  })
})

/** Creates jobs one after another, and each again until it is answered. */
function submitSteadily(store: Store, accepted: string[]) {
  let isStopped = false
  const submit = async () => {
    while (!isStopped) {
      const given = newJob()
      await untilAnswered(() => store.create(given))
      accepted.push(given.id)
    }
  }
  const ended = submit()
  return {
    async stop() {
      isStopped = true
      await ended
    },
  }
}

/** Appends numbers to a run, each again until it is answered. `stop` gives them. */
function appendSteadily(store: Store, run: Run) {
  const numbers: number[] = []
  let isStopped = false
  const append = async () => {
    for (let chunk = 0; !isStopped; chunk++) {
      const output = [{ type: 'job.output.delta' as const, data: chunk }]
      expect(await untilAnswered(() => store.append({ ...run, chunk }, output))).toBeDefined()
      numbers.push(chunk)
    }
  }
  const ended = append()
  return {
    async stop() {
      isStopped = true
      await ended
      return numbers
    },
  }
}

async function untilAnswered<T>(call: () => Promise<T>): Promise<T> {
  for (;;) {
    try {
      return await call()
    } catch (error) {
      if ((error as { code?: string }).code !== 'overloaded') throw error
      await delay(20)
    }
  }
}
