/**
 * A tenant with a backlog of durable jobs does not delay others. The test counts its starts in between, because a busy machine slows down all
 * tenants alike.
 */
import { afterEach, beforeEach, describe, expect, inject, it, vi } from 'vitest'
import type { JobEnvelope } from '#schemas/job.ts'
import { Attempt } from '#shared/jobs/worker/attempt.ts'
import { CHAT, OTHER_KEY, say, startService } from '../../../support/jobs/api.ts'
import { until } from '../../../support/stack.ts'

const SLOTS = 4
const REPLICAS = 3
const BACKLOG = 90
const SETTINGS = { INFERENCE_SLOTS: String(SLOTS) }
/** A request that takes 200 ms. */
const WORK = say('!echo delay_ms=20 tokens=10')
/** Number of jobs of the other tenant, and of its plain calls. */
const OWN = 6

/** Tenants in order of the starts of their jobs. */
let began: string[]
const begunBy = (tenant: string) => began.filter((one) => one === tenant).length
beforeEach(() => {
  began = []
  const run = Attempt.prototype.run
  vi.spyOn(Attempt.prototype, 'run').mockImplementation(function (this: Attempt, ...given) {
    const { tenant, reply }: JobEnvelope = this.job
    began.push(`${tenant === 'key_other' ? 'other' : 'crowd'}${reply ? ' call' : ''}`)
    return run.apply(this, given)
  })
})
afterEach(() => void vi.restoreAllMocks())

describe.each([
  { mode: 'embedded', isHere: true, kafka: undefined },
  { mode: 'Kafka', isHere: inject('kafka') !== null, kafka: inject('kafka') ?? undefined },
])('the fair queue of tenants, $mode', ({ isHere, kafka }) => {
  it('starts work of one tenant during the backlog of another tenant, whichever ingress accepted the work', {
    timeout: 240_000,
  }, async (context) => {
    if (!isHere) context.skip('no Kafka')
    await using service = await startService({ kafka, replicas: REPLICAS, settings: SETTINGS })
    await Promise.all(Array.from({ length: BACKLOG }, (_, i) => service.submit(WORK, {}, { replica: i % REPLICAS })))
    await until(() => begunBy('crowd') > 0)
    const before = begunBy('crowd')
    const jobs = Array.from({ length: OWN }, (_, i) =>
      service.submit(WORK, {}, { key: OTHER_KEY, replica: i % REPLICAS }),
    )
    await Promise.all(jobs)
    const accepted = begunBy('crowd')
    await until(() => begunBy('other') === OWN, { withinMs: 60_000 })
    const place = began.lastIndexOf('other')
    const between = began.slice(0, place).filter((one) => one === 'crowd').length - before
    // Before the last own job, the backlog may start one job per own job and two per slot. Jobs that started during the submissions are added.
    expect(between).toBeLessThanOrEqual(OWN + (accepted - before) + 2 * SLOTS)

    const calls: number[] = []
    for (let i = 0; i < OWN && begunBy('crowd') < BACKLOG - 3 * SLOTS; i++) {
      const at = began.length
      const response = await service.post(CHAT, WORK, { key: OTHER_KEY, replica: i % REPLICAS })
      expect(response.status).toBe(200)
      calls.push(began.indexOf('other call', at) - at)
    }
    // Before each call, at most two rounds of the backlog may start. One more round may have started before the worker received the call.
    expect(calls.length).toBeGreaterThan(1)
    for (const passed of calls) expect(passed).toBeLessThanOrEqual(3 * SLOTS)
  })
})
