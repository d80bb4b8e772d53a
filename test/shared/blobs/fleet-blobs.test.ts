import { mkdtemp, rm, stat, utimes } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { pino } from 'pino'
import { afterEach, beforeEach, describe, expect, inject, it } from 'vitest'
import { findDirectoryId, openDiskBlobs } from '#shared/blobs/disk.ts'
import { BLOBS_LEASE, watchFleetBlobs } from '#shared/blobs/fleet-blobs.ts'
import { parseConfig } from '#shared/config/config.ts'
import { runCheck } from '#shared/doctor/check.ts'
import { postgresCheck } from '#shared/doctor/postgres.ts'
import { openPostgresDatabase } from '../../support/jobs/stores.ts'

const postgres = inject('postgres')

/** Simulates the lease of the store. The first process that requests the lease holds it forever. */
function openLeases() {
  let holder: string | undefined
  return {
    holdLease: async (_name: string, boot: string) => {
      holder ??= boot
      return holder === boot
    },
  }
}

describe('the blob store of a fleet', () => {
  let directories: string[]
  beforeEach(async () => {
    directories = await Promise.all([1, 2].map(() => mkdtemp(join(tmpdir(), 'sluice-blobs-'))))
  })
  afterEach(async () => {
    for (const directory of directories) await rm(directory, { recursive: true, force: true })
  })
  const [first, second] = [() => directories[0] ?? '', () => directories[1] ?? '']
  type Watched = Parameters<typeof watchFleetBlobs>
  const watch = async (directory: string, leases: Watched[2], log: Watched[3]) =>
    watchFleetBlobs(await openDiskBlobs(directory), directory, leases, log)
  const openLog = () => {
    const lines: string[] = []
    return { lines, log: pino({ level: 'info' }, { write: (line: string) => void lines.push(line) }) }
  }

  it('must be the same for all processes: a process with another store logs an error', async () => {
    const leases = openLeases()
    const { lines, log } = openLog()
    const stops = await Promise.all([1, 2, 3].map(() => watch(first(), leases, log)))
    expect(lines).toEqual([])
    stops.push(await watch(second(), leases, log))
    expect(lines.map((line) => JSON.parse(line))).toMatchObject([{ level: 50, blobs: second() }])
    for (const stop of stops) stop()
  })

  it('has a persistent id file, whose age is reset at each start', async () => {
    const { log } = openLog()
    ;(await watch(first(), openLeases(), log))()
    const id = await findDirectoryId(first())
    const path = join(first(), '.directory-id')
    await utimes(path, 0, 0)
    ;(await watch(first(), openLeases(), log))()
    expect(await findDirectoryId(first())).toBe(id)
    expect((await stat(path)).mtimeMs).toBeGreaterThan(Date.now() - 60_000)
  })

  it.skipIf(!postgres)('is compared by the doctor command with BLOB_DIR of the running processes', async () => {
    await using database = await openPostgresDatabase(postgres ?? '')
    const store = await database.open()
    const { log } = openLog()
    const found = async (BLOB_DIR: string) => {
      const config = parseConfig({ DATABASE_URL: database.url, KAFKA_BROKERS: 'k:1', BLOB_DIR })
      return (await runCheck(postgresCheck, config)).filter(({ check }) => check === 'blobs')
    }
    expect(await found(first())).toEqual([])
    const stop = await watch(first(), store, log)
    expect(await found(first())).toMatchObject([{ status: 'ok' }])
    expect(await found(second())).toMatchObject([{ status: 'fail', message: expect.stringContaining(second()) }])
    stop()
    expect(await store.holdLease(BLOBS_LEASE, 'another', 1)).toBe(false)
  })
})
