import type { DurableJob } from '#schemas/durable-job.ts'
import type { IngressContext } from '#services/ingress/call.ts'
import { childJobId } from '#shared/store/job-id.ts'

/** Maximum requests per part. A job may have at most 500 child jobs, so a batch of 50,000 requests has 500 parts. */
export const PART_REQUESTS = 100
export const PARTS_IN_FLIGHT_MAX = 20

/** Progress phase of a part whose next line waits for a rate limit or a budget. */
export const LINES_WAIT = 'waiting'

export interface EndedRequests {
  readonly completed: number
  readonly failed: number
}

/**
 * Counts the ended requests of a batch, including those of unfinished parts.
 *
 * A batch records progress only once per group of parts, which avoids a write per request. This function adds the
 * requests that ended since then.
 *
 * @param reported Counts of the last progress event, which contain only whole parts
 */
export async function countEnded(
  { store }: IngressContext,
  { id, tenant }: DurableJob,
  reported: EndedRequests,
): Promise<EndedRequests> {
  const parts = partsUnderWay(id, reported)
  const counts = await Promise.all(parts.map(async (part) => (await store?.countChildren(tenant, part)) ?? {}))
  return counts.reduce<EndedRequests>(
    (sum, { completed = 0, failed = 0, cancelled = 0, expired = 0 }) => ({
      completed: sum.completed + completed,
      failed: sum.failed + failed + cancelled + expired,
    }),
    reported,
  )
}

export async function waitingFor(
  { store }: IngressContext,
  { id, tenant }: DurableJob,
  reported: EndedRequests,
): Promise<string | null> {
  const parts = await Promise.all(partsUnderWay(id, reported).map((part) => store?.find(tenant, part)))
  for (const part of parts) {
    const { progress } = (part?.progress ?? {}) as { progress?: { phase?: string; message?: string } }
    if (part?.state === 'scheduled' && progress?.phase === LINES_WAIT) return progress.message ?? null
  }
  return null
}

function partsUnderWay(id: string, { completed, failed }: EndedRequests): string[] {
  const first = Math.floor((completed + failed) / PART_REQUESTS)
  return Array.from({ length: PARTS_IN_FLIGHT_MAX }, (_, nth) => childJobId(id, String(first + nth)))
}
