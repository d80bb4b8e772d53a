/*
 * Tests that a tenant with a backlog of durable jobs (`crowd`) does not delay another tenant (`other`). The test counts the jobs of the
 * backlog that start before the jobs of the other tenant have started. Times are not measured, because a busy machine slows down all
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
/** A request that runs for 200 ms: ten tokens at intervals of 20 ms. */
const WORK = say('!echo delay_ms=20 tokens=10')
/** Number of durable jobs that the tenant `other` submits. Later, this tenant makes the same number of synchronous calls. */
const OWN = 6

/** The tenant of each started job, in order. A synchronous call has the suffix ` call`. */
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
  it('starts jobs of one tenant before the backlog of another tenant has ended', {
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
    // Upper bound for the started jobs of the backlog: one for each job of the other tenant, and two for each slot. Jobs that started while
    // the other tenant submitted its jobs are added.
    expect(between).toBeLessThanOrEqual(OWN + (accepted - before) + 2 * SLOTS)

    const calls: number[] = []
    for (let i = 0; i < OWN && begunBy('crowd') < BACKLOG - 3 * SLOTS; i++) {
      const at = began.length
      const response = await service.post(CHAT, WORK, { key: OTHER_KEY, replica: i % REPLICAS })
      expect(response.status).toBe(200)
      calls.push(began.indexOf('other call', at) - at)
    }
    // A round of the fair queue starts one job per slot. At most three rounds of the backlog may start before each call: one before the
    // worker receives the call, and two afterwards.
    expect(calls.length).toBeGreaterThan(1)
    for (const passed of calls) expect(passed).toBeLessThanOrEqual(3 * SLOTS)
  })
})
