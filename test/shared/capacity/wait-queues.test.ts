import { afterEach, beforeEach, describe, expect, it, vi } from 'vitest'
import { AdmissionControl, type QueuedJob } from '#shared/capacity/admission-control.ts'
import type { Peer } from '#shared/jobs/peers.ts'
import { ServiceError } from '#shared/lib/error.ts'

const START_MS = 60_000
const TAKES_MS = 5_000
const STEP_MS = 100
const WORK = { pool: 'inference', kind: 'say', model: 'm' } as const

beforeEach(() => {
  vi.useFakeTimers({ now: 1_790_000_000_000, toFake: ['Date'] })
})
afterEach(() => {
  vi.useRealTimers()
})

interface Call extends QueuedJob {
  readonly nth: number
  readonly cameAtMs: number
  readonly toldMs: number[]
  endsAtMs: number
  sentAtMs: number | undefined
}

/** Simulates a pool whose slots run calls and durable jobs, together with the admission control of the ingress. */
class SlowPool {
  readonly lines: AdmissionControl<Call>
  readonly waiting: Call[] = []
  readonly running = new Set<Call>()
  readonly started: { readonly call: Call; readonly atMs: number }[] = []
  readonly refused: Call[] = []
  /** Whether every worker is still preparing the model. */
  isPreparing = false
  /** Duration of the calls that start from now on. */
  takesMs = TAKES_MS
  readonly #slots: number
  #durable = 0
  #calls = 0

  constructor(slots: number, { durable = 0, bound }: { durable?: number; bound?: number } = {}) {
    this.#slots = slots
    this.#durable = durable
    const waiting = () => (this.#durable > 0 ? [{ ...WORK, priority: 'normal' as const }] : [])
    const worker = () => ({ running: this.running.size, capacity: { backlog: waiting() } }) as unknown as Peer
    const presence = {
      capacityOf: () => bound,
      slots: () => slots,
      workers: () => [worker()],
      preparing: () => (this.isPreparing ? {} : undefined),
    }
    this.lines = new AdmissionControl(presence, START_MS)
  }

  call(tenant: string, call = this.#newCall(tenant)): Call {
    try {
      this.lines.admit({ ...WORK, tenant }, this.#ahead({ tenant }))
      this.lines.entered(call)
      this.waiting.push(call)
    } catch (error) {
      call.toldMs.push(Math.ceil((ServiceError.from(error).retryAfterMs ?? 0) / 1_000) * 1_000)
      if (call.toldMs.length === 1) this.refused.push(call)
    }
    this.#start()
    return call
  }

  /** Runs one call after another, until the duration of a call is known. */
  measure(): void {
    for (let i = 0; i < 6; i++) {
      this.call('a')
      this.run(TAKES_MS + STEP_MS)
    }
  }

  /** Refuses the calls that wait too long, as the ingress does every 2 s. */
  refuseLate(): number {
    const late = new Set([...this.lines.late()].map(({ job }) => job))
    for (const job of late) {
      this.waiting.splice(this.waiting.indexOf(job), 1)
      this.lines.left(job)
    }
    return late.size
  }

  /** Advances time. Refused callers try again after Retry-After, at most `returns` times. */
  run(ms: number, returns = 2): void {
    for (let passed = 0; passed < ms; passed += STEP_MS) {
      vi.setSystemTime(Date.now() + STEP_MS)
      for (const call of this.running) if (call.endsAtMs <= Date.now()) this.#end(call)
      this.#start()
      for (const call of this.refused) {
        const sinceMs = Date.now() - call.cameAtMs
        if (call.toldMs.length > returns || this.lines.of(WORK).waitEstimate.waiting.has(call)) continue
        if (sinceMs === sumOf(call.toldMs)) this.call(call.envelope.tenant, call)
      }
    }
  }

  #newCall(tenant: string): Call {
    const nth = ++this.#calls
    return { envelope: { ...WORK, tenant }, nth, cameAtMs: Date.now(), toldMs: [], endsAtMs: 0, sentAtMs: Date.now() }
  }

  /** Starts waiting calls in the free slots. While durable jobs wait, calls may use only half of the slots. */
  #start(): void {
    const places = this.#durable > 0 ? Math.ceil(this.#slots / 2) : this.#slots
    while (this.running.size < places) {
      const call = this.waiting.shift()
      if (!call) return
      call.endsAtMs = Date.now() + this.takesMs
      this.running.add(call)
      this.lines.started(call)
      this.started.push({ call, atMs: Date.now() })
    }
  }

  #end(call: Call): void {
    this.running.delete(call)
    this.lines.completed(call.envelope)
    this.lines.left(call)
    if (this.#durable > 0) this.#durable--
  }

  #ahead({ tenant }: { tenant: string }): number {
    const counts = new Map<string, number>()
    for (const { envelope } of this.waiting) counts.set(envelope.tenant, (counts.get(envelope.tenant) ?? 0) + 1)
    const own = counts.get(tenant) ?? 0
    return sumOf([...counts.values()].map((count) => Math.min(count, own + 1)))
  }
}

describe('admission control of a pool with two slots and slow calls', () => {
  it('refuses a call that cannot start in time, and admits the retry after Retry-After', () => {
    const pool = new SlowPool(2)
    pool.measure()
    for (let i = 0; i < 33; i++) pool.call('a')
    // Two calls run. A waiting call is admitted if it can start within a minute, which is possible for twenty-four calls.
    expect(pool.waiting.length).toBeGreaterThanOrEqual(22)
    expect(pool.waiting.length).toBeLessThanOrEqual(26)
    expect(pool.refused.length).toBeGreaterThan(3)
    expect(new Set(pool.refused.map(({ toldMs: [told] }) => told)).size, 'number of different Retry-After values').toBe(
      pool.refused.length,
    )
    pool.run(150_000)
    for (const call of pool.refused) {
      const start = pool.started.find((one) => one.call === call)
      // Retry-After is chosen so that the caller retries when the estimated wait is 80 % of the maximum. The caller is then admitted, and waits in
      // the queue for about that long.
      const expectedMs = (call.toldMs[0] ?? 0) + START_MS * 0.8
      expect(call.toldMs).toHaveLength(1)
      expect(((start?.atMs ?? 0) - call.cameAtMs) / expectedMs).toBeGreaterThan(1 / 1.5)
      expect(((start?.atMs ?? 0) - call.cameAtMs) / expectedMs).toBeLessThan(1.5)
    }
  })

  it('sends no Retry-After above 60 s, and keeps the slots busy', () => {
    const pool = new SlowPool(2)
    pool.measure()
    for (let i = 0; i < 1_000; i++) pool.call('a')
    expect(pool.refused.every(({ toldMs: [told = 0] }) => told <= 60_000)).toBe(true)
    pool.run(200_000, 10)
    expect(pool.started.length).toBeGreaterThan((200_000 / TAKES_MS) * 2 * 0.95)
  })

  it('refuses none of the first 50 calls of a tenant while 5,000 durable jobs wait', () => {
    for (const isKnown of [false, true]) {
      const pool = new SlowPool(50, { durable: 5_000 })
      if (isKnown) pool.call('b')
      pool.run(300_000)
      for (let i = 0; i < 50; i++) pool.call('b')
      expect(pool.refused).toHaveLength(0)
      pool.run(TAKES_MS * 2)
      expect(pool.started.length).toBe(isKnown ? 51 : 50)
    }
  })

  it('estimates waits with half of the slots while durable jobs wait', () => {
    const pool = new SlowPool(2, { durable: 5_000 })
    pool.measure()
    for (let i = 0; i < 100; i++) pool.call('b')
    expect(pool.waiting.length).toBeGreaterThanOrEqual(11)
    expect(pool.waiting.length).toBeLessThanOrEqual(14)
    const admitted = pool.started.length + pool.waiting.length
    pool.run(START_MS + TAKES_MS, 0)
    expect(pool.started.length).toBe(admitted)
  })
})

describe('admission control after a cold start', () => {
  const COLD_MS = 10_000

  /** A pool whose first call is slow, because it loads the model. Afterwards, 100 calls arrive at once. */
  function burst(takesMs: number): SlowPool {
    const pool = new SlowPool(2, { bound: 2 })
    pool.takesMs = COLD_MS
    pool.call('a')
    pool.run(COLD_MS + 1_000)
    pool.takesMs = takesMs
    for (let i = 0; i < 100; i++) pool.call('a')
    return pool
  }

  it('refuses none of 100 calls after one slow call if these calls are fast', () => {
    const pool = burst(1_000)
    expect(pool.refused, 'refused calls').toHaveLength(0)
    for (let seconds = 0; seconds < 60; seconds += 2) {
      expect(pool.refuseLate(), `calls refused after ${seconds} s`).toBe(0)
      pool.run(2_000)
    }
    expect(pool.started, 'started calls').toHaveLength(101)
  })

  it('refuses the calls that cannot start in time if the calls after the cold start are slow', () => {
    const pool = burst(COLD_MS)
    let late = 0
    for (let seconds = 0; seconds < 60; seconds += 2) {
      late += pool.refuseLate()
      pool.run(2_000)
    }
    // A waiting call is refused if its total wait would exceed 120 s, twice the maximum for a new call. In 120 s, the two slots start 24 calls.
    expect(late + pool.refused.length, 'refused calls').toBeGreaterThan(100 - 2 - 24 - 8)
    expect(pool.started.length + pool.waiting.length, 'calls that were not refused').toBeGreaterThan(24)
    const before = pool.refused.length
    for (let i = 0; i < 20; i++) pool.call('a')
    expect(pool.refused.length - before, 'new calls that are refused at once').toBeGreaterThan(15)
  })

  it('does not count the preparation of a model as run time, either during the preparation or afterwards', () => {
    const pool = new SlowPool(2, { bound: 2 })
    pool.isPreparing = true
    pool.takesMs = 600_000
    for (let i = 0; i < 60; i++) pool.call('a')
    pool.run(50_000)
    expect(pool.refuseLate(), 'calls refused during the preparation').toBe(0)
    pool.isPreparing = false
    pool.lines.onCapacity()
    pool.run(1_000)
    expect(pool.refuseLate(), 'calls refused after the preparation').toBe(0)
    pool.run(50_000)
    expect(pool.refuseLate(), 'calls refused because the prepared model is slow').toBeGreaterThan(0)
  })
})

describe('the calls that wait for a pool', () => {
  it('are refused once their total wait would exceed twice the maximum wait of a new call', () => {
    const pool = new SlowPool(2)
    for (let i = 0; i < 60; i++) pool.call('a')
    pool.call('b')
    // No job has ended yet. The duration of jobs is unknown, so no call is refused.
    expect(pool.refused).toHaveLength(0)
    expect([...pool.lines.late()]).toHaveLength(0)
    vi.setSystemTime(Date.now() + 100_000)
    const late = [...pool.lines.late()]
    // Both jobs have run for 100 s. A job may have loaded the model, so only a tenth of its duration counts: 10 s per job, or 5 s with two slots.
    // Each call has already waited for 100 s, so all calls except the first few exceed 120 s in total.
    expect(late.length).toBeGreaterThan(30)
    expect(late.every(({ job }) => job.envelope.tenant === 'a')).toBe(true)
    expect(late.map(({ job }) => job.nth)).toEqual(late.map(({ job }) => job.nth).toSorted((a, b) => a - b))
    expect(late.at(-1)?.waitMs).toBeGreaterThan(250_000)
    expect(late.every(({ waitMs }) => waitMs > 2 * START_MS - 100_000)).toBe(true)
  })

  it('of a busy model are treated as lost only after a later call has started', () => {
    const pool = new SlowPool(2, { bound: 2 })
    const calls = Array.from({ length: 4 }, () => pool.call('a'))
    const [, , third, fourth] = calls
    if (!third || !fourth) throw new Error('no calls')
    expect(pool.lines.mayBeLost(third)).toBe(false)
    fourth.sentAtMs = Date.now() + 1
    pool.lines.started(fourth)
    expect(pool.lines.mayBeLost(third)).toBe(true)
  })
})

function sumOf(numbers: readonly number[]): number {
  return numbers.reduce((sum, one) => sum + one, 0)
}
