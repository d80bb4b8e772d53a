import { afterEach, beforeEach, describe, expect, it, vi } from 'vitest'
import type { ControlRecord } from '#schemas/event.ts'
import { SlotPartition, type WaitingCalls } from '#shared/capacity/slots.ts'
import { TenantDispatcher } from '#shared/capacity/tenant-dispatcher.ts'

type WaitingRecord = Extract<ControlRecord, { type: 'calls_waiting' }>

beforeEach(() => {
  vi.useFakeTimers()
})
afterEach(() => {
  for (const ingress of fleet.splice(0)) ingress.shares.close()
  vi.useRealTimers()
})

const WORK = { kind: 'say', model: 'm' }
const fleet: Ingress[] = []

interface Call {
  readonly envelope: { readonly tenant: string; readonly kind: string; readonly model: string }
  readonly ingress: Ingress
}

/** An ingress of a fleet, connected to the others by a simulated channel. The calls of the ingress wait for a pool with `slots` slots. */
class Ingress {
  readonly told: WaitingRecord[] = []
  readonly shares: SlotPartition
  readonly turns: TenantDispatcher<Call>

  constructor(slots: number, capacityOf: (model: string) => number | undefined = () => undefined) {
    this.shares = new SlotPartition({
      boot: `ing_${fleet.length}`,
      publish: (record) => {
        this.told.push(record)
        for (const ingress of fleet) ingress.shares.receive(record)
      },
      waiting: () => this.#waiting(),
      onChange: () => {},
    })
    this.turns = new TenantDispatcher('inference', {
      prefetch: () => Math.ceil(slots * this.shares.of('inference')),
      presence: { slots: () => slots, freeSlots: () => 0, capacityOf: (_pool, { model }) => capacityOf(model) },
      partition: this.shares,
    })
    fleet.push(this)
  }

  enter(tenant: string, count: number, model = 'm'): void {
    for (let i = 0; i < count; i++) this.turns.enter({ envelope: { ...WORK, tenant, model }, ingress: this })
    this.shares.changed()
  }

  /** Returns the calls that the fair queue selects and sends now. */
  sent(): Call[] {
    const calls: Call[] = []
    for (let call = this.turns.next(); call; call = this.turns.next()) calls.push(call)
    return calls
  }

  *#waiting(): Generator<WaitingCalls> {
    for (const calls of this.turns.calls()) yield { pool: 'inference', ...calls }
  }
}

/**
 * Simulates a pool with one slot. Returns the tenants in the order in which their calls start.
 *
 * @param sent Calls that the ingresses had already sent
 */
function starts(count: number, sent: readonly Call[] = []): string[] {
  const queue = [...sent]
  const order: string[] = []
  while (order.length < count) {
    for (const ingress of fleet) queue.push(...ingress.sent())
    const call = queue.shift()
    if (!call) break
    order.push(call.envelope.tenant)
    call.ingress.turns.leave(call)
    // One job ends per second. If jobs ended faster, then the ingresses would prefetch more of them.
    vi.advanceTimersByTime(1_000)
  }
  return order
}

const countOf = (tenant: string, order: readonly string[]) => order.filter((each) => each === tenant).length

describe('the slot partition between ingresses that share a pool', () => {
  it('gives one ingress all slots if no other ingress has waiting calls', () => {
    const [one, two] = [new Ingress(6), new Ingress(6)]
    one.enter('a', 10)
    expect(one.sent()).toHaveLength(6)
    vi.advanceTimersByTime(500)
    expect([one.shares.of('inference'), two.shares.of('inference')]).toEqual([1, 0.5])
  })

  it('divides the slots by the number of waiting tenants at each ingress', () => {
    const [one, two] = [new Ingress(6), new Ingress(6)]
    one.enter('a', 10)
    two.enter('b', 10)
    two.enter('c', 10)
    vi.advanceTimersByTime(500)
    const first = fleet.map((ingress) => ingress.sent())
    expect(first.map(({ length }) => length)).toEqual([2, 4])
    const order = starts(40, first.flat())
    expect(['a', 'b', 'c'].map((tenant) => countOf(tenant, order))).toEqual([10, 10, 10])
    expect(order.slice(0, 27).filter((tenant) => tenant === 'a').length).toBeGreaterThanOrEqual(8)
    one.enter('a', 10)
    expect(one.shares.of('inference')).toBe(1)
  })

  it('gives each ingress at least one slot, even if the pool has fewer slots than ingresses', () => {
    for (let i = 0; i < 3; i++) new Ingress(1).enter(`t${i}`, 5)
    vi.advanceTimersByTime(500)
    expect(fleet.map((ingress) => ingress.sent().length)).toEqual([1, 1, 1])
  })

  it.each([1, 3])('starts a single call soon while another tenant floods %i of three ingresses', (flooded) => {
    for (let i = 0; i < 3; i++) new Ingress(1)
    for (const ingress of fleet.slice(0, flooded)) ingress.enter('flood', 100)
    vi.advanceTimersByTime(500)
    for (const ingress of fleet) ingress.sent()
    fleet[0]?.enter('other', 1)
    // At most two calls per flooded ingress may start before the call of `other`: one that was already sent, and one further call.
    expect(starts(10).indexOf('other')).toBeLessThanOrEqual(2 * flooded)
  })

  it('gives equal slots to a tenant at three ingresses and to a tenant at one', () => {
    for (let i = 0; i < 3; i++) new Ingress(12)
    for (const ingress of fleet) ingress.enter('wide', 300)
    fleet[0]?.enter('narrow', 300)
    vi.advanceTimersByTime(500)
    const order = starts(200).slice(20)
    expect(countOf('narrow', order) / order.length).toBeGreaterThan(0.42)
    expect(countOf('wide', order) / order.length).toBeGreaterThan(0.42)
  })

  it('divides the slots of a limited model among the ingresses where calls of this model wait', () => {
    const capacity = (model: string) => (model === 'few' ? 8 : undefined)
    const [one, two, three] = [new Ingress(100, capacity), new Ingress(100, capacity), new Ingress(100, capacity)]
    one.enter('a', 20, 'few')
    three.enter('c', 200)
    two.enter('b', 20, 'few')
    vi.advanceTimersByTime(500)
    // Each tenant gets 4 of the 8 slots of the model, and 2 of its calls are prefetched.
    expect([one.sent().length, two.sent().length]).toEqual([6, 6])
  })

  it('ignores the counts of an ingress that has been silent for three seconds', () => {
    const [one, two] = [new Ingress(6), new Ingress(6)]
    two.enter('b', 10)
    vi.advanceTimersByTime(500)
    expect(one.shares.of('inference')).toBe(0.5)
    expect(one.shares.callsElsewhere('inference')).toBe(10)
    two.shares.close()
    vi.advanceTimersByTime(3_000)
    expect(one.shares.of('inference')).toBe(1)
    expect(one.shares.callsElsewhere('inference')).toBe(0)
  })

  it('publishes at most 32 queues in one record, even if 1,000 queues have waiting calls', () => {
    const one = new Ingress(1)
    one.enter('a', 1)
    one.sent()
    vi.advanceTimersByTime(1_000)
    expect(one.told).toEqual([])
    for (let i = 0; i < 1_000; i++) one.enter(`t${i}`, 1, `m${i % 100}`)
    vi.advanceTimersByTime(1_000)
    expect(one.told.length).toBeLessThanOrEqual(6)
    expect(JSON.stringify(one.told[0]).length).toBeLessThan(16_384)
    expect(one.told[0]?.queues).toHaveLength(32)
  })
})
