/*
 * Submits the child jobs of one attempt of a composed job, and reads their ends.
 *
 * A child has an id derived from parent id and key, so a submission that a later attempt repeats returns the existing child. A submission
 * also writes the parent's row. If the claim of this worker has ended, then the store rejects this write, and the submission fails.
 * Submissions are sequential, so that each child is counted before the next limit check. The limits are 500 children per job, 50 unended
 * children by default, and 3 levels.
 */

import type { DurableJob } from '#schemas/durable-job.ts'
import type { ErrorBody } from '#schemas/error.ts'
import type { EncodeContext } from '#schemas/job.ts'
import type { Blobs } from '#shared/blobs/blobs.ts'
import { inputText, storeRequest } from '#shared/jobs/body.ts'
import type { Dispatcher } from '#shared/jobs/durable/dispatch.ts'
import { TERMINAL } from '#shared/jobs/durable/follow.ts'
import type { ChildEnd, ChildJob } from '#shared/kinds/composition.ts'
import { ServiceError } from '#shared/lib/error.ts'
import type { Log } from '#shared/log/log.ts'
import { childJobId } from '#shared/store/jobs.ts'
import { ALL_TENANTS, type QueuedOf, type Store } from '#shared/store/store.ts'
import { attemptContext, tracing } from '#shared/telemetry/tracing.ts'
import type { OwnerWrites } from './owner-writes.ts'
import { lost, tooMuch } from './steps.ts'

/** Maximum levels of child jobs below a job that a caller submitted. */
const DEPTH_MAX = 3
/** Maximum number of children of one job, and maximum number of its unended children. */
const CHILDREN_MAX = 500
const UNENDED_MAX = 50

const LISTED_MIN = 8

export interface ChildrenOptions {
  readonly job: DurableJob
  readonly store: Store
  readonly blobs: Blobs
  readonly dispatcher: Dispatcher
  readonly writes: OwnerWrites
  readonly log: Log
  readonly childrenAtOnce?: number | undefined
  readonly signal: AbortSignal
}

export class Children {
  readonly #options: ChildrenOptions
  readonly #asked = new Map<string, Promise<string>>()
  /** Children that have ended. The row of an ended child never changes, so no further read is needed. */
  readonly #ended = new Map<string, DurableJob>()
  #last: Promise<unknown> = Promise.resolve()
  #count: number

  constructor(options: ChildrenOptions) {
    this.#options = options
    this.#count = options.job.children
  }

  submit(child: ChildJob): Promise<string> {
    const id = childJobId(this.#options.job.id, child.key)
    let submitted = this.#asked.get(id)
    if (!submitted) {
      submitted = this.#last.then(() => this.#once(id, child))
      this.#asked.set(id, submitted)
      this.#last = submitted.catch(() => this.#asked.delete(id))
    }
    return submitted
  }

  async find(ids: readonly string[]): Promise<DurableJob[]> {
    const unknown = ids.filter((id) => !this.#ended.has(id))
    const listed = unknown.length >= LISTED_MIN ? await this.#list() : []
    const found = new Map(listed.map((child) => [child.id, child]))
    return await Promise.all(ids.map(async (id) => found.get(id) ?? (await this.#find(id))))
  }

  async #list(): Promise<DurableJob[]> {
    const children = (await this.#read((store) => store.listChildren(ALL_TENANTS, this.#options.job.id))) ?? []
    for (const child of children) if (TERMINAL.has(child.state)) this.#ended.set(child.id, child)
    return children
  }

  /**
   * Returns the end of a child, or of a grandchild if `parent` is a child. Undefined if the child has not ended or does
   * not exist.
   */
  async findEnd(id: string, parent: string = this.#options.job.id): Promise<ChildEnd | undefined> {
    const child = this.#ended.get(id) ?? (await this.#read((store) => store.find(ALL_TENANTS, id)))
    const isOurs = child !== undefined && child.depth > 0 && child.parent_id === parent
    // The store was read without a tenant. A result is therefore returned only for a child of `parent` in the tenant of this job.
    return isOurs && child.tenant === this.#options.job.tenant ? await this.endOf(child) : undefined
  }

  async endOf(child: DurableJob): Promise<ChildEnd | undefined> {
    const { id, state, usage } = child
    if (state === 'completed') {
      const content = await this.#read((store) => store.findContent(ALL_TENANTS, id))
      return { id, state, result: content?.result ?? null, usage }
    }
    if (state !== 'failed' && state !== 'cancelled' && state !== 'expired') return undefined
    return { id, state, error: child.error ?? ERRORS_OF[state] }
  }

  async #once(id: string, child: ChildJob): Promise<string> {
    const { job, signal, store, writes } = this.#options
    if (job.children > 0 && (await this.#read((reads) => reads.find(ALL_TENANTS, id)))) return id
    await this.#requireRoom()
    signal.throwIfAborted()
    const { pool, kind, endpoint, model, deadlineInMs, metadata, reservedNanos } = child
    const encode = { ...encodeOf(id, job, model), ...child.encode }
    const request = await storeRequest(id, child, encode, this.#options.blobs)
    const blobBytes = request.blob === undefined ? 0 : await this.#options.blobs.size(request.blob)
    // If traces are on, then the span of the child belongs to the attempt that submitted the child.
    const traceparent = tracing.tracer && attemptContext(job.traceparent, job.id, job.attempt)
    const made = {
      id,
      traceparent,
      pool,
      kind,
      endpoint,
      model,
      deadlineInMs,
      metadata,
      request,
      input: child.sent === undefined ? undefined : await inputText(child.sent),
      reservedNanos,
      blobBytes,
    }
    const moved = await writes.write(() => (held) => store.submitChild(held, made))
    if (!moved) throw lost(signal)
    this.#count++
    // The child is committed, so the next submission does not wait for its publication.
    void this.#publish({ id, pool, kind, model, priority: job.priority }, request)
    return id
  }

  async #publish(of: QueuedOf & { readonly id: string }, request: unknown): Promise<void> {
    const { dispatcher, log } = this.#options
    const find = async () => {
      const row = await this.#read((reads) => reads.find(ALL_TENANTS, of.id))
      return row?.state === 'queued' ? row : undefined
    }
    try {
      await dispatcher.publishQueued(of, find, request)
    } catch (error) {
      log.info({ err: error, job_id: of.id }, 'child job could not be published to its queue; the scheduler retries')
    }
  }

  async #requireRoom(): Promise<void> {
    const { job, childrenAtOnce: most = UNENDED_MAX } = this.#options
    if (job.depth >= DEPTH_MAX) throw tooMuch(`child jobs nested more than ${DEPTH_MAX} levels deep`)
    if (this.#count >= CHILDREN_MAX) throw tooMuch(`more than ${CHILDREN_MAX} child jobs`)
    if (this.#count < most) return
    const unended = (await this.#list()).filter(({ state }) => !TERMINAL.has(state)).length
    if (unended >= most) throw tooMuch(`more than ${most} child jobs that have not ended`)
  }

  async #find(id: string): Promise<DurableJob> {
    const child = this.#ended.get(id) ?? (await this.#read((store) => store.find(ALL_TENANTS, id)))
    const isOurs = child !== undefined && child.depth > 0 && child.parent_id === this.#options.job.id
    if (isOurs && TERMINAL.has(child.state)) this.#ended.set(id, child)
    if (isOurs) return child
    throw new ServiceError('invalid_request', `No child job has the id '${id}'.`)
  }

  async #read<T>(ask: (store: Store) => Promise<T>): Promise<T> {
    const { signal, store, writes } = this.#options
    const answer = await writes.persist(() => ask(store))
    if (writes.isLost) throw lost(signal)
    return answer as T
  }
}

const ERRORS_OF: Readonly<Record<'failed' | 'cancelled' | 'expired', ErrorBody>> = {
  failed: { code: 'internal_error', message: 'The job failed.', param: null },
  cancelled: { code: 'job_cancelled', message: 'The job was cancelled.', param: null },
  expired: { code: 'job_expired', message: 'The job waited longer than its deadline allows.', param: null },
}

/** Returns the context that formats the result of a child like the answer of the corresponding API call. */
function encodeOf(id: string, { request_id }: DurableJob, model: string): EncodeContext {
  const call_id = id.slice('job_'.length)
  const created_at = Math.floor(Date.now() / 1_000)
  return { request_id: request_id ?? '', call_id, created_at, model, include_usage: false, version: '' }
}
