/** Checks the model of durable jobs: the invariants hold in every reachable state. If any guard is removed, then an invariant breaks. */
import { expect, it } from 'vitest'
import { check, STUCK } from '../../support/jobs/model-checker.ts'
import { GUARDS, type Guards, protocolModel } from '../../support/jobs/protocol-model.ts'

/** The timeout is many times the duration of a full exploration of the model. */
const options = { timeout: 300_000 }

it('the formal model of the job protocol satisfies every invariant despite any two faults', options, () => {
  const verdict = check(protocolModel(GUARDS))
  expect(verdict).toMatchObject({ violation: undefined, path: [] })
  // A model in which few states are reachable would prove little, so a minimum is required.
  expect(verdict.states).toBeGreaterThan(20_000)
})

it(
  'the formal model of the job protocol satisfies every invariant if queue records are acknowledged before the claim',
  options,
  () => {
    expect(check(protocolModel(GUARDS, { acknowledgesFirst: true }))).toMatchObject({ violation: undefined, path: [] })
  },
)

const LEFT = 'a job left a terminal state'

/** For each guard: the invariant that breaks without it. */
const NEEDED: Record<keyof Guards, string> = {
  commitBeforeAccept: 'an accepted job is not in the store',
  idempotentCreate: 'one request made two jobs',
  claimNeedsQueued: LEFT,
  claimNeedsTime: 'a run began after the deadline',
  attemptRises: 'two runs share an attempt',
  endNeedsInProgress: LEFT,
  endNeedsSameRun: 'a lost attempt moved the job',
  returnIsFenced: LEFT,
  outputIsFenced: 'output of a lost attempt was recorded',
  writesAreNumbered: 'output was recorded twice',
  commitBeforePublish: 'the follower saw another end than the store',
  claimIsSynchronous: 'two runs share an attempt',
  endIsSynchronous: 'the follower saw another end than the store',
  honourIsFenced: LEFT,
  cancelNeedsWaiting: 'a cancel ended a job that did not wait',
  cancelBeatsReturn: 'a run started after a cancel request',
  reaperForcesCancel: STUCK,
  reaperRuns: STUCK,
  reapIsFenced: LEFT,
  reapNeedsExpiredLease: 'a job was taken from a live owner',
  reaperWaitsAfterOutage: 'an outage was treated as the death of a worker',
  poisonFails: 'a job that kills its workers runs on',
  lapsesAreSpared: 'a lapse was counted as a crash',
  runsEndWithLease: 'two workers ran the job at once',
  reaperEndsOverdue: STUCK,
  expirySweeps: STUCK,
  expireNeedsWaiting: 'a job expired that did not wait',
  dueSweeps: STUCK,
  dueNeedsScheduled: 'a job became due that was not scheduled',
  republishes: STUCK,
  workersReconcile: STUCK,
  followersReadStore: STUCK,
}

it.each(Object.entries(NEEDED))(
  'without the guard %s, the formal model of the job protocol reaches the violation: %s',
  options,
  (guard, violation) => {
    // A job can get stuck after a single fault. To prove that a job is stuck, all states must be explored. The limit of one fault keeps their
    // number small.
    const faultsMax = violation === STUCK ? 1 : 2
    const verdict = check(protocolModel({ ...GUARDS, [guard]: false }, { faultsMax }))
    expect(verdict.violation, `path to the violation: ${verdict.path.join(' > ')}`).toBe(violation)
  },
)
