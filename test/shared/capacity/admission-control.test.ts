import { afterEach, beforeEach, describe, expect, it, vi } from 'vitest'
import { AdmissionControl } from '#shared/capacity/admission-control.ts'
import { ServiceError } from '#shared/lib/error.ts'

const START_MS = 4_000
const STEP_MS = 5
/** Interval between completed calls, in ms: the pool completes fifty calls per second. */
const SERVICE_MS = 20

beforeEach(() => {
  vi.useFakeTimers({ now: 1_790_000_000_000, toFake: ['Date'] })
})
afterEach(() => {
  vi.useRealTimers()
})

interface Caller {
  readonly tenant: string
  readonly retryMsMax?: number | undefined
  tries: number
}

/** Simulates a busy pool with callers that retry after the time in Retry-After, which is rounded to whole seconds as in the HTTP header. */
class Overload {
  readonly queue: Caller[] = []
  /** Callers that will retry, by the time of their retry. */
  readonly retries = new Map<number, Caller[]>()
  /** For each admitted caller: number of tries until it was admitted. */
  readonly admittedAt: number[] = []
  readonly retryAfterSeconds: number[] = []
  ended = 0
  #callers = 0
  readonly #gate = new AdmissionControl(
    { capacityOf: () => undefined, slots: () => 0, workers: () => [], preparing: () => undefined },
    START_MS,
  )
  readonly #doesRetry: (nth: number) => boolean
  readonly #retryMsMax: number | undefined

  constructor(doesRetry: (nth: number) => boolean = () => true, retryMsMax?: number) {
    this.#doesRetry = doesRetry
    this.#retryMsMax = retryMsMax
  }

  /**
   * Runs the simulation for `ms` milliseconds.
   *
   * @param everyMs Interval between new callers
   */
  run(ms: number, everyMs: number, tenantOf: (nth: number) => string = () => 'a', serviceMs = SERVICE_MS): void {
    for (let passed = 0; passed < ms; passed += STEP_MS) {
      vi.setSystemTime(Date.now() + STEP_MS)
      if (passed % serviceMs === 0) this.#serve()
      for (const caller of this.retries.get(Date.now()) ?? []) this.#call(caller)
      this.retries.delete(Date.now())
      if (Math.floor(passed / everyMs) !== Math.floor((passed - STEP_MS) / everyMs)) {
        this.#call({ tenant: tenantOf(this.#callers++), retryMsMax: this.#retryMsMax, tries: 0 })
      }
    }
  }

  #serve(): void {
    const done = this.queue.shift()
    if (!done) return
    this.ended++
    this.#gate.completed({ pool: 'inference', kind: 'say', model: 'm', tenant: done.tenant })
  }

  #call(caller: Caller): void {
    caller.tries++
    try {
      this.#gate.admit({ pool: 'inference', kind: 'say', model: 'm', ...caller }, this.#ahead(caller.tenant))
      this.queue.push(caller)
      this.admittedAt.push(caller.tries)
    } catch (error) {
      const { message, retryAfterMs = 0 } = ServiceError.from(error)
      const seconds = Math.ceil(retryAfterMs / 1_000)
      expect(message).toMatch(`Try again in ${seconds} s, or submit the request as a durable job`)
      this.retryAfterSeconds.push(seconds)
      if (!this.#doesRetry(this.#callers)) return
      // Retries arrive a little later than Retry-After states, by different amounts, because networks and clients cause delays.
      const atMs = Date.now() + seconds * 1_000 + (this.retryAfterSeconds.length % 97) * STEP_MS
      this.retries.set(atMs, [...(this.retries.get(atMs) ?? []), caller])
    }
  }

  #ahead(tenant: string): number {
    const counts = new Map<string, number>()
    for (const each of this.queue) counts.set(each.tenant, (counts.get(each.tenant) ?? 0) + 1)
    const own = counts.get(tenant) ?? 0
    let ahead = 0
    for (const count of counts.values()) ahead += Math.min(count, own + 1)
    return ahead
  }
}

describe('admission control of an overloaded pool', () => {
  it('keeps the pool busy and the queue bounded at a load of 120 %', () => {
    const overload = new Overload()
    overload.run(60_000, SERVICE_MS / 1.2)
    expect(overload.ended).toBeGreaterThan((60_000 / SERVICE_MS) * 0.98)
    expect(overload.queue.length).toBeLessThanOrEqual(START_MS / SERVICE_MS + 1)
    expect(new Set(overload.retryAfterSeconds).size, 'number of different Retry-After values').toBeGreaterThan(5)
    // The number of refusals is bounded. New calls arrive at 1.2 times the rate of completions, and retries at most at the rate of completions.
    expect(overload.retryAfterSeconds.length, 'number of refused calls').toBeLessThan((60_000 / SERVICE_MS) * 1.3)
    expect(overload.admittedAt.filter((tries) => tries > 1).length, 'number of admitted retries').toBeGreaterThan(200)
  })

  it('keeps the pool busy even if no refused caller retries', () => {
    for (const doesRetry of [() => false, (nth: number) => nth % 2 === 0]) {
      const overload = new Overload(doesRetry)
      overload.run(60_000, SERVICE_MS / 1.2)
      expect(overload.ended).toBeGreaterThan((60_000 / SERVICE_MS) * 0.98)
    }
  })

  it('sends a Retry-After above 60 s only to callers that accept such a wait', () => {
    const patient = new Overload(undefined, Number.POSITIVE_INFINITY)
    patient.run(150_000, SERVICE_MS / 2)
    expect(Math.max(...patient.retryAfterSeconds)).toBeGreaterThan(100)
    const others = new Overload()
    others.run(150_000, SERVICE_MS / 2)
    expect(Math.max(...others.retryAfterSeconds)).toBe(60)
    expect(others.ended).toBeGreaterThan((150_000 / SERVICE_MS) * 0.98)
  })

  it('spreads Retry-After values between 30 and 60 s if the estimate exceeds the maximum of 60 s', () => {
    const overload = new Overload(() => false)
    overload.run(150_000, SERVICE_MS / 4)
    const last = overload.retryAfterSeconds.slice(-1_000)
    expect(Math.min(...last)).toBeGreaterThanOrEqual(30)
    expect(new Set(last).size, 'number of different Retry-After values').toBeGreaterThan(20)
  })

  it('admits the calls of a tenant while another tenant floods the pool', () => {
    const overload = new Overload()
    overload.run(30_000, SERVICE_MS / 3, () => 'flood')
    const before = overload.retryAfterSeconds.length
    overload.run(100, 10, () => 'other')
    expect(overload.queue.filter(({ tenant }) => tenant === 'other').length).toBeGreaterThan(5)
    expect(before).toBeGreaterThan(1_000)
  })

  it('schedules the retries of a tenant independently of those of other tenants', () => {
    const overload = new Overload(() => false)
    overload.run(60_000, SERVICE_MS / 3, () => 'flood')
    expect(overload.retryAfterSeconds.at(-1)).toBeGreaterThanOrEqual(30)
    const before = overload.retryAfterSeconds.length
    // A second tenant sends a burst of calls that exceeds its share of the queue, so some are refused.
    overload.run(1_000, 4, () => 'other')
    const [first = 60] = overload.retryAfterSeconds.slice(before)
    expect(first, 'first Retry-After of the second tenant').toBeLessThan(10)
  })

  it('computes Retry-After per model, so that a slow model does not delay retries for a fast one', () => {
    const WAITS_MS: Record<string, number> = { slow: 50_000, fast: START_MS + 1_000 }
    const gate = new FixedWaits(WAITS_MS)
    const retryAfterMs = (model: string) => {
      try {
        gate.admit({ pool: 'inference', kind: 'say', model, tenant: 'a' }, 2)
      } catch (error) {
        return ServiceError.from(error).retryAfterMs
      }
      return undefined
    }
    expect(retryAfterMs('slow')).toBeGreaterThan(40_000)
    expect(retryAfterMs('fast'), 'Retry-After of the fast model').toBeLessThan(10_000)
  })
})

/** Admission control with a fixed wait estimate per model, which measures no jobs. With n jobs ahead, the estimate is n/2 times the given wait. */
class FixedWaits extends AdmissionControl {
  readonly #waitsMs: Readonly<Record<string, number>>

  constructor(waitsMs: Readonly<Record<string, number>>) {
    super({ capacityOf: () => 1, slots: () => 1, workers: () => [], preparing: () => undefined }, START_MS)
    this.#waitsMs = waitsMs
  }

  override estimateMs({ model }: { readonly model: string }, ahead: number): number {
    return ((this.#waitsMs[model] ?? 0) * ahead) / 2
  }
}
