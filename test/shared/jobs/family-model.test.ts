/** L1: the protocol of composed jobs keeps its invariants in every reachable state, and needs each of its guards. */
import { expect, it } from 'vitest'
import { FAMILY_GUARDS, type FamilyGuards, familyModel } from '../../support/jobs/family-model.ts'
import { check, STUCK } from '../../support/jobs/model-checker.ts'

/** The timeout is many times the duration of a full exploration of the model. */
const options = { timeout: 300_000 }

it.each([
  ['every invariant', false],
  ['every invariant of a job that may write a partial result after a cancel', true],
])('the model of composed jobs satisfies %s despite any single fault', options, (_, mayWrite) => {
  const verdict = check(familyModel(FAMILY_GUARDS, mayWrite))
  expect(verdict).toMatchObject({ violation: undefined, path: [] })
  // A model in which few states are reachable would prove little, so a minimum is required.
  expect(verdict.states).toBeGreaterThan(1_000)
})

/** The invariant that breaks without each guard. */
const NEEDED: Record<keyof FamilyGuards, string> = {
  stepIsFenced: 'a step of a lost attempt was stored',
  stepsAreLookedUp: 'a stored step was repeated',
  submitIsFenced: 'a child was submitted by a lost attempt',
  childIdIsDerived: 'a child was submitted twice',
  parkIsFenced: 'a lost attempt moved the job',
  parkSeesEnds: STUCK,
  parkLocksChildren: STUCK,
  cancelBeatsPark: 'a job with a cancel request waits',
  wakeNeedsWaiting: 'a job left a terminal state',
  wakeNeedsEnds: 'a job was woken before its children had ended',
  settleSweeps: STUCK,
  wakeDueSweeps: STUCK,
  endCancelsChildren: STUCK,
  settleNeedsCancels: STUCK,
  partialBeatsWaiting: 'a job with a cancel request waits',
  partialBeatsPark: 'a job with a cancel request waits',
  cancelOutlivesWorker: 'a job ended without its partial result',
  claimNeedsTime: 'a job ran after its time for a partial result',
  expireSweeps: STUCK,
}
/** Guards of a job that may write a partial result when cancelled. */
const OF_PARTIAL = ['partialBeatsWaiting', 'partialBeatsPark', 'cancelOutlivesWorker', 'claimNeedsTime', 'expireSweeps']

it.each(Object.entries(NEEDED))(
  'the model of composed jobs reaches this violation without the guard %s: %s',
  options,
  (guard, violation) => {
    const verdict = check(familyModel({ ...FAMILY_GUARDS, [guard]: false }, OF_PARTIAL.includes(guard)))
    expect(verdict.violation, `path to the violation: ${verdict.path.join(' > ')}`).toBe(violation)
  },
)
