/* Tests of the reason why a job is pending, for each state of the fleet. */

import { expect, it } from 'vitest'
import type { DurableJob } from '#schemas/durable-job.ts'
import { pendingReason } from '#services/ingress/admin/jobs.ts'
import { Peers } from '#shared/jobs/peers.ts'

/** The list of known workers of an ingress. The test sets their heartbeats directly, without a control channel. */
class TestPeers extends Peers {
  worker(boot: string, changes: { slots?: number; running?: number; draining?: boolean } = {}): this {
    this.setAlive({ boot, role: 'inference', version: 'test', slots: 2, running: 0, draining: false, ...changes })
    return this
  }

  reports(boot: string, models: string[], places?: number, hasWaiting = false): this {
    const bounds = places === undefined ? [] : [{ kind: 'generate', model: 'echo-1', capacity: places }]
    const waiting = hasWaiting ? [{ kind: 'generate', model: 'echo-1', priority: 'normal' as const }] : []
    this.setCapacity(boot, { models, concurrency_limits: bounds, backlog: waiting })
    return this
  }
}

const job = (changes: Partial<DurableJob> = {}) =>
  ({
    ...{ state: 'queued', pool: 'inference', kind: 'generate', model: 'echo-1', priority: 'normal', attempt: 0 },
    run_at_ms: 1_900_000_000_000,
    ...changes,
  }) as DurableJob
const fleet = (presence: Peers, isBrokerReachable = true) => ({
  ...{ presence, isBrokerReachable },
  pauses: { of: () => undefined },
})
const busy = { slots: 2, running: 2 }

it.each([
  { is: 'no_worker', of: new TestPeers() },
  { is: 'no_worker', of: new TestPeers().worker('wrk_1', { draining: true }) },
  { is: 'no_worker_for_model', of: new TestPeers().worker('wrk_1').reports('wrk_1', ['echo-2']) },
  { is: 'slots_taken', of: new TestPeers().worker('wrk_1', busy).reports('wrk_1', ['echo-1']) },
  { is: 'model_full', of: new TestPeers().worker('wrk_1').reports('wrk_1', ['echo-1'], 1, true) },
  { is: 'in_turn', of: new TestPeers().worker('wrk_1').reports('wrk_1', ['echo-1'], 1) },
  // The limit of the model equals the number of slots of the worker, so the limit is never the reason why a job waits. A slot is free, so
  // the job starts next.
  { is: 'in_turn', of: new TestPeers().worker('wrk_1').reports('wrk_1', ['echo-1'], 2, true) },
  { is: 'in_turn', of: new TestPeers().worker('wrk_1').reports('wrk_1', ['echo-1']) },
  { is: 'batch_lane', of: new TestPeers().worker('wrk_1'), job: job({ priority: 'low' }) },
])('the pending reason is $is, and has a message and the number of jobs ahead', ({ is, of, job: asked = job() }) => {
  const waits = pendingReason(asked, fleet(of), 3)
  expect(waits).toMatchObject({ reason: is, ahead: 3, until: null })
  expect(waits?.message).toMatch(/^[A-Z].*\. 3 jobs of the same model and priority are older\.$/)
})

it('the pending reason names an unreachable broker first, and is absent for running and ended jobs', () => {
  expect(pendingReason(job(), fleet(new TestPeers(), false), 1)).toMatchObject({ reason: 'broker_away' })
  expect(pendingReason(job({ state: 'waiting' }), fleet(new TestPeers()), 0)).toMatchObject({
    reason: 'children',
    ahead: null,
  })
  const retried = pendingReason(job({ state: 'scheduled', attempt: 2 }), fleet(new TestPeers()), 0)
  expect(retried).toMatchObject({ reason: 'retry_backoff', until: 1_900_000_000 })
  expect(retried?.message).toBe('Attempt 2 failed; the next one is due at 2030-03-17T17:46:40Z.')
  for (const state of ['in_progress', 'completed', 'failed'] as const) {
    expect(pendingReason(job({ state }), fleet(new TestPeers()), 0)).toBeNull()
  }
})
