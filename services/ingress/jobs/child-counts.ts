import type { DurableJob, DurableState } from '#schemas/durable-job.ts'
import { countEnded } from '#services/ingress/batches/parts.ts'
import type { IngressContext } from '#services/ingress/call.ts'
import { TERMINAL } from '#shared/jobs/durable/follow.ts'
import { batch } from '#shared/kinds/batch.ts'
import { requireJobs } from './paths.ts'

/** Jobs of one page that are counted as they are now: a batch takes twenty reads of the store. */
const COUNTED_MAX = 10

/** How far the jobs are that one job has others do: the requests of a batch, else its children. */
export interface ChildCounts {
  readonly total: number
  readonly completed: number
  /** Ended otherwise. */
  readonly failed: number
}

/** How far the jobs are that a job has others do; undefined where it has none, or nobody knows yet how many there are. */
export async function childCountsOf(context: IngressContext, job: DurableJob): Promise<ChildCounts | undefined> {
  if (job.kind !== batch.name) return job.children === 0 ? undefined : await countChildren(context, job)
  const counts = toldOf(job) ?? (await plannedOf(context, job))
  // Whole parts are told of, so that the others are counted; of those that could not be submitted there is no job.
  if (!counts || counts.completed + counts.failed >= counts.total) return counts
  return { ...counts, ...(await countEnded(context, job, counts)) }
}

/** What a batch is to do that has told nothing yet: its first step knows how many requests there are. */
async function plannedOf(context: IngressContext, job: DurableJob): Promise<ChildCounts | undefined> {
  if (TERMINAL.has(job.state)) return undefined
  const validated = (await requireJobs(context).stepsOf(job)).find(({ kind }) => kind === 'validate')
  return validated && { total: validated.cost.requests ?? 0, completed: 0, failed: 0 }
}

/**
 * The same of the jobs of a page, by their ids. The first few are counted now; of the others it is what
 * they told last, which batches do.
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

/** What a batch has told last: it counts the requests of its first parts. */
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
