import type { DurableJob, Priority } from '#schemas/durable-job.ts'
import type { EncodeContext, PoolName, StoredRequest } from '#schemas/job.ts'
import type { Blobs } from '#shared/blobs/blobs.ts'
import type { Broker } from '#shared/broker/broker.ts'
import { ServiceError } from '#shared/error.ts'
import { fetchBody, storeBody } from '#shared/jobs/body.ts'
import type { Presence } from '#shared/jobs/presence.ts'
import { readStored } from '#shared/jobs/records.ts'
import type { Log } from '#shared/log/log.ts'
import { newAttachmentKey, newJobId, ownerOfBlob } from '#shared/store/job-id.ts'
import type { Created, IdempotencyKey, ListQuery, Scope, Store } from '#shared/store/store.ts'
import { blobsOf, dropBlobs } from './blobs.ts'
import { Dispatcher } from './dispatch.ts'
import { follow, LiveEvents, TERMINAL } from './follow.ts'

/** How old the count of jobs may be that new ones are admitted by. */
const DEPTH_AGE_MS = 1_000

/** A durable job as its caller asks for it. */
export interface NewDurableJob {
  readonly pool: PoolName
  readonly kind: string
  readonly tenant: string
  readonly endpoint: string
  readonly model: string
  /** In the internal form of its kind. */
  readonly body: unknown
  /** Blobs the body names, under {@link newAttachmentKey keys} of one job id, which becomes that of this job. They are its own once it is created. */
  readonly attachments?: readonly string[] | undefined
  readonly stream: boolean
  readonly encode: Omit<EncodeContext, 'call_id' | 'created_at'>
  /** From acceptance, or from `runAtMs`, in milliseconds. */
  readonly deadlineInMs: number
  readonly startInMs?: number | undefined
  /** Unix milliseconds. */
  readonly runAtMs?: number | undefined
  readonly priority?: Priority | undefined
  readonly parentId?: string | undefined
  readonly metadata?: Record<string, string> | undefined
  readonly webhook?: { readonly url: string; readonly events: readonly string[] } | undefined
  readonly traceparent: string | undefined
}

/** What {@link DurableJobs.open} needs. */
export interface DurableJobsOptions {
  readonly store: Store
  readonly broker: Broker
  readonly blobs: Blobs
  readonly log: Log
  readonly presence: () => Presence
  readonly retentionMs: number
  /** Jobs that may wait and run at once. */
  readonly jobsMax: number
}

/**
 * Durable jobs, seen by those who submit and follow them. Their arbiter is the store (docs/design.md, Arbiters):
 * whatever is said here was committed before.
 */
export class DurableJobs {
  readonly store: Store
  readonly #options: DurableJobsOptions
  readonly #dispatcher: Dispatcher
  readonly #live: LiveEvents
  #depth = { atMs: 0, count: 0 }

  private constructor(options: DurableJobsOptions, live: LiveEvents) {
    this.store = options.store
    this.#options = options
    this.#live = live
    this.#dispatcher = new Dispatcher(options.broker, options.log)
  }

  /** Starts to hear of events. */
  static async open(options: DurableJobsOptions): Promise<DurableJobs> {
    return new DurableJobs(options, await LiveEvents.open(options.broker, options.log))
  }

  /**
   * Accepts a job: once this resolves it is on disk. Its record goes out right after, outside the promise; should the broker
   * not take it, the scheduler publishes it.
   *
   * Nothing is kept of a job that is refused; what may have been accepted all the same is left to the sweep of blobs.
   *
   * @throws ServiceError `overloaded` when the store is down or too many jobs are under way
   */
  async create(spec: NewDurableJob, key?: IdempotencyKey): Promise<Created> {
    await this.#refuseTooMany()
    const [attachment = ''] = spec.attachments ?? []
    const id = ownerOfBlob(attachment) ?? newJobId()
    const call_id = id.slice('job_'.length)
    const encode = { ...spec.encode, call_id, created_at: Math.floor(Date.now() / 1_000) }
    const request = await this.#requestOf(id, spec, encode)
    const own = request.blob === undefined ? [] : [request.blob]
    const created = await this.#orDrop(own, () => this.#createSurely(id, spec, request, key))
    if (created.outcome !== 'created') return created
    this.#depth.count++
    this.#dispatcher.publishEvents(created.events)
    if (created.job.state === 'queued') void this.#dispatcher.publishJob(created.job, request)
    return created
  }

  /** A job. @throws ServiceError `job_not_found`, also for those of others */
  async get(scope: Scope, id: string): Promise<DurableJob> {
    const job = await this.store.find(scope, id)
    if (!job || job.erased_at_ms !== null) throw new ServiceError('job_not_found', `No job with the id '${id}'.`)
    return job
  }

  /** A page of jobs, newest first unless asked otherwise. */
  list(scope: Scope, query: ListQuery): Promise<{ jobs: DurableJob[]; hasMore: boolean }> {
    return this.store.list(scope, query)
  }

  /** What a completed job's caller gets; null before. */
  async result(scope: Scope, id: string): Promise<unknown> {
    return (await this.store.findContent(scope, id))?.result ?? null
  }

  /**
   * Asks that a job stops: at once when it waits, else as soon as its worker has heard.
   *
   * @throws ServiceError `job_not_found`, `job_already_finished`
   */
  async cancel(scope: Scope, id: string): Promise<DurableJob> {
    const moved = await this.store.cancel(scope, id)
    if (!moved) {
      const job = await this.get(scope, id)
      if (job.state === 'cancelled' || !TERMINAL.has(job.state)) return job
      throw new ServiceError('job_already_finished', `The job has already ${pastOf(job.state)}.`)
    }
    this.#dispatcher.publishEvents(moved.events)
    if (moved.job.state === 'in_progress' && moved.job.owner !== null) {
      // The flag in the store is the truth, and its owner reads it with every renewal; this is quicker.
      const { attempt, owner: worker } = moved.job
      this.#options.presence().send({ type: 'cancel', job_id: id, attempt, worker })
    }
    return moved.job
  }

  /** Forgets a finished job. @throws ServiceError `job_not_found`, `job_not_finished` */
  async erase(scope: Scope, id: string): Promise<void> {
    const job = await this.get(scope, id)
    const content = await this.store.findContent(scope, id)
    if (!(await this.store.erase(scope, id))) {
      throw new ServiceError('job_not_finished', `The job is ${job.state}. Cancel it first.`)
    }
    await dropBlobs(this.#options, blobsOf(content?.request))
  }

  /**
   * Runs a failed, cancelled or expired job again, as a new one with a copy of its body: either may be erased alone.
   *
   * @throws ServiceError `job_not_found`, `job_not_finished`, `job_already_finished` when it completed, `overloaded`
   */
  async redrive(scope: Scope, id: string, key?: IdempotencyKey): Promise<Created> {
    const job = await this.get(scope, id)
    if (!TERMINAL.has(job.state)) throw new ServiceError('job_not_finished', `The job is ${job.state}.`)
    if (job.state === 'completed') {
      throw new ServiceError('job_already_finished', 'The job has completed: there is nothing to run again.')
    }
    const content = await this.store.findContent(scope, id)
    if (!content) throw new ServiceError('job_not_found', `No job with the id '${id}'.`)
    const request = readStored(content.request)
    await this.#refuseTooMany()
    const copies: string[] = []
    return await this.#orDrop(copies, async () => {
      const body = await this.#copyAttachments(request, copies)
      return await this.create({ ...repeatOf(job, body, request.encode), attachments: copies }, key)
    })
  }

  /** Follows a job's events (see {@link follow}). */
  follow(scope: Scope, id: string, after: number, signal: AbortSignal, pollMsMax?: number) {
    return follow({ live: this.#live, store: this.store, scope, id, after, signal, pollMsMax })
  }

  /**
   * Waits until a job has ended, or `signal` aborts. Gives the job as it is then.
   *
   * @param pollMsMax See {@link follow}.
   * @throws ServiceError `job_not_found`
   */
  async waitForEnd(scope: Scope, id: string, signal: AbortSignal, pollMsMax?: number): Promise<DurableJob> {
    const job = await this.get(scope, id)
    if (TERMINAL.has(job.state)) return job
    for await (const _events of this.follow(scope, id, job.last_seq, signal, pollMsMax)) {
      // Only the end counts.
    }
    return await this.get(scope, id)
  }

  async close(): Promise<void> {
    await this.#live.close()
  }

  /** Drops the blobs of a job that is surely not made. What is made, or may be, holds them. */
  async #orDrop(blobs: readonly string[], create: () => Promise<Created>): Promise<Created> {
    try {
      const created = await create()
      if (created.outcome !== 'created') await dropBlobs(this.#options, blobs)
      return created
    } catch (error) {
      if (isSurelyUndone(error)) await dropBlobs(this.#options, blobs)
      throw error
    }
  }

  /** Before anything is kept of a job. Counting asks the store, so a count serves a second. */
  async #refuseTooMany(): Promise<void> {
    if (!this.store.isReachable) {
      const message = 'The job store cannot be reached now.'
      throw new ServiceError('overloaded', message, { retryAfterMs: 2_000, isUndone: true })
    }
    const now = Date.now()
    if (now - this.#depth.atMs > DEPTH_AGE_MS) {
      this.#depth = { atMs: now, count: this.#depth.count }
      const depth = await this.store.depth()
      this.#depth.count = depth.reduce((sum, { count }) => sum + count, 0)
    }
    if (this.#depth.count < this.#options.jobsMax) return
    const message = 'Too many jobs are under way. Try again later.'
    throw new ServiceError('overloaded', message, { retryAfterMs: 10_000, isUndone: true })
  }

  async #requestOf(id: string, spec: NewDurableJob, encode: EncodeContext): Promise<StoredRequest> {
    const { body, attachments = [] } = spec
    const more = attachments.length > 0 ? { attachments: [...attachments] } : {}
    const stored = await storeBody(id, body, this.#options.blobs)
    return 'blob' in stored ? { ...stored, ...more, encode } : { body, ...more, encode }
  }

  /** The body of a request with copies of its attachments, whose names go to `copies` as they are made. */
  async #copyAttachments(request: StoredRequest, copies: string[]): Promise<unknown> {
    const body = await fetchBody(request, this.#options.blobs)
    const { attachments = [] } = request
    if (attachments.length === 0) return body
    const id = newJobId()
    const names = new Map(attachments.map((blob) => [blob, newAttachmentKey(id)]))
    for (const [from, to] of names) {
      copies.push(to)
      await this.#options.blobs.copy(from, to)
    }
    return JSON.parse(JSON.stringify(body), (_key, value) => names.get(value) ?? value)
  }

  /** An answer that got lost leaves the outcome unknown: the same call again gives what the first one did. */
  async #createSurely(id: string, spec: NewDurableJob, request: StoredRequest, key?: IdempotencyKey): Promise<Created> {
    const job = {
      id,
      tenant: spec.tenant,
      pool: spec.pool,
      kind: spec.kind,
      endpoint: spec.endpoint,
      model: spec.model,
      request,
      deadlineInMs: spec.deadlineInMs,
      retentionMs: this.#options.retentionMs,
      priority: spec.priority ?? 'normal',
      stream: spec.stream,
      metadata: spec.metadata ?? {},
      requestId: spec.encode.request_id,
      ...(spec.startInMs !== undefined && { startInMs: spec.startInMs }),
      ...(spec.runAtMs !== undefined && { runAtMs: spec.runAtMs }),
      ...(spec.parentId !== undefined && { parentId: spec.parentId }),
      ...(spec.webhook && { webhook: spec.webhook }),
      ...(spec.traceparent !== undefined && { traceparent: spec.traceparent }),
    }
    try {
      return await this.store.create(job, key)
    } catch (error) {
      if (isSurelyUndone(error) || !this.store.isReachable) throw error
      const created = await this.store.create(job, key)
      const isOurs = created.outcome === 'exists' && created.job.id === id
      return isOurs ? { outcome: 'created', job: created.job, events: [] } : created
    }
  }
}

/** Whether a job that could not be created is surely not there. */
export function isSurelyUndone(error: unknown): boolean {
  const { code, isUndone } = ServiceError.from(error)
  // The store says `overloaded` when an answer is lost; with any other error it has answered.
  return isUndone || code !== 'overloaded'
}

/** The same job once more, with as much time. */
function repeatOf(job: DurableJob, body: unknown, encode: EncodeContext): NewDurableJob {
  const { webhook_url: url, webhook_events: events, traceparent } = job
  return {
    ...job,
    body,
    encode,
    deadlineInMs: job.deadline_ms - job.created_at_ms,
    parentId: job.id,
    webhook: url === null ? undefined : { url, events },
    traceparent: traceparent ?? undefined,
  }
}

function pastOf(state: DurableJob['state']): string {
  return state === 'completed' || state === 'failed' || state === 'expired' ? state : 'ended'
}
