/**
 * Tests the group commit of the SQLite store. The disk is synced outside of the event loop, and the files must be valid after a power loss at any
 * time.
 */
import { fdatasyncSync, fstatSync, readFileSync, statSync } from 'node:fs'
import { mkdtemp, rm, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { DatabaseSync } from 'node:sqlite'
import { setImmediate } from 'node:timers/promises'
import { afterEach, beforeEach, expect, it, vi } from 'vitest'
import { GroupCommit } from '#shared/store/sqlite/commit.ts'
import { openSqliteStore } from '#shared/store/sqlite/sqlite.ts'
import { newJob } from '../../support/jobs/stores.ts'

let directory: string
let db: DatabaseSync
beforeEach(async () => {
  directory = await mkdtemp(join(tmpdir(), 'sluice-commit-'))
  db = new DatabaseSync(join(directory, 'texts.db'))
  db.exec('PRAGMA locking_mode = EXCLUSIVE; PRAGMA journal_mode = WAL; CREATE TABLE texts (text text) STRICT')
})
afterEach(async () => {
  if (db.isOpen) db.close()
  await rm(directory, { recursive: true, force: true })
})

const MAIN = 'texts.db'
const LOG = 'texts.db-wal'
const pathOf = (name: string) => join(directory, name)
const nameOf = (fd: number) => [MAIN, LOG].find((name) => statSync(pathOf(name)).ino === fstatSync(fd).ino) ?? ''
const insert = (text: string) => () => db.prepare('INSERT INTO texts VALUES (?)').run(text)
const EIO = Object.assign(new Error('EIO: i/o error, fdatasync'), { code: 'EIO' })

it('the group commit acknowledges only the writes that a full disk could store', async () => {
  db.exec('PRAGMA max_page_count = 12')
  let fullCount = 0
  const group = new GroupCommit(db, { onFull: () => fullCount++ })
  const lengths = Array.from({ length: 30 }, (_, i) => (i % 2 === 0 ? 3_000 : 10))
  const writes = await Promise.allSettled(lengths.map((length) => group.run(insert('x'.repeat(length)))))
  const answered = lengths.filter((_, i) => writes[i]?.status === 'fulfilled')
  const refused = writes.filter((write) => write.status === 'rejected')
  const stored = db.prepare('SELECT length(text) AS length FROM texts ORDER BY rowid').all()
  expect(stored.map(({ length }) => length)).toEqual(answered)
  expect(refused.length).toBeGreaterThan(0)
  for (const { reason } of refused) expect(reason).toMatchObject({ code: 'overloaded', retryAfterMs: 60_000 })
  expect(refused[0]).toMatchObject({ reason: { message: 'The disk of the job store is full.' } })
  expect(fullCount).toBeGreaterThan(0)
  db.exec('PRAGMA max_page_count = 1000')
  await group.run(insert('x'))
})

it('the group commit syncs the log only for groups that contain a durable write', async () => {
  let syncs = 0
  const sync = async () => {
    syncs++
  }
  const group = new GroupCommit(db, { sync })
  await Promise.all([group.run(insert('a'), true), group.run(insert('b'), true)])
  expect(syncs).toBe(0)
  await Promise.all([group.run(insert('c'), true), group.run(insert('d'))])
  expect(syncs).toBe(1)
  await expect(group.run(() => db.exec('no SQL'), true)).rejects.toThrow('syntax error')
  await group.run(insert('e'))
  expect(syncs).toBe(2)
})

it('the group commit covers all writes that arrive during a slow sync with one further sync', async () => {
  const syncs: PromiseWithResolvers<void>[] = []
  const sync = () => {
    syncs.push(Promise.withResolvers<void>())
    return syncs.at(-1)?.promise ?? Promise.resolve()
  }
  const exec = vi.spyOn(db, 'exec')
  const group = new GroupCommit(db, { sync })
  let answers = 0
  const write = () => group.run(insert('x')).then(() => answers++)
  const writes = [write()]
  await vi.waitFor(() => expect(syncs).toHaveLength(1))
  for (let i = 0; i < 50; i++) writes.push(write())
  for (let turns = 0; turns < 20; turns++) await setImmediate()
  expect([answers, syncs.length]).toEqual([0, 1])
  syncs[0]?.resolve()
  await vi.waitFor(() => expect(syncs).toHaveLength(2))
  expect(answers).toBe(1)
  syncs[1]?.resolve()
  await Promise.all(writes)
  expect(exec.mock.calls.filter(([sql]) => sql === 'COMMIT')).toHaveLength(2)
  // SQLite itself must not sync. With synchronous = FULL (2), SQLite would sync in each commit. With wal_autocheckpoint above 0, SQLite would
  // also do so in checkpoints.
  expect(Object.values(db.prepare('PRAGMA synchronous').get() ?? {})).toEqual([1])
  expect(Object.values(db.prepare('PRAGMA wal_autocheckpoint').get() ?? {})).toEqual([0])
})

it('a read of the SQLite store resolves only when the returned rows are on the disk', async () => {
  const store = openSqliteStore({ directory: pathOf('store'), boot: 'boot_a' })
  const job = newJob()
  await store.create(job)
  const { promise, resolve } = Promise.withResolvers<void>()
  const synced = vi.spyOn(GroupCommit.prototype, 'synced', 'get').mockReturnValue(promise)
  let isRead = false
  const read = store.find('key_a', job.id).then((found) => {
    isRead = true
    return found
  })
  for (let turns = 0; turns < 5; turns++) await setImmediate()
  expect(isRead).toBe(false)
  resolve()
  expect(await read).toMatchObject({ id: job.id })
  synced.mockRestore()
  await store.close()
})

it('the group commit fails the writes of a failed sync, and rewrites the log before the next sync', async () => {
  const modifiedMs: number[] = []
  let isBroken = true
  const sync = async () => {
    modifiedMs.push(statSync(pathOf(LOG), { bigint: false }).mtimeMs)
    if (isBroken) throw EIO
  }
  const group = new GroupCommit(db, { sync })
  await expect(group.run(insert('a'))).rejects.toMatchObject({
    ...{ code: 'overloaded', message: 'The job store cannot write now.', isUndone: false, retryAfterMs: 5_000 },
  })
  isBroken = false
  const before = readFileSync(pathOf(LOG))
  await new Promise((resolve) => setTimeout(resolve, 20))
  // The log must be rewritten after the failure. This commit changes no row, so a newer modification time with equal contents proves the rewrite.
  await group.run(() => undefined)
  expect(readFileSync(pathOf(LOG))).toEqual(before)
  expect(modifiedMs[1]).toBeGreaterThan(modifiedMs[0] ?? 0)
  await group.run(insert('b'))
  expect(db.prepare('SELECT text FROM texts').all()).toEqual([{ text: 'a' }, { text: 'b' }])
})

it('the group commit does not overwrite the log before the main file is synced', async () => {
  let isBroken = true
  const sync = async (fd: number) => {
    if (isBroken && nameOf(fd) === MAIN) throw EIO
  }
  const group = new GroupCommit(db, { sync })
  await group.run(insert('x'.repeat(4_200_000)))
  const log = readFileSync(pathOf(LOG))
  for (let i = 0; i < 2; i++) await expect(group.run(insert('y'))).rejects.toMatchObject({ code: 'overloaded' })
  await expect(group.drain()).rejects.toMatchObject({ errcode: 10 })
  expect(readFileSync(pathOf(LOG))).toEqual(log)
  isBroken = false
  await group.run(insert('z'))
  expect(db.prepare('SELECT count(*) AS count FROM texts').get()).toEqual({ count: 2 })
})

it('the group commit syncs the log before it copies an unsynced write into the main file', async () => {
  const synced: string[] = []
  const group = new GroupCommit(db, { sync: async (fd) => void synced.push(nameOf(fd)) })
  await group.run(insert('x'.repeat(4_200_000)), true)
  expect(synced).toEqual([])
  await group.run(insert('y'))
  expect(synced).toEqual([LOG, MAIN, LOG])
  await group.run(insert('z'))
  expect(synced).toEqual([LOG, MAIN, LOG, LOG])
})

it('the files have every acknowledged write after a power loss at any sync', async () => {
  const contentOf = (name: string) => readFileSync(pathOf(name))
  const disk = { [MAIN]: contentOf(MAIN), [LOG]: contentOf(LOG) }
  let acknowledged = 0
  let checks = 0
  let copies = 0
  /**
   * Simulates a restart after a power loss. Each of the two files may have its synced or its current content, so all four combinations must be
   * valid.
   */
  const restart = async () => {
    checks++
    for (const main of [disk[MAIN], contentOf(MAIN)]) {
      for (const log of [disk[LOG], contentOf(LOG)]) {
        await Promise.all([writeFile(pathOf('after.db'), main), writeFile(pathOf('after.db-wal'), log)])
        const after = new DatabaseSync(pathOf('after.db'))
        expect(after.prepare('PRAGMA quick_check').get()).toEqual({ quick_check: 'ok' })
        const { count } = after.prepare('SELECT count(*) AS count FROM texts').get() ?? {}
        expect(count).toBeGreaterThanOrEqual(acknowledged)
        after.close()
      }
    }
  }
  const sync = async (fd: number) => {
    const name = nameOf(fd)
    if (name === MAIN) copies++
    if (name === MAIN || acknowledged % 5 === 0) await restart()
    fdatasyncSync(fd)
    disk[name as typeof MAIN] = contentOf(name)
  }
  const group = new GroupCommit(db, { sync })
  for (let i = 0; copies < 2; i++) {
    await group.run(insert(`${i}`.repeat(200_000)))
    acknowledged++
  }
  expect(checks).toBeGreaterThan(3)
})

it('the group commit closes with all writes on the disk', async () => {
  const group = new GroupCommit(db)
  const writes = [group.run(insert('a')), group.run(insert('b'))]
  await group.drain()
  group.close()
  await Promise.all(writes)
  const again = new DatabaseSync(pathOf(MAIN))
  expect(again.prepare('SELECT text FROM texts').all()).toEqual([{ text: 'a' }, { text: 'b' }])
  again.close()
})

it('the group commit splits long writes into several transactions, in order, and yields between them', async () => {
  const group = new GroupCommit(db)
  let turns = 0
  const done: [number, number][] = []
  const count = async () => {
    for (; done.length < 6; turns++) await setImmediate()
  }
  const counting = count()
  const long = (index: number) => () => {
    for (const startMs = performance.now(); performance.now() - startMs < 15; );
    return index
  }
  const writes = Array.from({ length: 6 }, (_, index) => group.run(long(index)))
  await Promise.all(writes.map(async (write) => done.push([await write, turns])))
  expect(done.map(([index]) => index)).toEqual([0, 1, 2, 3, 4, 5])
  expect(new Set(done.map(([, turn]) => turn)).size).toBeGreaterThan(3)
  await counting
})
