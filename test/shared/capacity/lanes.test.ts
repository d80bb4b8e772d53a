import fc from 'fast-check'
import { describe, expect, it } from 'vitest'
import { laneSlots, type SlotUse } from '#shared/capacity/slots.ts'

const SHARE = { min: 0, max: 1, noNaN: true }

/** Generates any valid use of slots: batch jobs are some of the running jobs, and there are at most as many running jobs as slots. */
const anyUse: fc.Arbitrary<SlotUse> = fc
  .record({
    slots: fc.integer({ min: 1, max: 512 }),
    isInteractiveBusy: fc.boolean(),
    share: fc.double(SHARE),
    of: fc.double(SHARE),
  })
  .map(({ slots, isInteractiveBusy, share, of }) => {
    const running = Math.round(slots * share)
    return { slots, isInteractiveBusy, running, batch: Math.round(running * of) }
  })

describe('the slots that a lane may take', () => {
  it('never exceed the free slots of the worker', () => {
    fc.assert(
      fc.property(anyUse, (use) => {
        const free = use.slots - use.running
        expect(laneSlots('normal', use)).toBe(free)
        expect(laneSlots('low', use)).toBeLessThanOrEqual(free)
      }),
    )
  })

  it('are a quarter for the batch lane while the interactive lane is busy, and otherwise three quarters', () => {
    fc.assert(
      fc.property(anyUse, (use) => {
        const room = laneSlots('low', use)
        if (room <= 0) return
        const quarter = Math.ceil(use.slots / 4)
        const kept = use.isInteractiveBusy ? use.slots - quarter : Math.min(quarter, use.slots - quarter)
        expect(use.batch + room).toBeLessThanOrEqual(use.slots - kept)
      }),
    )
  })

  it('are at least one for the batch lane if the worker is idle', () => {
    fc.assert(
      fc.property(fc.integer({ min: 1, max: 512 }), fc.boolean(), (slots, isInteractiveBusy) => {
        expect(laneSlots('low', { slots, running: 0, batch: 0, isInteractiveBusy })).toBeGreaterThan(0)
      }),
    )
  })
})
