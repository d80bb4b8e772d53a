import type { DurableJob } from '#schemas/durable-job.ts'
import type { IngressContext } from '#services/ingress/call.ts'
import { childJobId } from '#shared/store/job-id.ts'

/** Requests of one part: 500 parts are the children that a job may have. */
export const PART_REQUESTS = 100
/** Parts that are under way at once. */
export const PARTS_AT_ONCE = 20

/** Phase of a part whose next line waits for a limit or a budget. */
export const LINES_WAIT = 'waiting'

/** How many requests of a batch have ended. */
export interface EndedRequests {
  readonly completed: number
  readonly failed: number
}

/**
 * How many requests of a batch have ended, those of the parts under way included.
 *
 * A batch tells of groups of parts, so that nobody writes for each request; those that end meanwhile are counted where somebody asks.
 *
 * @param told What the batch has told last: all requests of its first parts.
 */
export async function countEnded(
  { store }: IngressContext,
  { id, tenant }: DurableJob,
  told: EndedRequests,
): Promise<EndedRequests> {
  const parts = partsUnderWay(id, told)
  const counts = await Promise.all(parts.map(async (part) => (await store?.countChildren(tenant, part)) ?? {}))
  return counts.reduce<EndedRequests>(
    (sum, { completed = 0, failed = 0, cancelled = 0, expired = 0 }) => ({
      completed: sum.completed + completed,
      failed: sum.failed + failed + cancelled + expired,
    }),
    told,
  )
}

/** The limit or the budget that lines of a batch wait for, in a sentence; null: they wait for none. */
export async function waitingFor(
  { store }: IngressContext,
  { id, tenant }: DurableJob,
  told: EndedRequests,
): Promise<string | null> {
  const parts = await Promise.all(partsUnderWay(id, told).map((part) => store?.find(tenant, part)))
  for (const part of parts) {
    const { progress } = (part?.progress ?? {}) as { progress?: { phase?: string; message?: string } }
    if (part?.state === 'scheduled' && progress?.phase === LINES_WAIT) return progress.message ?? null
  }
  return null
}

/** Ids of the parts that may be under way. */
function partsUnderWay(id: string, { completed, failed }: EndedRequests): string[] {
  const first = Math.floor((completed + failed) / PART_REQUESTS)
  return Array.from({ length: PARTS_AT_ONCE }, (_, nth) => childJobId(id, String(first + nth)))
}
