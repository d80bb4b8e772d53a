import { afterEach, beforeEach, describe, expect, it } from 'vitest'
import type { Broker } from '#shared/broker/broker.ts'
import { Dispatcher } from '#shared/jobs/durable/dispatch.ts'
import { LiveEvents, waitForEnd } from '#shared/jobs/durable/follow.ts'
import { EVENTS, eventPartition } from '#shared/jobs/records.ts'
import { openSqliteStore } from '#shared/store/sqlite/sqlite.ts'
import { ALL_TENANTS, type Store, type TransitionResult } from '#shared/store/store.ts'
import { openScratch } from '../../../simulation/scratch.ts'
import { openBroker, silentLog } from '../../../support/jobs/jobs.ts'
import { alive, newJob } from '../../../support/jobs/stores.ts'
import { until } from '../../../support/stack.ts'

const RESULT = { text: 'done' }

let scratch: ReturnType<typeof openScratch>
let store: Store
let broker: Broker
let live: LiveEvents
beforeEach(async () => {
  scratch = openScratch()
  store = openSqliteStore({ directory: scratch.path, boot: 'test' })
  broker = await openBroker()
  live = await LiveEvents.open(broker, silentLog)
})
afterEach(async () => {
  await live.close()
  await store.close()
  scratch[Symbol.dispose]()
})

/** Starts a job and a call that waits for its end. Also counts how often the call reads the store. */
async function arrange() {
  const boot = await alive(store)
  const { id } = newJob()
  await store.create(newJob({ id }))
  await store.claim(id, boot)
  const wait = { reads: 0, isOver: false, left: new AbortController() }
  const find = async () => {
    wait.reads++
    const job = await store.find(ALL_TENANTS, id)
    if (!job) throw new Error('no job')
    return job
  }
  const awaited = waitForEnd({ live, id, find, signal: wait.left.signal }).finally(() => {
    wait.isOver = true
  })
  await until(() => wait.reads === 1)
  const complete = async (result: unknown): Promise<TransitionResult> => {
    const moved = await store.complete({ id, attempt: 1, boot, chunk: 0 }, { result })
    if (!moved) throw new Error('not completed')
    return moved
  }
  return { id, wait, awaited, complete }
}

describe('the wait for the end of a durable job', () => {
  it('returns the job and its result from the notification, without another store read', async () => {
    const { id, wait, awaited, complete } = await arrange()
    new Dispatcher(broker, silentLog).publishMoved(await complete(RESULT), RESULT)
    expect(await awaited).toEqual({ job: await store.find(ALL_TENANTS, id), result: RESULT })
    expect(wait.reads).toBe(1)
  })

  it('reads the job from the store if its result is too large for a notification', async () => {
    const { wait, awaited, complete } = await arrange()
    const large = { text: 'x'.repeat(100_000) }
    new Dispatcher(broker, silentLog).publishMoved(await complete(large), large)
    expect(await awaited).toMatchObject({ job: { state: 'completed' } })
    expect([(await awaited).result, wait.reads]).toEqual([undefined, 2])
  })

  it('reads the job from the store if the notification is missing or cannot be parsed', async () => {
    const { awaited, complete } = await arrange()
    await complete(RESULT)
    expect(await awaited).toMatchObject({ job: { state: 'completed' } })
    const other = await arrange()
    const { events } = await other.complete(RESULT)
    const record = { last_seq: events.at(-1)?.seq, events, end: { verdict: 'good' } }
    await broker.send(EVENTS, eventPartition(other.id), other.id, Buffer.from(JSON.stringify(record)))
    expect(await other.awaited).toMatchObject({ job: { state: 'completed' } })
    expect(other.wait.reads).toBe(2)
  })

  it('continues after progress events, and returns the unfinished job after the timeout', async () => {
    const { id, wait, awaited } = await arrange()
    const [event] = await store.listEvents(ALL_TENANTS, id, 1, 1)
    await broker.send(EVENTS, eventPartition(id), id, Buffer.from(JSON.stringify({ last_seq: 2, events: [event] })))
    expect([wait.isOver, wait.reads]).toEqual([false, 1])
    wait.left.abort()
    expect(await awaited).toMatchObject({ job: { state: 'in_progress' } })
  })
})
