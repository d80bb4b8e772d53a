import { afterEach, beforeEach, describe, expect, it } from 'vitest'
import type { JobEnvelope } from '#schemas/job.ts'
import type { Broker } from '#shared/broker/broker.ts'
import { DurableRuns } from '#shared/jobs/worker/durable-runs.ts'
import type { Handler } from '#shared/kinds/kind.ts'
import { ServiceError } from '#shared/lib/error.ts'
import { newJobId, REAPER_LEASE } from '#shared/store/jobs.ts'
import { openSqliteStore } from '#shared/store/sqlite/sqlite.ts'
import type { Store } from '#shared/store/store.ts'
import { VirtualClock } from '../../../simulation/clock.ts'
import { openScratch } from '../../../simulation/scratch.ts'
import { memoryBlobs } from '../../../support/jobs/blobs.ts'
import { openBroker, sayKind, silentLog } from '../../../support/jobs/jobs.ts'

const BOOT = 'wrk_1'
const TENANT = 'key_1'
const LEASE_MS = 9_000
const POLICY = { crashesMax: 3, cancelGraceMs: 10_000, deadlineGraceMs: 10_000 }

const say: Handler = {
  ...sayKind,
  parse: (body) => body,
  run: () => {
    throw new Error('not run here')
  },
}

let clock: VirtualClock
let restore: () => void
let scratch: ReturnType<typeof openScratch>
let store: Store
let broker: Broker
beforeEach(async () => {
  clock = new VirtualClock()
  restore = clock.install(Math.random)
  scratch = openScratch()
  store = openSqliteStore({ directory: scratch.path, boot: 'test', now: clock.databaseMs, sync: async () => {} })
  broker = await openBroker()
})
afterEach(async () => {
  await store.close()
  restore()
  scratch[Symbol.dispose]()
})

/** Waits for a promise, and advances the fake time until it settles. */
async function passing<T>(promise: Promise<T>): Promise<T> {
  let isSettled = false
  const settle = () => {
    isSettled = true
  }
  promise.then(settle, settle)
  await clock.run(clock.nowMs + 60_000, () => isSettled)
  return await promise
}

const pass = (ms: number) => clock.run(clock.nowMs + ms)

/** Wraps the store, and replaces some of its methods. */
function storeWith(other: Partial<Store>): Store {
  return new Proxy(store, {
    get(target, name) {
      if (Object.hasOwn(other, name)) return Reflect.get(other, name) as unknown
      const value = Reflect.get(target, name) as unknown
      return typeof value === 'function' ? value.bind(target) : value
    },
  })
}

async function open(through: Store = store, boot = BOOT): Promise<DurableRuns> {
  const self = { boot, role: 'inference', version: 'test', slots: 4, isDraining: () => false } as const
  const more = { blobs: memoryBlobs(), notifyOwner: () => {}, leaseMs: LEASE_MS }
  return await passing(DurableRuns.open({ store: through, broker, log: silentLog, ...more, ...self }))
}

async function submit(tenant = TENANT): Promise<JobEnvelope> {
  const id = newJobId()
  const encode = { request_id: 'req_1', call_id: '1', created_at: 0, model: 'm', include_usage: false, version: '' }
  const more = { pool: 'inference', kind: 'say', endpoint: '/v1', model: 'm', stream: true } as const
  const times = { deadlineInMs: 600_000, retentionMs: 600_000 }
  await passing(store.create({ id, tenant, request: { body: {}, encode }, ...more, ...times }))
  const now = Date.now()
  return { ...more, id, encode, attempt: 0, tenant, created_at_ms: now, deadline_ms: now + 600_000 }
}

const OF = { pool: 'inference', kind: 'say', model: 'm', priority: 'normal' } as const

/** Claims a job. Also returns the reason for which the run is later stopped. */
async function claim(runs: DurableRuns, { id }: JobEnvelope) {
  const [claimed] = (await passing(runs.claimNext(OF, say, 1))) ?? []
  if (!claimed) return undefined
  expect(claimed.job.id).toBe(id)
  const stops: string[] = []
  claimed.sink.onStop = (reason) => stops.push(reason)
  return { ...claimed, stops }
}

/** Ends the lease of a worker, and requeues its job, as the lease sweep does. */
async function reap(owner: string): Promise<void> {
  await passing(store.deregister(owner))
  await passing(store.holdLease(REAPER_LEASE, 'sch_1', 60_000))
  await passing(store.reap('sch_1', POLICY, 10))
}

const stateOf = async (id: string) => (await store.find(TENANT, id))?.state

describe('the durable jobs of a worker', () => {
  it('are claimed with an attempt number, and with a deadline converted to the local clock', async () => {
    const runs = await open()
    const envelope = await submit()
    const claimed = await claim(runs, envelope)
    expect(claimed?.job).toMatchObject({ id: envelope.id, attempt: 1 })
    expect((claimed?.job.deadline_ms ?? 0) - Date.now()).toBe(600_000)
    expect(await stateOf(envelope.id)).toBe('in_progress')
  })

  it('are not claimed a second time', async () => {
    const runs = await open()
    const envelope = await submit()
    const [first, second] = await passing(Promise.all([runs.claimNext(OF, say, 1), runs.claimNext(OF, say, 1)]))
    expect([first?.[0]?.job.attempt, second]).toEqual([1, []])
    expect(await claim(runs, envelope)).toBeUndefined()
  })

  it('are claimed round robin by tenant, even if each claim returns one job', async () => {
    const runs = await open()
    for (const tenant of ['a', 'a', 'a', 'b', 'c', 'c']) await submit(tenant)
    const tenants: (string | undefined)[] = []
    for (let turns = 0; turns < 6; turns++) {
      const [claimed] = (await passing(runs.claimNext(OF, say, 1))) ?? []
      tenants.push(claimed?.job.tenant)
      await passing(claimed?.sink.completed() ?? Promise.resolve())
    }
    expect(tenants).toEqual(['a', 'b', 'c', 'a', 'c', 'a'])
  })

  it('stop as cancelled at the next lease renewal after a cancel', async () => {
    const runs = await open()
    const claimed = await claim(runs, await submit())
    await passing(store.cancel(TENANT, claimed?.job.id ?? ''))
    await pass(LEASE_MS / 3)
    expect(claimed?.stops).toEqual(['cancelled'])
  })

  it('stop as lost at the next lease renewal after they were requeued', async () => {
    const runs = await open()
    const claimed = await claim(runs, await submit())
    await reap(BOOT)
    await pass(LEASE_MS / 3)
    expect(claimed?.stops).toEqual(['lost'])
    expect(await stateOf(claimed?.job.id ?? '')).toBe('queued')
  })

  it('stop shortly before the lease ends if the lease is not renewed', async () => {
    let isDown = false
    const renew: Store['renew'] = async (process) => {
      if (isDown) throw new ServiceError('overloaded', 'The store is down.')
      return await store.renew(process)
    }
    const runs = await open(storeWith({ renew }))
    const claimed = await claim(runs, await submit())
    await pass(LEASE_MS / 3)
    isDown = true
    await pass(LEASE_MS - 1_500)
    expect(claimed?.stops).toEqual([])
    await pass(1_000)
    expect(claimed?.stops).toEqual(['lapsed'])
    const other = await submit()
    expect(await passing(runs.claimNext(OF, say, 1))).toBeUndefined()
    isDown = false
    await pass(LEASE_MS / 3)
    expect(await claim(runs, other)).toBeDefined()
  })

  it('run only in the new attempt if the same worker claims them again', async () => {
    let renewal: PromiseWithResolvers<void> | undefined
    const renew: Store['renew'] = async (process) => {
      const owned = await store.renew(process)
      await renewal?.promise
      return owned
    }
    const runs = await open(storeWith({ renew }))
    const envelope = await submit()
    const first = await claim(runs, envelope)
    await reap(BOOT)
    renewal = Promise.withResolvers()
    await pass(LEASE_MS / 3)
    const second = await claim(runs, envelope)
    renewal.resolve()
    renewal = undefined
    await pass(LEASE_MS)
    expect(second?.job.attempt).toBe(2)
    expect([first?.stops, second?.stops]).toEqual([['lost'], []])
  })

  it('are requeued and published again if the response to their claim was lost', async () => {
    const claimInto: Store['claimNext'] = async (...claim) => {
      await store.claimNext(...claim)
      throw new ServiceError('overloaded', 'The answer is lost.')
    }
    const runs = await open(storeWith({ claimNext: claimInto }))
    const envelope = await submit()
    expect(await claim(runs, envelope)).toBeUndefined()
    expect(await stateOf(envelope.id)).toBe('in_progress')
    await pass(LEASE_MS)
    expect(await stateOf(envelope.id)).toBe('queued')
    expect(await broker.lag('jobs.inference')).toBe(1)
    const events = await store.listEvents(TENANT, envelope.id, 0, 10)
    expect(events.map(({ type }) => type)).toEqual(['job.queued', 'job.started', 'job.retrying'])
  })

  it('are requeued only once by a worker that received no response to its claim, even if the requeue is slow', async () => {
    const claimNext: Store['claimNext'] = async (...claim) => {
      await store.claimNext(...claim)
      throw new ServiceError('overloaded', 'The answer is lost.')
    }
    const answer = Promise.withResolvers<void>()
    let requeues = 0
    const handBack: Store['handBack'] = async (...run) => {
      requeues++
      await answer.promise
      return await store.handBack(...run)
    }
    const runs = await open(storeWith({ claimNext, handBack }))
    const envelope = await submit()
    await claim(runs, envelope)
    await pass(2 * LEASE_MS)
    answer.resolve()
    await pass(LEASE_MS)
    expect(requeues).toBe(1)
    expect(await stateOf(envelope.id)).toBe('queued')
  })

  it('do not delay the end of their worker if a requeue hangs', async () => {
    const claimNext: Store['claimNext'] = async (...claim) => {
      await store.claimNext(...claim)
      throw new ServiceError('overloaded', 'The answer is lost.')
    }
    const runs = await open(storeWith({ claimNext, handBack: () => new Promise(() => {}) }))
    const envelope = await submit()
    await claim(runs, envelope)
    await pass(LEASE_MS)
    await passing(runs.close())
    await reap(BOOT)
    expect(await stateOf(envelope.id)).toBe('queued')
  })

  it('are not started if the lease ended before the response to their claim arrived', async () => {
    let isDown = false
    const answer = Promise.withResolvers<void>()
    const renew: Store['renew'] = async (process) => {
      if (isDown) throw new ServiceError('overloaded', 'The store is down.')
      return await store.renew(process)
    }
    const claimNext: Store['claimNext'] = async (...claim) => {
      const claimed = await store.claimNext(...claim)
      await answer.promise
      return claimed
    }
    const runs = await open(storeWith({ renew, claimNext }))
    const envelope = await submit()
    const claimed = runs.claimNext(OF, say, 1)
    isDown = true
    await pass(LEASE_MS)
    expect(runs.isLapsed).toBe(true)
    isDown = false
    await pass(LEASE_MS / 3)
    expect(runs.isLapsed).toBe(false)
    answer.resolve()
    expect(await passing(claimed)).toBeUndefined()
    await pass(LEASE_MS / 3)
    expect(await stateOf(envelope.id)).toBe('queued')
  })

  it('are not affected by a lease renewal that was in flight when they ended', async () => {
    let renewal: PromiseWithResolvers<void> | undefined
    const renew: Store['renew'] = async (process) => {
      const owned = await store.renew(process)
      await renewal?.promise
      return owned
    }
    const runs = await open(storeWith({ renew }))
    const claimed = await claim(runs, await submit())
    renewal = Promise.withResolvers()
    await pass(LEASE_MS / 3)
    await passing(claimed?.sink.completed() ?? Promise.resolve())
    runs.release(claimed?.job as JobEnvelope)
    renewal.resolve()
    await pass(0)
    expect(await stateOf(claimed?.job.id ?? '')).toBe('completed')
    expect(await broker.lag('jobs.inference')).toBe(0)
  })

  it('are requeued as soon as their worker has deregistered', async () => {
    const runs = await open()
    const claimed = await claim(runs, await submit())
    await passing(runs.close())
    await passing(store.holdLease(REAPER_LEASE, 'sch_1', 60_000))
    await passing(store.reap('sch_1', POLICY, 10))
    expect(await stateOf(claimed?.job.id ?? '')).toBe('queued')
  })
})

it('a worker with an expired lease claims no durable job', async () => {
  const runs = await open(storeWith({ renew: async () => [] }))
  expect(await claim(runs, await submit())).toBeUndefined()
})
