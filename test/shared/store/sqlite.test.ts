/** Tests cases that only the store on SQLite has: the process with the store is killed, or the file is opened twice. */
import { spawn } from 'node:child_process'
import { once } from 'node:events'
import { mkdtemp, readdir, readFile, rm, stat } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { DatabaseSync, StatementSync } from 'node:sqlite'
import { afterEach, beforeEach, expect, it, vi } from 'vitest'
import { REAPER_LEASE } from '#shared/store/jobs.ts'
import { loadMigrations } from '#shared/store/sql/migrations.ts'
import { openSqliteStore } from '#shared/store/sqlite/sqlite.ts'
import { newJob, openSqliteDatabase, running } from '../../support/jobs/stores.ts'
import { until } from '../../support/stack.ts'

const WRITER = join(import.meta.dirname, '../../support/jobs/store-writer.ts')

let directory: string
beforeEach(async () => {
  directory = await mkdtemp(join(tmpdir(), 'sluice-store-'))
})
afterEach(async () => {
  await rm(directory, { recursive: true, force: true })
})

/** Starts a process that writes to the store until it is killed. Returns the writes that the store has acknowledged. */
function startWriter(errors: 'inherit' | 'ignore' = 'inherit') {
  const child = spawn(process.execPath, [WRITER, directory], { stdio: ['ignore', 'pipe', errors] })
  let output = ''
  child.stdout.on('data', (chunk) => {
    output += chunk
  })
  const exited = once(child, 'exit').then(([code]) => code as number | null)
  const kill = async () => {
    const closed = once(child, 'close')
    child.kill('SIGKILL')
    await closed
    return output.split('\n').slice(0, -1)
  }
  return { pid: child.pid ?? 0, lines: () => output.split('\n').length - 1, exited, kill }
}

it('the SQLite store has every acknowledged write after its process was killed at any time', async () => {
  const answers: string[] = []
  for (let kills = 0; kills < 5; kills++) {
    const writer = startWriter()
    await until(() => writer.lines() > 20 + kills * 7, { withinMs: 20_000 })
    answers.push(...(await writer.kill()))
  }
  const store = openSqliteStore({ directory, boot: 'boot_after' })
  const lastSeqs = new Map<string, number>()
  for (const [, id = '', seq = '1'] of answers.map((answer) => answer.split(' '))) lastSeqs.set(id, Number(seq))
  expect(lastSeqs.size).toBeGreaterThan(20)
  for (const [id, seq] of lastSeqs) {
    const events = await store.listEvents('key_a', id, 0, 100)
    expect(events.map((event) => event.seq)).toEqual(events.map((_, i) => i + 1))
    expect(events.length).toBeGreaterThanOrEqual(seq)
    expect((await store.find('key_a', id))?.last_seq).toBe(events.length)
  }
  for (const id of answers.filter((answer) => answer.startsWith('completed')).map((answer) => answer.split(' ')[1])) {
    expect((await store.find('key_a', id ?? ''))?.state).toBe('completed')
    expect(await store.findContent('key_a', id ?? '')).toMatchObject({ result: id })
  }
  await store.close()
})

it('the SQLite store with a full disk refuses writes, logs the problem once, and recovers', async () => {
  const path = join(directory, 'small')
  const problems: string[] = []
  const exec = vi.spyOn(DatabaseSync.prototype, 'exec')
  const store = openSqliteStore({ directory: path, boot: 'a', onProblem: (message) => problems.push(message) })
  const db = exec.mock.contexts[0] as DatabaseSync
  exec.mockRestore()
  expect(store.isFull).toBe(false)
  const large = () => newJob({ request: { text: 'x'.repeat(3_000_000) } })
  db.exec('PRAGMA max_page_count = 300')
  for (let i = 0; i < 3; i++) {
    await expect(store.create(large())).rejects.toMatchObject({
      ...{ code: 'overloaded', message: 'The disk of the job store is full.', retryAfterMs: 60_000 },
    })
  }
  expect([store.isFull, problems]).toEqual([true, ['job store disk is full; writes are refused']])
  db.exec('PRAGMA max_page_count = 100000')
  expect(await store.create(large())).toMatchObject({ outcome: 'created' })
  await store.close()
})

it('the SQLite store requeues the jobs of a killed process at the next start', async () => {
  const writer = startWriter()
  await until(() => writer.lines() > 3, { withinMs: 20_000 })
  const answers = await writer.kill()
  const store = openSqliteStore({ directory, boot: 'boot_after' })
  await store.holdLease(REAPER_LEASE, 'boot_after', 5_000)
  await store.reap('boot_after', { crashesMax: 3, cancelGraceMs: 10_000, deadlineGraceMs: 5_000 }, 100)
  expect((await store.depth()).filter(({ state }) => state === 'in_progress')).toEqual([])
  expect(answers.length).toBeGreaterThan(3)
  await store.close()
})

it('the SQLite store refuses a second process until the first process is killed', async () => {
  const writer = startWriter()
  await until(() => writer.lines() > 0, { withinMs: 20_000 })
  const open = () => openSqliteStore({ directory, boot: 'boot_second' })
  expect(open).toThrow(`is open in process ${writer.pid} (boot_${writer.pid})`)
  expect(open).toThrow('give this process another DATA_DIR')
  await writer.kill()
  await open().close()
})

it('the SQLite store refuses a second opening, by the same process or by another', async () => {
  const store = openSqliteStore({ directory, boot: 'boot_first' })
  expect(() => openSqliteStore({ directory, boot: 'boot_second' })).toThrow(`process ${process.pid} (boot_first)`)
  const other = startWriter('ignore')
  expect(await other.exited).not.toBe(0)
  expect(other.lines()).toBe(0)
  await store.close()
  await openSqliteStore({ directory, boot: 'boot_second' }).close()
})

it('the SQLite store creates its files with mode 0600', async () => {
  const store = openSqliteStore({ directory, boot: 'boot_first' })
  await running(store)
  for (const file of ['store.db', 'store.db-wal']) expect((await stat(join(directory, file))).mode & 0o777).toBe(0o600)
  await store.close()
})

it('the SQLite store keeps its jobs across a restart, and runs each migration once', async () => {
  await using database = await openSqliteDatabase()
  const run = await running(await database.open())
  expect(await database.query('SELECT name FROM migrations')).toHaveLength(loadMigrations('sqlite').length)
  const again = await database.open()
  expect(await again.find('key_a', run.id)).toMatchObject({ state: 'in_progress' })
  expect(await database.query('SELECT name FROM migrations')).toHaveLength(loadMigrations('sqlite').length)
})

it('the SQLite store refuses a schema whose migrations differ', async () => {
  await using database = await openSqliteDatabase()
  await database.open()
  await database.query("UPDATE migrations SET hash = 'other' RETURNING name")
  await expect(database.open()).rejects.toThrow('001-tables.sql differs from the one applied to this database')
})

it('the SQLite store refuses the store of an older version, and changes no byte of it', async () => {
  await using database = await openSqliteDatabase()
  await database.query(`PRAGMA journal_mode = WAL`)
  await database.query('CREATE TABLE migrations (name text NOT NULL PRIMARY KEY, hash text NOT NULL) STRICT')
  await database.query("INSERT INTO migrations VALUES ('001-durable-jobs.sql', 'a'), ('027-shared-history.sql', 'b')")
  await database.query('CREATE TABLE jobs (id text)')
  const before = await contentsOf(database.directory)
  await expect(database.open()).rejects.toThrow(
    'The job store has the schema of version 0.2.0 or older (last migration 027-shared-history.sql); nothing was changed. ' +
      'Export what you need with that version, then move store.db out of DATA_DIR.',
  )
  expect(await contentsOf(database.directory)).toEqual(before)
})

it('the SQLite store reads large texts as bytes, because a conversion by SQLite blocks the event loop', async () => {
  const store = openSqliteStore({ directory, boot: 'boot_a' })
  const text = '日本語😀'.repeat(20_000)
  const run = await running(store, { request: { text } })
  const output = [{ type: 'job.output.delta' as const, data: { chunk: text } }]
  await store.complete(run, { result: { text }, usage: null, output })
  const all = vi.spyOn(StatementSync.prototype, 'all')
  const events = await store.listEvents('key_a', run.id, 0, 100)
  expect(events.find(({ type }) => type === 'job.output.delta')?.data).toEqual({ chunk: text })
  expect(await store.findContent('key_a', run.id)).toEqual({ request: { text }, result: { text } })
  expect(await store.findResultText('key_a', run.id)).toBe(JSON.stringify({ text }))
  const values = all.mock.results.flatMap(({ value }) => (value as Record<string, unknown>[]).flatMap(Object.values))
  all.mockRestore()
  expect(values.filter((value) => value instanceof Uint8Array).length).toBeGreaterThan(3)
  expect(values.filter((value) => typeof value === 'string' && value.length > 10_000)).toEqual([])
  await store.close()
})

async function contentsOf(directory: string): Promise<Record<string, string>> {
  const names = await readdir(directory)
  const pairs = names.map(async (name) => [name, (await readFile(join(directory, name))).toString('hex')])
  return Object.fromEntries(await Promise.all(pairs))
}

it('the SQLite store reports itself idle only if no job, webhook or usage record is pending', async () => {
  const store = openSqliteStore({ directory, boot: 'boot_a' })
  expect(store.isIdle).toBe(true)
  await store.renew({ boot: 'wrk_1', role: 'inference', slots: 1, version: '1', draining: false, leaseMs: 60_000 })
  expect(store.isIdle).toBe(true)
  const job = newJob({ webhook: { url: 'https://example.com/', events: ['job.completed'] } })
  await store.create(job)
  expect(store.isIdle).toBe(false)
  const claimed = await store.claim(job.id, 'wrk_1')
  expect(store.isIdle).toBe(false)
  await store.complete(
    { id: job.id, boot: 'wrk_1', attempt: claimed?.job.attempt ?? 0, chunk: 0 },
    { result: {}, usage: null },
  )
  expect(store.isIdle).toBe(false)
  const ended = await store.usage.listEnded(10)
  const entry = {
    project: 'p',
    keyId: 'k',
    model: 'm',
    endpoint: '/v1/chat/completions',
    hour: '2026-01-01T08',
    calls: 1,
    failed: 0,
    inputTokens: 1,
  }
  const rest = { cachedInputTokens: 0, outputTokens: 1, audioMs: 0, pages: 0, costNanos: 0 }
  await store.usage.enter(ended.map(({ jobId }) => ({ jobId, ...entry, ...rest })))
  expect(store.isIdle).toBe(false)
  const [delivery] = await store.takeDeliveries(10, 1_000)
  if (!delivery) throw new Error('no delivery')
  await store.recordDelivery(delivery, { state: 'delivered', status: 200 })
  expect(store.isIdle).toBe(true)
  await store.close()
  expect(store.isIdle).toBe(false)
})

it('the SQLite store wakes a loop that waits for work when a job is written', async () => {
  const store = openSqliteStore({ directory, boot: 'boot_a' })
  const { signal } = new AbortController()
  let hasWork = false
  const waiting = store.untilWork(signal).then(() => {
    hasWork = true
  })
  await store.renew({ boot: 'wrk_1', role: 'inference', slots: 1, version: '1', draining: false, leaseMs: 60_000 })
  await new Promise(setImmediate)
  expect(hasWork).toBe(false)
  await store.create(newJob())
  await waiting
  await store.untilWork(signal)
  await store.close()
})

it('the SQLite store wakes a loop that waits for work when its signal is aborted or the store is closed', async () => {
  const store = openSqliteStore({ directory, boot: 'boot_a' })
  const leaving = new AbortController()
  const left = store.untilWork(leaving.signal)
  const closed = store.untilWork(new AbortController().signal)
  leaving.abort()
  await left
  await store.close()
  await closed
})
