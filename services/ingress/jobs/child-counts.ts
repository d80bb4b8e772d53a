import type { DurableJob, DurableState } from '#schemas/durable-job.ts'
import { countEnded } from '#services/ingress/batches/parts.ts'
import type { IngressContext } from '#services/ingress/call.ts'
import { TERMINAL } from '#shared/jobs/durable/follow.ts'
import { batch } from '#shared/kinds/batch.ts'
import { requireJobs } from './paths.ts'

/** Maximum composed jobs per page whose children are counted exactly. A batch takes twenty reads of the store. */
const COUNTED_MAX = 10

/** Progress of the work of a composed job: the requests of a batch, otherwise its children. */
export interface ChildCounts {
  readonly total: number
  readonly completed: number
  readonly failed: number
}

/** Progress of a job's children; undefined if it has none, or if their number is not known yet. */
export async function childCountsOf(context: IngressContext, job: DurableJob): Promise<ChildCounts | undefined> {
  if (job.kind !== batch.name) return job.children === 0 ? undefined : await countChildren(context, job)
  const counts = toldOf(job) ?? (await plannedOf(context, job))
  // The progress event counts whole parts, so the requests of unfinished parts are counted here. Requests that could
  // not be submitted have no job.
  if (!counts || counts.completed + counts.failed >= counts.total) return counts
  return { ...counts, ...(await countEnded(context, job, counts)) }
}

/** Counts of a batch without a progress event: its first step, `validate`, has recorded the number of requests. */
async function plannedOf(context: IngressContext, job: DurableJob): Promise<ChildCounts | undefined> {
  if (TERMINAL.has(job.state)) return undefined
  const validated = (await requireJobs(context).stepsOf(job)).find(({ kind }) => kind === 'validate')
  return validated && { total: validated.cost.requests ?? 0, completed: 0, failed: 0 }
}

/**
 * {@link childCountsOf} for a page of jobs, by their ids. The first {@link COUNTED_MAX} are counted exactly. For the
 * others the last progress event counts, which only batches have.
 */
export async function childCountsOfPage(
  context: IngressContext,
  jobs: readonly DurableJob[],
): Promise<ReadonlyMap<string, ChildCounts>> {
  const composed = jobs.filter(({ kind, children }) => children > 0 || kind === batch.name)
  const counted = new Set(composed.slice(0, COUNTED_MAX))
  const all = await Promise.all(
    composed.map(async (job) => [job.id, counted.has(job) ? await childCountsOf(context, job) : toldOf(job)] as const),
  )
  return new Map(all.flatMap(([id, counts]) => (counts ? [[id, counts] as const] : [])))
}

function toldOf({ kind, progress }: DurableJob): ChildCounts | undefined {
  if (kind !== batch.name) return undefined
  const { progress: said } = (progress ?? {}) as { progress?: { counts?: ChildCounts } }
  return said?.counts && { total: said.counts.total, completed: said.counts.completed, failed: said.counts.failed }
}

async function countChildren({ store }: IngressContext, { id, tenant, children }: DurableJob): Promise<ChildCounts> {
  const counts: Partial<Record<DurableState, number>> = (await store?.countChildren(tenant, id)) ?? {}
  const { completed = 0, failed = 0, cancelled = 0, expired = 0 } = counts
  return { total: children, completed, failed: failed + cancelled + expired }
}
