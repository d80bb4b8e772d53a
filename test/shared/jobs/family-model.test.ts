/** Checks the model of composed jobs: the invariants hold in every reachable state. If any guard is removed, then an invariant breaks. */
import { expect, it } from 'vitest'
import { FAMILY_GUARDS, type FamilyGuards, familyModel } from '../../support/jobs/family-model.ts'
import { check, STUCK } from '../../support/jobs/model-checker.ts'

/** The timeout is many times the duration of a full exploration of the model. */
const options = { timeout: 300_000 }

it.each([
  ['no partial result', false],
  ['a partial result after a cancel', true],
])(
  'the formal model of composed jobs (%s) satisfies every invariant despite any single fault',
  options,
  (_, mayWrite) => {
    const verdict = check(familyModel(FAMILY_GUARDS, mayWrite))
    expect(verdict).toMatchObject({ violation: undefined, path: [] })
    // A model in which few states are reachable would prove little, so a minimum is required.
    expect(verdict.states).toBeGreaterThan(1_000)
  },
)

/** For each guard: the invariant that breaks without it. */
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
/** Guards that matter only if a cancelled job may write a partial result. */
const OF_PARTIAL = ['partialBeatsWaiting', 'partialBeatsPark', 'cancelOutlivesWorker', 'claimNeedsTime', 'expireSweeps']

it.each(Object.entries(NEEDED))(
  'without the guard %s, the formal model of composed jobs reaches the violation: %s',
  options,
  (guard, violation) => {
    const verdict = check(familyModel({ ...FAMILY_GUARDS, [guard]: false }, OF_PARTIAL.includes(guard)))
    expect(verdict.violation, `path to the violation: ${verdict.path.join(' > ')}`).toBe(violation)
  },
)
