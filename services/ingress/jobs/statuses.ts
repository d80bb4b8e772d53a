import type { DurableState } from '#schemas/durable-job.ts'
import { ServiceError } from '#shared/error.ts'

/** Statuses of the wire by the states they stand for. */
const STATES: Readonly<Record<string, readonly DurableState[]>> = {
  queued: ['queued', 'scheduled'],
  in_progress: ['in_progress', 'waiting'],
  cancelling: ['queued', 'scheduled', 'in_progress'],
  completed: ['completed'],
  failed: ['failed'],
  cancelled: ['cancelled'],
  expired: ['expired'],
}

/** The states of jobs that may have one of these statuses, each once. @throws ServiceError `invalid_value` */
export function statesOfAll(statuses: readonly string[]): DurableState[] {
  // Each once: every number of them is a statement of its own, which the database keeps prepared.
  return [...new Set(statuses.flatMap(statesOf))]
}

function statesOf(status: string): readonly DurableState[] {
  const states = Object.hasOwn(STATES, status) ? STATES[status] : undefined
  if (states) return states
  const known = Object.keys(STATES).join(', ')
  throw new ServiceError('invalid_value', `Unknown status. Expected one of ${known}.`, { param: 'status' })
}
