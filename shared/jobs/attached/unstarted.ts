import type { ErrorBody } from '#schemas/error.ts'
import type { Presence } from '#shared/jobs/presence.ts'
import type { AttachedJob } from './attached-job.ts'

/** What the caller of a job hears that nobody will start; undefined while somebody may. @param waitMs How long it waited */
export function unstartedError(presence: Presence, job: AttachedJob, waitMs: number): ErrorBody | undefined {
  const why = whyUnstarted(presence, job, waitMs)
  return why === undefined ? undefined : { code: 'overloaded', message: `${why} Try again later.`, param: null }
}

function whyUnstarted(presence: Presence, { envelope, sentAtMs }: AttachedJob, waitMs: number): string | undefined {
  const { pool, model } = envelope
  if (presence.workers(pool).length === 0) return `No ${pool} worker is running.`
  if (!presence.hasModel(pool, model)) return `No ${pool} worker has the model '${model}'.`
  // The broker may lose what it has taken.
  const isLost = sentAtMs !== undefined && Date.now() - sentAtMs >= waitMs && presence.freeSlots(pool) > 0
  return isLost ? 'No worker has taken the request.' : undefined
}
