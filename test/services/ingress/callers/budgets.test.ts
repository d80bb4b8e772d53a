/* Tests of budget reservations: within one ingress, between several ingresses that share a Postgres, and for durable jobs. */

import { setTimeout as delay } from 'node:timers/promises'
import { describe, expect, inject, it, onTestFinished, vi } from 'vitest'
import { type BudgetReservation, Budgets } from '#shared/capacity/budgets.ts'
import { Fleet, Running } from '#shared/capacity/fleet-counts.ts'
import { runYielding } from '#shared/lib/yielding.ts'
import { newJobId } from '#shared/store/jobs.ts'
import { openPostgresCounts } from '#shared/store/postgres/fleet-counts.ts'
import type { Store } from '#shared/store/store.ts'
import { estimateOf } from '#shared/usage/estimate.ts'
import { silentLog } from '../../../support/jobs/jobs.ts'
import { openPostgresDatabase, openSqliteDatabase } from '../../../support/jobs/stores.ts'
import { until } from '../../../support/stack.ts'

vi.mock('node:timers/promises', async (original) => {
  const real = await original<typeof import('node:timers/promises')>()
  return { ...real, setTimeout: vi.fn(real.setTimeout) }
})

const postgres = inject('postgres')
const USD = 1_000_000_000
const CALL = 0.02 * USD
const key = { id: 'key_a', limits: { budget_usd_per_month: 0.05 } }
const DONE = Promise.resolve()

async function reserved(all: readonly Promise<BudgetReservation>[]): Promise<BudgetReservation[]> {
  return (await Promise.allSettled(all)).flatMap((one) => (one.status === 'fulfilled' ? [one.value] : []))
}

async function submit(store: Store, reservedNanos: number): Promise<void> {
  const kind = { pool: 'inference', kind: 'generate', endpoint: '/v1/chat/completions', model: 'echo-1' } as const
  const times = { deadlineInMs: 60_000, retentionMs: 60_000 }
  await store.create({ ...kind, ...times, id: newJobId(), tenant: key.id, keyId: key.id, request: {}, reservedNanos })
}

async function openOne() {
  const database = await openSqliteDatabase()
  onTestFinished(() => database[Symbol.asyncDispose]())
  const store = await database.open()
  const clock = { ms: 0 }
  const budgets = new Budgets({ ledger: store.usage, log: silentLog, limitsOf: () => ({}), clock: () => clock.ms })
  return { store, clock, budgets }
}

describe('a budget', () => {
  it('admits as many calls of a burst as fit, and refuses the other calls with Retry-After', async () => {
    const { budgets } = await openOne()
    const burst = Array.from({ length: 40 }, () => budgets.reserve(key, CALL))
    const refusal = await Promise.all(burst).catch((error: unknown) => error)
    expect(await reserved(burst), 'admitted calls').toHaveLength(2)
    expect(refusal).toMatchObject({ code: 'rate_limit_exceeded', retryAfterMs: 2_000 })
  })

  it('admits one of several concurrent calls that each exceed the whole budget', async () => {
    const { budgets } = await openOne()
    const [large, ...others] = await reserved(Array.from({ length: 9 }, () => budgets.reserve(key, USD)))
    expect(others).toEqual([])
    large?.settle(0.01 * USD, DONE)
    expect(await reserved([budgets.reserve(key, CALL), budgets.reserve(key, CALL)])).toHaveLength(2)
  })

  it('lets calls wait while a running call has reserved the whole budget', async () => {
    const { budgets } = await openOne()
    const first = await budgets.reserveOrWait(key, USD)
    const waiting = Array.from({ length: 9 }, () => budgets.reserveOrWait(key, 0.001 * USD))
    await expect(budgets.reserve(key, CALL)).rejects.toMatchObject({ code: 'rate_limit_exceeded' })
    first.settle(0.001 * USD, DONE)
    expect(await reserved(waiting)).toHaveLength(9)
  })

  it('refuses a call that has waited for the maximum time', async () => {
    const { budgets, clock, store } = await openOne()
    const first = await budgets.reserveOrWait(key, USD)
    const late = budgets.reserveOrWait(key, CALL)
    clock.ms += 6_000
    await expect(late).rejects.toMatchObject({ code: 'rate_limit_exceeded', retryAfterMs: 2_000 })
    first.release()
    await submit(store, 0.04 * USD)
    clock.ms += 6_000
    await expect(budgets.reserveOrWait(key, CALL)).rejects.toMatchObject({ code: 'rate_limit_exceeded' })
  })

  it('limits one project to a fifth of the waiting calls', async () => {
    const { budgets } = await openOne()
    const other = { ...key, id: 'key_b', project: 'other' }
    const first = [await budgets.reserveOrWait(key, USD), await budgets.reserveOrWait(other, USD)]
    const left = new AbortController()
    let refused = 0
    const wait = (of: typeof key) =>
      budgets
        .reserveOrWait(of, CALL, () => left.signal)
        .catch(() => {
          refused++
        })
    const waiting = Array.from({ length: 45 }, () => wait(key))
    await until(() => refused === 5)
    waiting.push(wait(other))
    await budgets.reserve(other, CALL).catch(() => {})
    expect(refused, 'calls refused without a wait').toBe(5)
    left.abort()
    await Promise.all(waiting)
    expect(refused, 'calls refused after their callers left').toBe(46)
    for (const one of first) one.release()
  })

  it('checks the shared store at longer intervals after each refusal', async () => {
    const { store } = await openOne()
    let used = 0
    const elsewhere = (counts: readonly unknown[], amount: number) => {
      for (const count of counts) if (count instanceof Running) count.update({ elsewhere: amount, jobs: 0 }, 0)
    }
    const fleet = {
      ...{ isReachable: true, markChanged: () => {} },
      // Simulates a reservation of another ingress that is visible only to the exact check in the shared store. Each call passes the local
      // check, and the store then refuses it.
      refresh: (count: unknown) => elsewhere([count], 0),
      synchronize: (counts: readonly unknown[]) => {
        elsewhere(counts, used)
        return Promise.resolve()
      },
    } as unknown as Fleet
    const budgets = new Budgets({ ledger: store.usage, log: silentLog, limitsOf: () => ({}), fleet, clock: () => 0 })
    const first = await budgets.reserveOrWait(key, 0.001 * USD)
    used = 0.05 * USD
    const left = new AbortController()
    const waits = () =>
      vi.mocked(delay).mock.calls.flatMap(([ms, , options]) => (options?.signal === left.signal ? [ms] : []))
    const waiting = budgets.reserveOrWait(key, CALL, () => left.signal).catch(() => {})
    await until(() => waits().length === 4)
    expect(waits(), 'waits in ms').toEqual([100, 200, 400, 500])
    left.abort()
    await waiting
    first.release()
  })

  it('counts the cost of an ended call once, whether or not the ledger already contains the call', async () => {
    const { store, clock, budgets } = await openOne()
    const { promise: entered, resolve } = Promise.withResolvers<void>()
    const call = await budgets.reserve(key, CALL)
    call.settle(0.03 * USD, entered)
    const [second] = await reserved([budgets.reserve(key, CALL), budgets.reserve(key, CALL)])
    second?.release()
    const hour = new Date().toISOString().slice(0, 13)
    const amounts = { calls: 1, failed: 0, inputTokens: 0, cachedInputTokens: 0, outputTokens: 0, audioMs: 0 }
    await store.usage.add('ing', 1, [
      { ...amounts, project: 'p', keyId: key.id, model: 'm', endpoint: '', hour, costNanos: 0.03 * USD },
    ])
    resolve()
    await entered
    clock.ms += 10_000
    expect(
      await reserved([budgets.reserve(key, CALL), budgets.reserve(key, CALL)]),
      'calls admitted with $0.02 left',
    ).toHaveLength(1)
  })

  it('reserves the cost of unfinished durable jobs, including after a restart of the ingress', async () => {
    const { store, clock, budgets } = await openOne()
    const first = await budgets.reserve(key, CALL)
    await submit(store, first.nanos)
    first.handOver()
    expect(await reserved([budgets.reserve(key, CALL), budgets.reserve(key, CALL)])).toHaveLength(1)
    clock.ms += 10_000
    const restarted = new Budgets({ ledger: store.usage, log: silentLog, limitsOf: () => ({}) })
    const after = Array.from({ length: 9 }, () => restarted.reserve(key, CALL))
    expect(await reserved(after), 'calls admitted next to the job').toHaveLength(1)
  })

  it.skipIf(!postgres)('admits as many calls of a burst through three ingresses as through one ingress', async () => {
    const database = await openPostgresDatabase(postgres ?? '')
    onTestFinished(() => database[Symbol.asyncDispose]())
    const store = await database.open()
    const all = Array.from({ length: 3 }, (_, i) => {
      const counts = openPostgresCounts(database.url, () => undefined)
      const fleet = new Fleet({ counts, boot: `ing_${i}`, log: silentLog, clock: () => performance.now() })
      onTestFinished(() => fleet.close())
      return new Budgets({ ledger: store.usage, log: silentLog, limitsOf: () => ({}), fleet, ingresses: () => 3 })
    })
    const burst = Array.from({ length: 60 }, (_, i) => (all[i % 3] as Budgets).reserve(key, CALL))
    const admitted = await reserved(burst)
    expect(admitted.length, 'calls admitted through several ingresses').toBeGreaterThanOrEqual(1)
    expect(admitted.length, 'calls admitted after the burst').toBeLessThanOrEqual(2)
  })
})

describe('the estimated cost of a call', () => {
  const price = { input_per_million: 1, output_per_million: 10, per_minute_audio: 6, per_second: 2, per_call: 0.5 }
  const of = async (pool: 'inference' | 'code' | 'transcription', body: object) =>
    await runYielding(estimateOf({ pool, body }, price))

  it('includes the characters of the prompt, each media part, and the maximum output', async () => {
    const turns = [
      {
        role: 'user',
        parts: [
          { type: 'text', text: 'x'.repeat(3_998) },
          { type: 'image', url: `data:,${'y'.repeat(99_999)}` },
        ],
      },
    ]
    const { tokens, nanos } = await of('inference', { turns, max_tokens: 1_000, n: 2 })
    expect(tokens).toBeGreaterThan(4_400)
    expect(tokens).toBeLessThan(4_700)
    expect(nanos / USD).toBeCloseTo(0.5 + (2_000 * 10 + (tokens - 2_000)) / 1e6, 3)
  })

  it('includes the duration of code and of audio', async () => {
    expect((await of('code', { timeout_seconds: 30 })).nanos / USD).toBe(60.5)
    expect((await of('transcription', { audio: { bytes: 480_000 } })).nanos / USD).toBe(12.5)
  })
})
