/** Tests of the counts of stored bytes that every store adapter must pass. */
import { afterEach, beforeEach, describe, expect, inject, it } from 'vitest'
import { newConversationId, newFileId } from '#shared/store/records.ts'
import type { Store } from '#shared/store/store.ts'
import {
  HOUR_MS,
  openPostgresDatabase,
  openSqliteDatabase,
  running,
  type TestDatabase,
} from '../../support/jobs/stores.ts'

const postgres = inject('postgres')
const ADAPTERS = [
  { name: 'sqlite', isHere: true, openDatabase: openSqliteDatabase },
  { name: 'postgres', isHere: postgres !== null, openDatabase: () => openPostgresDatabase(postgres ?? '') },
]
const TENANT = 'key_a'
const MIB = 1024 ** 2

describe.each(ADAPTERS)('the count of stored bytes on $name', ({ name, isHere, openDatabase }) => {
  let database: TestDatabase
  let store: Store
  beforeEach(async (context) => {
    if (!isHere) context.skip('no Postgres')
    database = await openDatabase()
    store = await database.open()
  })
  afterEach(async () => {
    if (isHere) await database[Symbol.asyncDispose]()
  })

  const used = async (tenant = TENANT) => (await store.storedBytes.hold(tenant, 'reader', 0, 0)).used
  const file = (bytes: number, keepMs = HOUR_MS) => ({
    ...{ id: newFileId(), tenant: TENANT, purpose: 'vision', filename: 'a', bytes, keepMs },
  })

  it('includes requests, blobs, steps and results of a job until the job is erased', async () => {
    const request = { body: 'x'.repeat(1_000) }
    const run = await running(store, { tenant: TENANT, request, blobBytes: 5 * MIB })
    const ofRequest = JSON.stringify(request).length + 5 * MIB
    expect(await used()).toBe(ofRequest)
    const output = [{ type: 'job.output.delta' as const, data: 'y'.repeat(500) }]
    await store.append(run, output)
    const step = { key: 'k', kind: 'search', output: { value: 1 }, cost: {}, blobBytes: 300 }
    await store.addStep({ ...run, chunk: 1 }, step, [])
    expect(await used(), 'bytes of a running job').toBe(ofRequest)
    await store.complete({ ...run, chunk: 2 }, { result: 'z'.repeat(700) })
    expect(await used()).toBe(ofRequest + 502 + '{"value":1}'.length + 300 + 702)
    expect(await used('key_b')).toBe(0)
    await store.erase(TENANT, run.id)
    expect(await used()).toBe(0)
  })

  it('includes child jobs, and excludes purged jobs', async () => {
    const run = await running(store, { tenant: TENANT, request: {} })
    const child = { id: `${run.id.slice(0, 14)}${'c'.repeat(22)}`, pool: 'embeddings', kind: 'embed' } as const
    const made = { ...child, endpoint: '/v1/embeddings', model: 'm', request: { body: 'abc' }, blobBytes: 40 }
    await store.submitChild(run, made)
    expect(await used()).toBe(2 + '{"body":"abc"}'.length + 40)
    await store.complete({ ...run, chunk: 1 }, { result: null })
    await store.cancel(TENANT, child.id)
    await database.advance(30 * 24 * HOUR_MS)
    for (let more = true; more; ) more = (await store.purge()).hasMore
    expect(await used()).toBe(0)
  })

  it('includes files and conversations until they are deleted or expire', async () => {
    const kept = file(100)
    await store.files.create(kept, { filesMax: 9 })
    await store.files.create(file(7, 1_000), { filesMax: 9 })
    const conversation = { id: newConversationId(), tenant: TENANT, metadata: {}, items: [] }
    await store.conversations.create(conversation, { keepMs: HOUR_MS, most: 9 })
    expect(await used()).toBe(107 + '[]'.length)
    const read = await store.conversations.find(TENANT, conversation.id)
    if (read) await store.conversations.change(read, { items: [{ id: 'é' } as never] }, HOUR_MS)
    expect(await used(), 'bytes in UTF-8, not characters').toBe(107 + '[{"id":"é"}]'.length + 1 + '[]'.length)
    await database.advance(2_000)
    await store.files.purge(9)
    await store.files.delete(TENANT, kept.id)
    await store.conversations.delete(TENANT, conversation.id)
    await store.storedBytes.tidy()
    expect(await used()).toBe(0)
  })

  it('grants reservations of a project up to its quota', async () => {
    await store.files.create(file(60), { filesMax: 9 })
    expect(await store.storedBytes.hold(TENANT, 'one', 41, 100)).toEqual({ isGranted: false, used: 60 })
    expect(await store.storedBytes.hold(TENANT, 'one', 40, 100)).toMatchObject({ isGranted: true })
  })

  it('grants reservations of concurrent processes up to the quota of the project', async (context) => {
    if (name === 'sqlite') context.skip('one process has the file')
    const ask = (boot: string, bytes: number) => store.storedBytes.hold(TENANT, boot, bytes, 100)
    const answers = await Promise.all(Array.from({ length: 12 }, (_, i) => ask(`ing_${i}`, 30)))
    expect(answers.filter(({ isGranted }) => isGranted)).toHaveLength(3)
    const holder = answers.findIndex(({ isGranted }) => isGranted)
    expect(await ask(`ing_${holder}`, 10), 'smaller reservation of a holder').toMatchObject({
      isGranted: true,
      used: 60,
    })
    expect(await ask('other', 30)).toMatchObject({ isGranted: true })
    await database.advance(store.storedBytes.keepMs + 1)
    expect(await ask('late', 100)).toEqual({ isGranted: true, used: 0 })
  })
})
