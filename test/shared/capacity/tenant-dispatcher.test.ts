import { afterEach, beforeEach, describe, expect, it, vi } from 'vitest'
import { maxMinPart, TenantDispatcher, type WaitingElsewhere } from '#shared/capacity/tenant-dispatcher.ts'

interface Waiter {
  readonly envelope: { readonly tenant: string; readonly kind: string; readonly model: string }
  readonly name: string
}

let turns: TenantDispatcher<Waiter>
let room: number | undefined
let isIdle: boolean
/** Concurrency limits, by model. */
let capacities: Map<string, number>
let slots: number
/** Calls that wait at other ingresses, by model. */
let elsewhere: Map<string, WaitingElsewhere>
/** Fraction of the slots that this ingress may use, by model. */
let shares: Map<string, number>
/** For each tenant: number of ingresses at which its calls wait. */
let spread: Map<string, number>
beforeEach(() => {
  vi.useFakeTimers()
  room = 2
  isIdle = false
  capacities = new Map()
  slots = 256
  elsewhere = new Map()
  shares = new Map()
  spread = new Map()
  turns = new TenantDispatcher<Waiter>('inference', {
    prefetch: () => room,
    presence: {
      slots: () => slots,
      freeSlots: () => (isIdle ? 1 : 0),
      capacityOf: (_pool, { model }) => capacities.get(model),
    },
    partition: {
      of: (_pool, { model }) => shares.get(model) ?? 1,
      waitingElsewhere: () => elsewhere,
      spread: (_pool, tenant) => spread.get(tenant) ?? 1,
    },
  })
})
afterEach(() => {
  vi.useRealTimers()
})

const WORK = { kind: 'say', model: 'm' }

function enter(tenant: string, ...names: string[]): Waiter[] {
  return enterFor('m', tenant, ...names)
}

function enterFor(model: string, tenant: string, ...names: string[]): Waiter[] {
  return names.map((name) => {
    const job = { envelope: { ...WORK, tenant, model }, name: `${tenant}${name}` }
    turns.enter(job)
    return job
  })
}

/** Returns the calls that the dispatcher sends until no capacity is left. */
function sent(): Waiter[] {
  const jobs: Waiter[] = []
  for (let job = turns.next(); job; job = turns.next()) jobs.push(job)
  return jobs
}

/**
 * Returns the names of the jobs in the order in which they are sent, if each job ends before the next one starts.
 * @param held Jobs that were sent before
 */
function order(held: readonly Waiter[] = []): string[] {
  const names: string[] = []
  const left = [...held]
  for (left.push(...sent()); left.length > 0; left.push(...sent())) {
    const job = left.shift() as Waiter
    if (!held.includes(job)) names.push(job.name)
    turns.leave(job)
    vi.advanceTimersByTime(1_000)
  }
  return names
}

describe('the fair queue of an ingress', () => {
  it('sends jobs at once up to the free capacity, and queues the rest', () => {
    enter('a', '1', '2', '3')
    expect(sent().map(({ name }) => name)).toEqual(['a1', 'a2'])
    expect(turns.hasWaiting).toBe(true)
    room = 3
    expect(sent().map(({ name }) => name)).toEqual(['a3'])
    expect(turns.hasWaiting).toBe(false)
  })

  it('alternates between tenants, and keeps the order of each tenant', () => {
    enter('a', '1', '2', '3', '4')
    enter('b', '1', '2')
    enter('c', '1')
    expect(order()).toEqual(['a1', 'b1', 'c1', 'a2', 'b2', 'a3', 'a4'])
  })

  it("sends one job per round for a tenant, even if the tenant's queue was empty for a moment", () => {
    room = 1
    enter('a', '1', '2')
    enter('b', '1', '2')
    const first = sent()
    enter('a', '3')
    expect(order(first)).toEqual(['a2', 'b2', 'a3'])
  })

  it('skips a tenant in two of three rounds if the tenant waits at three ingresses', () => {
    room = 1
    spread.set('a', 3)
    enter('a', '1', '2', '3', '4')
    enter('b', '1', '2', '3', '4')
    // After the first calls, both tenants have a running job. Tenant a also waits at two other ingresses, so this ingress must skip it in
    // two of three rounds.
    const first = sent()
    expect(first.map(({ name }) => name)).toEqual(['a1', 'b1'])
    expect(order(first)).toEqual(['b2', 'b3', 'a2', 'b4', 'a3', 'a4'])
  })

  it('sends a retried job before all other jobs', () => {
    room = 1
    enter('a', '1', '2')
    enter('b', '1', '2')
    const first = sent()
    const [again] = enter('c', '3')
    turns.leave(again as Waiter)
    turns.enterFirst(again as Waiter)
    expect(order(first)).toEqual(['c3', 'a2', 'b2'])
  })

  it('sends one job of each tenant without a running job, even beyond the capacity', () => {
    enter('a', '1', '2', '3', '4')
    for (const tenant of ['b', 'c', 'd']) enter(tenant, '1', '2')
    const names = sent().map(({ name }) => name)
    expect(names).toEqual(['a1', 'b1', 'c1', 'd1'])
    expect([turns.waiting, turns.running]).toEqual([6, 0])
  })

  it('sends one job of a tenant without a running job, even if all slots of the model are in use', () => {
    room = 100
    capacities.set('m', 1)
    enter('a', '1', '2', '3', '4')
    for (const job of sent()) turns.start(job)
    expect(turns.running).toBe(3)
    enter('b', '1', '2')
    expect(sent().map(({ name }) => name)).toEqual(['b1'])
  })

  it('sends more jobs in advance if the workers finish jobs quickly', () => {
    room = 1
    enter('a', ...Array.from({ length: 200 }, (_, i) => `${i}`))
    const rounds: number[] = []
    for (let i = 0; i < 8; i++) {
      const jobs = sent()
      rounds.push(jobs.length)
      vi.advanceTimersByTime(5)
      for (const job of jobs) turns.leave(job)
    }
    expect(rounds).toEqual([1, 1, 1, 2, 2, 2, 3, 3])
  })

  it('sends no additional jobs in advance if many jobs start at the same moment', () => {
    room = 10
    enter('a', ...Array.from({ length: 100 }, (_, i) => `${i}`))
    const first = sent()
    vi.advanceTimersByTime(1_000)
    for (const job of first) turns.start(job)
    room = 1
    expect(sent()).toHaveLength(3)
  })

  it('sends no job while the broker is unreachable', () => {
    room = undefined
    enter('a', '1')
    expect(sent()).toEqual([])
    room = 1
    expect(sent().map(({ name }) => name)).toEqual(['a1'])
  })

  it('skips jobs that were cancelled while waiting', () => {
    const [, second] = enter('a', '1', '2', '3')
    const [only] = enter('b', '1')
    turns.leave(second as Waiter)
    turns.leave(only as Waiter)
    turns.leave(only as Waiter)
    expect(order()).toEqual(['a1', 'a3'])
  })

  it('reports the number of jobs that start before a new job of a tenant', () => {
    enter('a', '1', '2', '3', '4', '5')
    expect([turns.ahead('a', WORK), turns.ahead('b', WORK)]).toEqual([5, 1])
    sent()
    expect([turns.ahead('a', WORK), turns.ahead('b', WORK)]).toEqual([5, 3])
    enter('b', '1')
    expect([turns.ahead('a', WORK), turns.ahead('b', WORK)]).toEqual([6, 5])
  })

  it('does not count jobs that were sent long ago if the workers are idle', () => {
    enter('a', '1', '2', '3')
    sent()
    vi.advanceTimersByTime(60_000)
    expect(sent()).toEqual([])
    isIdle = true
    expect(sent().map(({ name }) => name)).toEqual(['a3'])
    enter('a', '4', '5')
    vi.advanceTimersByTime(500)
    expect(sent().map(({ name }) => name)).toEqual(['a4'])
    expect(turns.hasWaiting).toBe(true)
  })

  it('sends at most two jobs more than a model has slots, until a job of the model ends', () => {
    room = 100
    capacities.set('m', 3)
    const names = Array.from({ length: 12 }, (_, i) => `${i}`)
    enter('a', ...names)
    const first = sent()
    expect(first.map(({ name }) => name)).toEqual(['a0', 'a1', 'a2', 'a3', 'a4'])
    for (const job of first) turns.start(job)
    expect(sent()).toEqual([])
    vi.advanceTimersByTime(1_000)
    expect(turns.leave(first[1] as Waiter)).toBe(true)
    expect(sent().map(({ name }) => name)).toEqual(['a5'])
  })

  it('sends jobs of a model with free slots before jobs of a model without free slots', () => {
    room = 100
    capacities.set('m', 1)
    enter('a', '1', '2', '3', '4', '5')
    enter('b', '1', '2')
    expect(sent().map(({ name }) => name)).toEqual(['a1', 'b1', 'a2'])
    enterFor('quick', 'a', '6')
    enterFor('quick', 'b', '3')
    expect(sent().map(({ name }) => name)).toEqual(['b3', 'a6'])
    expect(turns.waitingOf('m')).toBe(4)
  })

  it('counts only jobs of the same model ahead of a new job if the model has a concurrency limit', () => {
    room = 100
    capacities.set('m', 1)
    enter('a', '1', '2', '3', '4', '5')
    enterFor('quick', 'a', '6', '7')
    for (const job of sent()) turns.start(job)
    expect(turns.ahead('a', WORK)).toBe(5)
    expect(turns.ahead('b', WORK)).toBe(4)
    expect(turns.ahead('a', { kind: 'say', model: 'quick' })).toBe(0)
  })

  it('divides the slots between models in max-min fair shares', () => {
    room = 100
    slots = 8
    for (const model of ['m', 'quick', 'rare']) capacities.set(model, 8)
    enter('a', ...Array.from({ length: 40 }, (_, i) => `${i}`))
    const first = sent()
    expect(first).toHaveLength(8 + 2)
    for (const job of first) turns.start(job)
    enterFor('rare', 'a', 'r')
    enterFor('quick', 'a', ...Array.from({ length: 40 }, (_, i) => `q${i}`))
    // The 8 slots are divided: `rare` has one call and gets 1 slot. `m` and `quick` get 3.5 slots each. With 2 prefetched calls, `quick` may
    // send 3.5 + 2 calls, rounded up to 6.
    expect(sent().map(({ envelope }) => envelope.model)).toEqual(['rare', ...Array(6).fill('quick')])
    vi.advanceTimersByTime(1_000)
    for (const job of first.slice(0, 4)) turns.leave(job)
    expect(sent()).toEqual([])
    turns.leave(first[4] as Waiter)
    expect(sent().map(({ envelope }) => envelope.model)).toEqual(['m'])
  })

  it('counts the jobs that wait at other ingresses when it divides slots between models', () => {
    room = 100
    slots = 8
    for (const model of ['m', 'quick']) capacities.set(model, 8)
    const work = { kind: 'say', model: 'quick' }
    elsewhere.set('say quick', { work, calls: 3 })
    enter('a', ...Array.from({ length: 40 }, (_, i) => `${i}`))
    expect(sent()).toHaveLength(5 + 2)
    elsewhere.set('say quick', { work, calls: 300 })
    expect(sent()).toEqual([])
    elsewhere.clear()
    expect(sent()).toHaveLength(3)
  })

  it('does not count lost jobs against the slots of their model', () => {
    room = 100
    capacities.set('m', 1)
    enter('a', '1', '2', '3', '4')
    expect(sent()).toHaveLength(3)
    isIdle = true
    vi.advanceTimersByTime(3_000)
    expect(sent().map(({ name }) => name)).toEqual(['a4'])
  })
})

describe('the max-min fair share', () => {
  it.each([
    [[], 8, Number.POSITIVE_INFINITY],
    [[300], 256, 256],
    [[256, 10], 256, 246],
    [[256, 256], 256, 128],
    [[256, 10, 200], 256, 123],
    [[4, 4], 8, Number.POSITIVE_INFINITY],
    [[1, 1], 0, 0],
  ])('for the demands %j and %i slots is %d', (wanted, of, part) => {
    expect(maxMinPart(wanted, of)).toBe(part)
  })
})
