import type { DurableJob, DurableState } from '#schemas/durable-job.ts'
import { countEnded } from '#services/ingress/batches/parts.ts'
import type { IngressContext } from '#services/ingress/call.ts'
import { TERMINAL } from '#shared/jobs/durable/follow.ts'
import { batch } from '#shared/kinds/batch.ts'
import { requireJobs } from './paths.ts'

/**
 * Maximum composed jobs per page whose child jobs are counted exactly. Limited, because counting for one batch reads
 * the store twenty times.
 */
const COUNTED_MAX = 10

/** Progress of a composed job: number of requests for a batch, number of child jobs otherwise. */
export interface ChildCounts {
  readonly total: number
  readonly completed: number
  readonly failed: number
}

/** Progress of the child jobs; undefined if there are none, or if their number is not known yet. */
export async function childCountsOf(context: IngressContext, job: DurableJob): Promise<ChildCounts | undefined> {
  if (job.kind !== batch.name) return job.children === 0 ? undefined : await countChildren(context, job)
  const counts = reportedCountsOf(job) ?? (await plannedOf(context, job))
  // The progress event counts only whole parts, so requests of unfinished parts are added here. A request that could
  // not be submitted has no job.
  if (!counts || counts.completed + counts.failed >= counts.total) return counts
  return { ...counts, ...(await countEnded(context, job, counts)) }
}

/** Counts of a batch without a progress event. The first step, `validate`, has recorded the number of requests. */
async function plannedOf(context: IngressContext, job: DurableJob): Promise<ChildCounts | undefined> {
  if (TERMINAL.has(job.state)) return undefined
  const validated = (await requireJobs(context).stepsOf(job)).find(({ kind }) => kind === 'validate')
  return validated && { total: validated.cost.requests ?? 0, completed: 0, failed: 0 }
}

/**
 * {@link childCountsOf} for a page of jobs, by job id. The first {@link COUNTED_MAX} jobs are counted exactly. The
 * others have the counts of the last progress event, which only batches send.
 */
export async function childCountsOfPage(
  context: IngressContext,
  jobs: readonly DurableJob[],
): Promise<ReadonlyMap<string, ChildCounts>> {
  const composed = jobs.filter(({ kind, children }) => children > 0 || kind === batch.name)
  const counted = new Set(composed.slice(0, COUNTED_MAX))
  const all = await Promise.all(
    composed.map(
      async (job) => [job.id, counted.has(job) ? await childCountsOf(context, job) : reportedCountsOf(job)] as const,
    ),
  )
  return new Map(all.flatMap(([id, counts]) => (counts ? [[id, counts] as const] : [])))
}

function reportedCountsOf({ kind, progress }: DurableJob): ChildCounts | undefined {
  if (kind !== batch.name) return undefined
  const { progress: said } = (progress ?? {}) as { progress?: { counts?: ChildCounts } }
  return said?.counts && { total: said.counts.total, completed: said.counts.completed, failed: said.counts.failed }
}

async function countChildren({ store }: IngressContext, { id, tenant, children }: DurableJob): Promise<ChildCounts> {
  const counts: Partial<Record<DurableState, number>> = (await store?.countChildren(tenant, id)) ?? {}
  const { completed = 0, failed = 0, cancelled = 0, expired = 0 } = counts
  return { total: children, completed, failed: failed + cancelled + expired }
}
