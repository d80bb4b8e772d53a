import type { DurableState } from '#schemas/durable-job.ts'
import { ServiceError } from '#shared/lib/error.ts'

const STATES: Readonly<Record<string, readonly DurableState[]>> = {
  queued: ['queued', 'scheduled'],
  in_progress: ['in_progress', 'waiting'],
  cancelling: ['queued', 'scheduled', 'in_progress'],
  completed: ['completed'],
  failed: ['failed'],
  cancelled: ['cancelled'],
  expired: ['expired'],
}

/**
 * States of the given statuses, without duplicates.
 *
 * @throws ServiceError `invalid_value`
 */
export function statesOfAll(statuses: readonly string[]): DurableState[] {
  // Each number of states is a separate prepared statement, so duplicates are removed.
  return [...new Set(statuses.flatMap(statesOf))]
}

function statesOf(status: string): readonly DurableState[] {
  const states = Object.hasOwn(STATES, status) ? STATES[status] : undefined
  if (states) return states
  const known = Object.keys(STATES).join(', ')
  throw new ServiceError('invalid_value', `Unknown status. Expected one of ${known}.`, { param: 'status' })
}
