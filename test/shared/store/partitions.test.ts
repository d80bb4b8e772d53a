/** Tests that several processes may create and drop partitions at the same time, as when a fleet starts on a new day. */
import { describe, expect, inject, it } from 'vitest'
import { PostgresConnection } from '#shared/store/postgres/connection.ts'
import { openPostgresStore } from '#shared/store/postgres/postgres.ts'
import { addPartitions } from '#shared/store/postgres/schema.ts'
import { openPostgresDatabase, type TestDatabase } from '../../support/jobs/stores.ts'

const postgres = inject('postgres')
const DAY_MS = 24 * 3_600_000
const PROCESSES = 12
const ROUNDS = 3

const partitions = async (database: TestDatabase) =>
  await database.query(
    `SELECT inhparent::regclass::text, count(*)::int FROM pg_inherits JOIN pg_class ON oid = inhparent
     WHERE relkind = 'p' AND relnamespace = current_schema::regnamespace GROUP BY 1 ORDER BY 1`,
  )
const days = (count: number) =>
  ['job_events', 'job_steps', 'jobs', 'requests'].map((inhparent) => ({ inhparent, count }))

describe.skipIf(!postgres)('the daily partitions in Postgres', () => {
  it('are created once by processes that need them at the same time', async () => {
    await using database = await openPostgresDatabase(postgres ?? '')
    await (await database.open()).close()
    const connections = Array.from({ length: PROCESSES }, () => openConnection(database.url))
    const settled: PromiseSettledResult<void>[] = []
    for (let round = 1; round <= ROUNDS; round++) {
      const around = Date.now() + 30 * round * DAY_MS
      settled.push(...(await Promise.allSettled(connections.map((connection) => addPartitions(connection, around)))))
    }
    for (const connection of connections) await connection.close()
    expect(settled.filter(({ status }) => status === 'rejected')).toEqual([])
    expect(await partitions(database)).toEqual(days(5 + 5 * ROUNDS))
  })

  it('are dropped without an error if several processes start and purge at the same time', async () => {
    await using database = await openPostgresDatabase(postgres ?? '')
    const first = await database.open()
    await database.advance(10 * DAY_MS)
    const open = () => openPostgresStore({ url: database.url, onProblem: () => undefined })
    const stores = [first, ...(await Promise.all(Array.from({ length: 5 }, open)))]
    await database.advance(3 * DAY_MS)
    const settled = await Promise.allSettled(stores.map((store) => store.purge({ keepMs: DAY_MS, rowsMax: 1_000 })))
    for (const store of stores) await store.close()
    expect(settled.filter(({ status }) => status === 'rejected')).toEqual([])
    expect(await partitions(database)).toEqual(days(5))
  })
})

function openConnection(url: string): PostgresConnection {
  return new PostgresConnection({ url, connectionsMax: 1, statementTimeoutMs: 20_000, onProblem: () => undefined })
}
