/** Checks the model of the fair queue: no tenant starves in any state that two tenants can reach. If any guard is removed, then a tenant starves. */
import { expect, it } from 'vitest'
import { FAIR_QUEUE_GUARDS, type FairQueueGuards, fairQueueModel } from '../../support/jobs/fair-queue-model.ts'
import { check, STUCK } from '../../support/jobs/model-checker.ts'

/** The timeout is many times the duration of a full exploration of the model. */
const options = { timeout: 300_000 }
const ONE_SLOT = { workers: 1, jobsMax: 2, restartsMax: 0 }
const TWO_SLOTS = { workers: 2, jobsMax: 2, restartsMax: 0 }

it.each([
  ['one slot', ONE_SLOT, 50],
  ['two concurrent slots', TWO_SLOTS, 500],
  ['two slots with restarts', { ...TWO_SLOTS, restartsMax: 2 }, 2_000],
])('in the formal model of the fair queue with %s, no tenant starves', options, (_, size, statesMin) => {
  const verdict = check(fairQueueModel(FAIR_QUEUE_GUARDS, size))
  expect(verdict).toMatchObject({ violation: undefined, path: [] })
  // A model in which few states are reachable would prove little, so a minimum is required.
  expect(verdict.states).toBeGreaterThan(statesMin)
})

const PASSED = 'a tenant starved'

/** For each guard: the invariant that breaks without it, and the size of the model that shows it. */
const NEEDED: Record<keyof FairQueueGuards, readonly [string, typeof ONE_SLOT]> = {
  claimsIterateTenants: [PASSED, ONE_SLOT],
  positionMoves: [PASSED, ONE_SLOT],
  roundWraps: [STUCK, ONE_SLOT],
  fewestComeFirst: ['a tenant with more running jobs was served first', TWO_SLOTS],
}

it.each(Object.entries(NEEDED))(
  'without the guard %s, the formal model of the fair queue reaches the violation: %s',
  options,
  (guard, [violation, size]) => {
    const verdict = check(fairQueueModel({ ...FAIR_QUEUE_GUARDS, [guard]: false }, size))
    expect(verdict.violation, `path to the violation: ${verdict.path.join(' > ')}`).toBe(violation)
  },
)
