/** L1: the protocol of durable jobs keeps its promises in every state it can reach, and needs every one of its guards. */
import { expect, it } from 'vitest'
import { check, STUCK } from '../../support/jobs/model-checker.ts'
import { GUARDS, type Guards, protocolModel } from '../../support/jobs/protocol-model.ts'

/** For many times what all states take. */
const options = { timeout: 300_000 }

it('the protocol keeps every promise, whatever two faults do', options, () => {
  const verdict = check(protocolModel(GUARDS))
  expect(verdict).toMatchObject({ violation: undefined, path: [] })
  // A model that reaches little proves little.
  expect(verdict.states).toBeGreaterThan(20_000)
})

it('the protocol may acknowledge records before it claims, since it publishes again', options, () => {
  expect(check(protocolModel(GUARDS, { acknowledgesFirst: true }))).toMatchObject({ violation: undefined, path: [] })
})

const LEFT = 'a terminal state was left'

/** What breaks without each guard. */
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
  cancelBeatsReturn: 'a run began after a cancel was asked for',
  reaperForcesCancel: STUCK,
  reaperRuns: STUCK,
  reapIsFenced: LEFT,
  reapNeedsExpiredLease: 'a job was taken from a live owner',
  reaperWaitsAfterOutage: 'an outage was taken for a death',
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

it.each(Object.entries(NEEDED))('without %s: %s', options, (guard, violation) => {
  // One fault is enough to be stuck; to see that, every state has to be visited.
  const faultsMax = violation === STUCK ? 1 : 2
  const verdict = check(protocolModel({ ...GUARDS, [guard]: false }, { faultsMax }))
  expect(verdict.violation, verdict.path.join(' > ')).toBe(violation)
})
