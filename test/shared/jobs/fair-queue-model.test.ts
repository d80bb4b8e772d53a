/** L1: tenants take turns in every state that two of them can reach, and need every rule of the turns for it. */
import { expect, it } from 'vitest'
import { check, STUCK } from '../../support/jobs/model-checker.ts'
import { FAIR_QUEUE_GUARDS, type FairQueueGuards, fairQueueModel } from '../../support/jobs/fair-queue-model.ts'

/** For many times what all states take. */
const options = { timeout: 300_000 }
const ONE_SLOT = { workers: 1, jobsMax: 2, restartsMax: 0 }
const TWO_SLOTS = { workers: 2, jobsMax: 2, restartsMax: 0 }

it.each([
  ['one slot', ONE_SLOT, 50],
  ['two slots that race', TWO_SLOTS, 500],
  ['two slots whose workers start again', { ...TWO_SLOTS, restartsMax: 2 }, 2_000],
])('nobody is passed over with %s', options, (_, size, statesMin) => {
  const verdict = check(fairQueueModel(FAIR_QUEUE_GUARDS, size))
  expect(verdict).toMatchObject({ violation: undefined, path: [] })
  // A model that reaches little proves little.
  expect(verdict.states).toBeGreaterThan(statesMin)
})

const PASSED = 'a tenant was passed over again and again'

/** What breaks without each guard, and with how many slots. */
const NEEDED: Record<keyof FairQueueGuards, readonly [string, typeof ONE_SLOT]> = {
  claimsIterateTenants: [PASSED, ONE_SLOT],
  positionMoves: [PASSED, ONE_SLOT],
  roundWraps: [STUCK, ONE_SLOT],
  fewestComeFirst: ['who had more running was served first', TWO_SLOTS],
}

it.each(Object.entries(NEEDED))('without %s: %s', options, (guard, [violation, size]) => {
  const verdict = check(fairQueueModel({ ...FAIR_QUEUE_GUARDS, [guard]: false }, size))
  expect(verdict.violation, verdict.path.join(' > ')).toBe(violation)
})
