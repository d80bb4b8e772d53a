import type { Priority } from '#schemas/durable-job.ts'

/** How the slots of one worker are used. */
export interface SlotUse {
  readonly slots: number
  /** Jobs of both lanes that run. */
  readonly running: number
  /** Jobs of the batch lane among them. */
  readonly batch: number
  /** The interactive lane has had work of late. */
  readonly isInteractiveBusy: boolean
}

/**
 * Slots a lane may fill now (docs/design.md, Lanes): the interactive lane any that is free. The batch lane a quarter of
 * all while the other has work; it may borrow the rest otherwise, but for a quarter that is kept, so that the first
 * call after a quiet time need not wait for a long batch job.
 */
export function laneRoom(lane: Priority, { slots, running, batch, isInteractiveBusy }: SlotUse): number {
  const free = slots - running
  if (lane === 'normal') return free
  const most = isInteractiveBusy ? quarterOf(slots) : slots - slotsKept(slots)
  return Math.min(free, most - batch)
}

/** Slots of a worker that the batch lane leaves free, however long it is. */
export function slotsKept(slots: number): number {
  return Math.min(quarterOf(slots), slots - quarterOf(slots))
}

/** A quarter, at least one. */
export function quarterOf(slots: number): number {
  return Math.ceil(slots / 4)
}
