import type { DurableJob } from '#schemas/durable-job.ts'
import { ServiceError } from '#shared/error.ts'
import { batchPart } from '#shared/kinds/batch.ts'
import { childJobId, firstJobId, jobIdTime } from '#shared/store/job-id.ts'
import { isJobId } from './paths.ts'

const PARTS_MAX = 500
/** Sorts after every character of an id. */
const LAST = '~'

/**
 * The descendants of one job: the calls of a batch, or the child jobs of a research. Their ids begin with the timestamp
 * of the root job's id, so they are adjacent in the project's list.
 */
export class Group {
  readonly #parents: ReadonlySet<string>
  readonly #beginning: string

  /**
   * @param id Id of a job or a batch.
   *
   * @throws ServiceError `invalid_value`
   */
  constructor(id: string) {
    const root = id.replace(/^(msg)?batch_/, 'job_')
    const atMs = isJobId(root) ? jobIdTime(root) : undefined
    if (atMs === undefined) {
      throw new ServiceError('invalid_value', 'Expected the id of a job or of a batch.', { param: 'group' })
    }
    this.#beginning = firstJobId(atMs)
    this.#parents = new Set([root, ...Array.from({ length: PARTS_MAX }, (_, nth) => childJobId(root, String(nth)))])
  }

  /** Whether a job belongs to the group. Parts of a batch do not, because they only organize its calls. */
  has({ depth, parent_id, kind }: DurableJob): boolean {
    return depth > 0 && kind !== batchPart.name && this.#parents.has(parent_id ?? '')
  }

  /** Whether an id has the prefix of the group's ids. */
  isNear(id: string): boolean {
    return id.startsWith(this.#beginning)
  }

  /**
   * Cursor at which a page of the group begins.
   *
   * @param after Cursor of the caller
   */
  cursor(after: string | undefined, order: 'asc' | 'desc'): string {
    const edge = order === 'asc' ? this.#beginning : this.#beginning + LAST
    if (after === undefined) return edge
    return (order === 'asc' ? after > edge : after < edge) ? after : edge
  }
}
