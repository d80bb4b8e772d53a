import type { DurableJob } from '#schemas/durable-job.ts'
import { ServiceError } from '#shared/error.ts'
import { batchPart } from '#shared/kinds/batch.ts'
import { childJobId, firstJobId, jobIdTime } from '#shared/store/job-id.ts'
import { isJobId } from './paths.ts'

/** Parts that a batch can have. */
const PARTS_MAX = 500
/** Sorts behind every character of an id. */
const LAST = '~'

/**
 * The jobs that one job has others do: the calls of a batch, or what a research asked for. Their ids begin with the same time as that of
 * the job, so they lie side by side among those of their project.
 */
export class Group {
  readonly #parents: ReadonlySet<string>
  readonly #beginning: string

  /** @param id Of a job or a batch. @throws ServiceError `invalid_value` */
  constructor(id: string) {
    const root = id.replace(/^(msg)?batch_/, 'job_')
    const atMs = isJobId(root) ? jobIdTime(root) : undefined
    if (atMs === undefined) {
      throw new ServiceError('invalid_value', 'Expected the id of a job or of a batch.', { param: 'group' })
    }
    this.#beginning = firstJobId(atMs)
    this.#parents = new Set([root, ...Array.from({ length: PARTS_MAX }, (_, nth) => childJobId(root, String(nth)))])
  }

  /** Whether a job is one of them; parts of a batch are not, they only hold its calls together. */
  has({ depth, parent_id, kind }: DurableJob): boolean {
    return depth > 0 && kind !== batchPart.name && this.#parents.has(parent_id ?? '')
  }

  /** Whether an id lies where theirs do. */
  isNear(id: string): boolean {
    return id.startsWith(this.#beginning)
  }

  /** Where a page of a list begins. @param after Cursor of the caller. */
  cursor(after: string | undefined, order: 'asc' | 'desc'): string {
    const edge = order === 'asc' ? this.#beginning : this.#beginning + LAST
    if (after === undefined) return edge
    return (order === 'asc' ? after > edge : after < edge) ? after : edge
  }
}
