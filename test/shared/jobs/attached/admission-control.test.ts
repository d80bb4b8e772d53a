import { afterEach, beforeEach, describe, expect, it, vi } from 'vitest'
import { ServiceError } from '#shared/error.ts'
import { AdmissionControl } from '#shared/jobs/attached/admission-control.ts'
import { fingerprintOf, Reservations } from '#shared/jobs/attached/reservations.ts'
import { WaitQueues } from '#shared/jobs/attached/wait-queues.ts'

const START_MS = 4_000
const STEP_MS = 5
/** Milliseconds between completions: fifty per second. */
const SERVICE_MS = 20

beforeEach(() => {
  vi.useFakeTimers({ now: 1_790_000_000_000, toFake: ['Date'] })
})
afterEach(() => {
  vi.useRealTimers()
})

interface Caller {
  readonly tenant: string
  readonly body: object
  readonly retryMsMax?: number | undefined
  tries: number
}

/** A pool under overload, and callers that return after Retry-After, in whole seconds like the header. */
class Overload {
  readonly queue: Caller[] = []
  /** By return time. */
  readonly back = new Map<number, Caller[]>()
  readonly admittedAt: number[] = []
  readonly toldSeconds: number[] = []
  ended = 0
  #callers = 0
  readonly #gate = new AdmissionControl({
    waitQueues: new WaitQueues({ capacityOf: () => undefined, slots: () => 0, workers: () => [] }),
    startTimeoutMs: START_MS,
    ahead: ({ tenant }, reserved, own) => this.#ahead(tenant, reserved, own),
  })
  readonly #comesBack: (nth: number) => boolean
  readonly #retryMsMax: number | undefined

  constructor(comesBack: (nth: number) => boolean = () => true, retryMsMax?: number) {
    this.#comesBack = comesBack
    this.#retryMsMax = retryMsMax
  }

  /** @param everyMs Interval between new callers */
  run(ms: number, everyMs: number, tenantOf: (nth: number) => string = () => 'a', serviceMs = SERVICE_MS): void {
    for (let passed = 0; passed < ms; passed += STEP_MS) {
      vi.setSystemTime(Date.now() + STEP_MS)
      if (passed % serviceMs === 0) this.#serve()
      for (const caller of this.back.get(Date.now()) ?? []) this.#call(caller)
      this.back.delete(Date.now())
      if (Math.floor(passed / everyMs) !== Math.floor((passed - STEP_MS) / everyMs)) {
        const nth = this.#callers++
        const body = { messages: [`question ${nth}`] }
        this.#call({ tenant: tenantOf(nth), body, retryMsMax: this.#retryMsMax, tries: 0 })
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
      this.#gate.admit({ pool: 'inference', kind: 'say', model: 'm', ...caller })
      this.queue.push(caller)
      this.admittedAt.push(caller.tries)
    } catch (error) {
      const { message, retryAfterMs = 0 } = ServiceError.from(error)
      const seconds = Math.ceil(retryAfterMs / 1_000)
      expect(message).toMatch(`Try again in ${seconds} s, or submit it as a durable job`)
      this.toldSeconds.push(seconds)
      if (!this.#comesBack(this.#callers)) return
      const atMs = Date.now() + seconds * 1_000
      this.back.set(atMs, [...(this.back.get(atMs) ?? []), caller])
    }
  }

  #ahead(tenant: string, reserved: ReadonlyMap<string, number>, before = reserved.get(tenant) ?? 0): number {
    const counts = new Map(reserved).set(tenant, before)
    for (const each of this.queue) counts.set(each.tenant, (counts.get(each.tenant) ?? 0) + 1)
    const own = counts.get(tenant) ?? 0
    let ahead = 0
    for (const count of counts.values()) ahead += Math.min(count, own + 1)
    return ahead
  }
}

describe('admission control before a pool with 120 % load', () => {
  it('admits callers that return after Retry-After, and keeps the pool busy', () => {
    const overload = new Overload()
    overload.run(60_000, SERVICE_MS / 1.2)
    const back = overload.admittedAt.filter((tries) => tries > 1)
    expect(back.length).toBeGreaterThan(200)
    expect(back.filter((tries) => tries === 2).length / back.length).toBeGreaterThan(0.95)
    expect(overload.ended).toBeGreaterThan((60_000 / SERVICE_MS) * 0.98)
    expect(overload.queue.length).toBeLessThanOrEqual(START_MS / SERVICE_MS + 1)
    // Each gets a later time than those before it.
    expect(new Set(overload.toldSeconds).size).toBeGreaterThan(5)
  })

  it('keeps the pool busy if none, or every other caller, returns', () => {
    for (const comesBack of [() => false, (nth: number) => nth % 2 === 0]) {
      const overload = new Overload(comesBack)
      overload.run(60_000, SERVICE_MS / 1.2)
      expect(overload.ended).toBeGreaterThan((60_000 / SERVICE_MS) * 0.98)
      const back = overload.admittedAt.filter((tries) => tries > 1)
      expect(back.filter((tries) => tries > 2).length).toBeLessThanOrEqual(back.length * 0.05)
    }
  })

  it('admits long-waiting callers at their first return, and limits Retry-After to a minute for other clients', () => {
    const patient = new Overload(undefined, Number.POSITIVE_INFINITY)
    patient.run(150_000, SERVICE_MS / 2)
    expect(Math.max(...patient.toldSeconds)).toBeGreaterThan(100)
    const back = patient.admittedAt.filter((tries) => tries > 1)
    expect(back.filter((tries) => tries === 2).length / back.length).toBeGreaterThan(0.95)
    const others = new Overload()
    others.run(150_000, SERVICE_MS / 2)
    expect(Math.max(...others.toldSeconds)).toBe(60)
    expect(Math.max(...others.admittedAt)).toBeLessThanOrEqual(4)
    expect(others.ended).toBeGreaterThan((150_000 / SERVICE_MS) * 0.98)
  })

  it('lets no caller overtake one that returned in time, even if fewer calls ran than estimated', () => {
    const overload = new Overload(undefined, Number.POSITIVE_INFINITY)
    overload.run(40_000, SERVICE_MS / 1.2)
    overload.run(20_000, SERVICE_MS / 1.2, undefined, 2 * SERVICE_MS)
    overload.run(60_000, SERVICE_MS / 1.2)
    expect(Math.max(...overload.admittedAt)).toBeLessThanOrEqual(6)
    expect(overload.ended).toBeGreaterThan((110_000 / SERVICE_MS) * 0.97)
  })

  it('admits a tenant with few calls, however many returns of another are reserved', () => {
    const overload = new Overload()
    overload.run(30_000, SERVICE_MS / 3, () => 'flood')
    const before = overload.toldSeconds.length
    overload.run(100, 10, () => 'other')
    expect(overload.queue.filter(({ tenant }) => tenant === 'other').length).toBeGreaterThan(5)
    expect(before).toBeGreaterThan(1_000)
  })
})

const at = (atMs: number) => ({ atMs, returnMs: atMs })

describe('reservations of refused callers', () => {
  it('are found by tenant and request, from their time until they expire', () => {
    const places = new Reservations()
    const now = Date.now()
    places.add('a', { text: 'x' }, at(now + 4_000), now)
    expect(places.find('b', { text: 'x' }, now)).toBeUndefined()
    expect(places.find('a', { text: 'y' }, now)).toBeUndefined()
    expect(places.find('a', { text: 'x' }, now + 2_000)).toMatchObject({ isDue: false })
    expect(places.find('a', { text: 'x' }, now + 4_000)).toMatchObject({ isDue: true })
    expect(places.find('a', { text: 'x' }, now + 10_000)).toBeUndefined()
    expect(places.counts.size).toBe(0)
  })

  it('are bounded, and one tenant leaves half of them to others', () => {
    const places = new Reservations()
    const now = Date.now()
    for (let i = 0; i < 50_000; i++) places.add('a', { i }, at(now + 1_000), now)
    expect(places.counts.get('a')).toBe(25_000)
    places.add('b', {}, at(now + 1_000), now)
    expect(places.counts.get('b')).toBe(1)
    places.drop('b', {})
    expect(places.counts.has('b')).toBe(false)
  })

  it('identify a request by its texts, their ends and lengths, however large it is', () => {
    const long = 'x'.repeat(10_000_000)
    const many = Array.from({ length: 100_000 }, (_, i) => `message ${i}`)
    const bodies = [{}, [], { a: 1 }, { a: 2 }, { text: long }, { text: `${long}y` }, { text: `y${long}` }, many]
    const seen = [...bodies, [...many, 'last']].map(fingerprintOf)
    expect(new Set(seen).size).toBe(seen.length)
    expect(fingerprintOf({ text: long })).toBe(fingerprintOf({ text: long }))
  })
})
