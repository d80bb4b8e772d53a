import type { Priority } from '#schemas/durable-job.ts'

export interface SlotUse {
  readonly slots: number
  readonly running: number
  readonly batch: number
  /** True if the interactive lane had work recently. */
  readonly isInteractiveBusy: boolean
}

/**
 * Slots that a lane may take now (docs/internals/design.md, Fairness). The interactive lane may take any free slot. The batch lane gets a
 * quarter of all slots while the other lane is busy, and otherwise three quarters. The last quarter stays free, so that the first
 * call after a quiet time does not wait for a long batch job.
 */
export function laneSlots(lane: Priority, { slots, running, batch, isInteractiveBusy }: SlotUse): number {
  const free = slots - running
  if (lane === 'normal') return free
  const most = isInteractiveBusy ? quarterOf(slots) : slots - reservedSlots(slots)
  return Math.min(free, most - batch)
}

/** Number of slots that the batch lane always leaves free. */
export function reservedSlots(slots: number): number {
  return Math.min(quarterOf(slots), slots - quarterOf(slots))
}

export function quarterOf(slots: number): number {
  return Math.ceil(slots / 4)
}
