import type { DurableJob, WebhookDelivery } from '#schemas/durable-job.ts'
import type { EncodeContext, PoolName, SharedHistory, StoredRequest } from '#schemas/job.ts'
import type { Blobs } from '#shared/blobs/blobs.ts'
import type { Broker } from '#shared/broker/broker.ts'
import { ServiceError } from '#shared/error.ts'
import { copyBody, storeRequest } from '#shared/jobs/body.ts'
import { ownerOf } from '#shared/jobs/owner.ts'
import type { Presence } from '#shared/jobs/presence.ts'
import { readStored } from '#shared/jobs/records.ts'
import type { Holding, StoredQuota } from '#shared/limits/stored-quota.ts'
import type { Log } from '#shared/log/log.ts'
import type { CancelHow } from '#shared/store/ends.ts'
import type { DoneStep } from '#shared/store/family.ts'
import { newJobId, ownerOfBlob } from '#shared/store/job-id.ts'
import type { Created, IdempotencyKey, ListQuery, NewJob, Scope, Store, StoreView } from '#shared/store/store.ts'
import { dropBlobs } from './blobs.ts'
import { Dispatcher } from './dispatch.ts'
import { eraseJob } from './erase.ts'
import { cancelsIn, Family } from './family.ts'
import { follow, LiveEvents, pastOf, TERMINAL } from './follow.ts'
import { releaseHistory, type SharedBody, shareHistory } from './history.ts'
import { type JobBounds, JobQuota } from './job-quota.ts'
import { Positions } from './positions.ts'
import { repeatOf } from './repeat.ts'
import { listSteps, type ShownStep } from './steps.ts'
import { type WaitOptions, waitForEnd } from './wait.ts'

/** A durable job as its caller asks for it. */
export interface NewDurableJob extends Omit<NewJob, 'id' | 'request' | 'requestId' | 'retentionMs' | 'blobBytes'> {
  /** In the internal form of its kind. */
  readonly body: unknown
  /** Blobs the body names, under {@link newAttachmentKey keys} of one job id, which becomes that of this job. They are its own once it is created. */
  readonly attachments?: readonly string[] | undefined
  /** Segments that have the beginning of the prompt already (see `history.ts`). */
  readonly history?: SharedHistory | undefined
  /** Bytes that the body will take, about, where that is known. */
  readonly bodyBytes?: number | undefined
  /** Bytes of the attachments, where nothing else counts them. */
  readonly attachmentBytes?: number | undefined
  readonly stream: boolean
  /** The job whose record answers in the place of everything outside. */
  readonly replayOf?: string | undefined
  readonly encode: Omit<EncodeContext, 'call_id' | 'created_at'>
}

/** What a job holds of its project's budgets and limits until the store holds it. One of its methods is called, once. */
export interface JobAdmission {
  /** What it may cost, in billionths of a US dollar. */
  readonly nanos: number
  handOver(job: Pick<DurableJob, 'id' | 'tenant'>): void
  release(): void
}

/** What {@link DurableJobs.open} needs. */
export interface DurableJobsOptions {
  readonly store: StoreView
  readonly broker: Broker
  readonly blobs: Blobs
  readonly log: Log
  readonly presence: () => Presence
  readonly retentionMs: number
  readonly bounds: JobBounds
  /** Quota of stored bytes per project; default: none. */
  readonly storage?: StoredQuota
  /** Admits a job, or throws why not; undefined: nothing bounds it. Default: nothing bounds any. */
  readonly admit?: (spec: NewDurableJob) => Promise<JobAdmission> | undefined
  /** Calls that wait for a pool; default: none is known of. */
  readonly callsWaiting?: (pool: PoolName) => number
}

/**
 * Durable jobs, seen by those who submit and follow them. Their arbiter is the store (docs/design.md, Arbiters):
 * whatever is said here was committed before.
 */
export class DurableJobs {
  readonly positions: Positions
  readonly #store: Store
  readonly #options: DurableJobsOptions
  readonly #dispatcher: Dispatcher
  readonly #family: Family
  readonly #live: LiveEvents
  readonly #room: JobQuota

  private constructor(options: DurableJobsOptions, live: LiveEvents) {
    this.#store = ownerOf(options.store)
    this.#options = options
    this.#live = live
    this.#room = new JobQuota(options.store, options.bounds)
    this.positions = new Positions(options.store, options.callsWaiting ?? (() => 0))
    this.#dispatcher = new Dispatcher(options.broker, options.log, options.presence)
    const { log, presence } = options
    const notifyOwner = (job: DurableJob) => cancelsIn(presence())(job)
    this.#family = new Family({ store: this.#store, dispatcher: this.#dispatcher, log, notifyOwner })
  }

  /** Starts to hear of events. */
  static async open(options: DurableJobsOptions): Promise<DurableJobs> {
    return new DurableJobs(options, await LiveEvents.open(options.broker, options.log))
  }

  /**
   * Accepts a job: once this resolves it is on disk. Its record goes out right after, outside the promise; should the broker
   * not take it, the scheduler publishes it. Its first event is in the store before anybody can follow it.
   *
   * Nothing is kept of a job that is refused; what may have been accepted all the same is left to the sweep of blobs.
   *
   * @throws ServiceError `overloaded` when the store is down or too many jobs are under way; `rate_limit_exceeded` when too many
   *   of the tenant are
   */
  async create(spec: NewDurableJob, key?: IdempotencyKey): Promise<Created> {
    return await this.#room.enter(spec, () => this.#admit(spec, key))
  }

  /** A replay uses nothing outside. */
  async #admit(spec: NewDurableJob, key: IdempotencyKey | undefined): Promise<Created> {
    const admission = spec.replayOf === undefined ? await this.#options.admit?.(spec) : undefined
    if (!admission) return await this.#create(spec, key)
    try {
      const created = await this.#create({ ...spec, reservedNanos: admission.nanos }, key)
      if (created.outcome === 'created') admission.handOver(created.job)
      else admission.release()
      return created
    } catch (error) {
      admission.release()
      throw error
    }
  }

  async #create(spec: NewDurableJob, key: IdempotencyKey | undefined): Promise<Created> {
    const [attachment = ''] = spec.attachments ?? []
    const id = ownerOfBlob(attachment) ?? newJobId()
    const encode = { ...spec.encode, call_id: id.slice('job_'.length), created_at: Math.floor(Date.now() / 1_000) }
    using holding = this.#options.storage?.open(spec.tenant)
    await holding?.expect(spec.bodyBytes ?? 0)
    const { body, history } = await this.#shareHistory(spec, holding)
    const blobs = holding?.over(this.#options.blobs) ?? this.#options.blobs
    const drop = () => releaseHistory({ files: this.#store.files, blobs }, spec.tenant, history)
    const stored = await storeRequest(id, { ...spec, body }, encode, blobs).catch(async (error: unknown) => {
      await drop()
      throw error
    })
    const request: StoredRequest = {
      ...stored,
      ...(history && { history }),
      ...(spec.replayOf !== undefined && { replay_of: spec.replayOf }),
    }
    const own = request.blob === undefined ? [] : [request.blob]
    const blobBytes = (holding?.bytes ?? 0) + (spec.attachmentBytes ?? 0)
    if (request.blob === undefined) await holding?.grow(JSON.stringify(request).length)
    const created = await this.#orDrop(own, () => this.#createSurely(id, { ...spec, blobBytes }, request, key), drop)
    if (created.outcome !== 'created') return created
    holding?.stored()
    void this.positions.added(created.job)
    if (created.job.state === 'queued') void this.#dispatcher.publishJob(created.job, request)
    return created
  }

  /** A job. @throws ServiceError `job_not_found`, also for those of others */
  async get(scope: Scope, id: string): Promise<DurableJob> {
    const job = await this.#store.find(scope, id)
    if (!job || job.erased_at_ms !== null) throw new ServiceError('job_not_found', `No job with the id '${id}'.`)
    return job
  }

  /** Whether there is such a job, erased or not. */
  async has(scope: Scope, id: string): Promise<boolean> {
    return (await this.#store.find(scope, id)) !== undefined
  }

  /** Whether a job was there and is kept no longer, as long as that is known. */
  async isPast(scope: Scope, id: string): Promise<boolean> {
    return await this.#store.isPast(scope, id)
  }

  /** What became of the messages of a job's webhook. */
  async deliveriesOf({ id, webhook_url }: DurableJob): Promise<WebhookDelivery[]> {
    return webhook_url === null ? [] : await this.#store.listDeliveries(id)
  }

  /** A page of jobs, newest first unless asked otherwise. */
  list(scope: Scope, query: ListQuery): Promise<{ jobs: DurableJob[]; hasMore: boolean }> {
    return this.#store.list(scope, query)
  }

  /** What a completed job's caller gets; null before. */
  async result(scope: Scope, id: string): Promise<unknown> {
    const text = await this.resultText(scope, id)
    return text === null ? null : JSON.parse(text)
  }

  /** The same as its JSON text. */
  async resultText(scope: Scope, id: string): Promise<string | null> {
    return await this.#store.findResultText(scope, id)
  }

  /**
   * Asks that a job stops: at once when it waits, else as soon as its worker has heard. One that may write what there is does
   * so first (docs/design.md, Families).
   *
   * @param how `final`: it writes nothing any more; `once`: no end to its writing if somebody has asked before.
   * @throws ServiceError `job_not_found`, `job_already_finished`
   */
  async cancel(scope: Scope, id: string, how?: CancelHow): Promise<DurableJob> {
    const moved = await this.#store.cancel(scope, id, how)
    if (!moved) {
      const job = await this.get(scope, id)
      if (job.state === 'cancelled' || !TERMINAL.has(job.state)) return job
      throw new ServiceError('job_already_finished', `The job has already ${pastOf(job.state)}.`)
    }
    this.#dispatcher.publishMoved(moved)
    // The flag in the store is the truth, and its owner reads it with every renewal; this is quicker.
    if (moved.job.state === 'in_progress') cancelsIn(this.#options.presence())(moved.job)
    if (moved.job.state === 'queued') void this.#dispatcher.publishJob(moved.job, moved.request)
    await this.#family.onMoved(moved.job)
    return moved.job
  }

  /** The children of a job, in the order of their ids. */
  async childrenOf({ id, tenant, children }: DurableJob): Promise<DurableJob[]> {
    return children === 0 ? [] : await this.#store.listChildren(tenant, id)
  }

  /** The steps that a job has done. */
  async stepsOf({ id, tenant, steps }: DurableJob): Promise<DoneStep[]> {
    return steps === 0 ? [] : await this.#store.listSteps(tenant, id)
  }

  /** Some of them with what they were asked for and gave (see {@link listSteps}). */
  showSteps(job: DurableJob, after: number, limit: number): Promise<{ steps: ShownStep[]; hasMore: boolean }> {
    return listSteps(this.#options, job, after, limit)
  }

  /**
   * Forgets a finished job with its children and its steps. Of children's children nothing is left after the next purges.
   *
   * @throws ServiceError `job_not_found`; `job_not_finished`, also while a child of it still runs, or its parent does
   */
  async erase(scope: Scope, id: string): Promise<void> {
    await eraseJob({ ...this.#options, store: this.#store }, scope, await this.get(scope, id))
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
    return await this.#again(scope, job, {}, key)
  }

  /**
   * Runs a composed job again from its record alone, as a new job: nothing outside is asked for. It fails where it asks for what
   * the record does not have.
   *
   * @throws ServiceError `job_not_found`, `job_not_finished`, `invalid_request` for a job without a record, `overloaded`
   */
  async replay(scope: Scope, id: string, key?: IdempotencyKey): Promise<Created> {
    const job = await this.get(scope, id)
    if (!TERMINAL.has(job.state)) throw new ServiceError('job_not_finished', `The job is ${job.state}.`)
    if (job.steps === 0) throw new ServiceError('invalid_request', 'The job has done no steps that could be replayed.')
    return await this.#again(scope, job, { replayOf: id, parentId: undefined, webhook: undefined }, key)
  }

  async #again(
    scope: Scope,
    job: DurableJob,
    more: Partial<NewDurableJob>,
    key: IdempotencyKey | undefined,
  ): Promise<Created> {
    const { id } = job
    const content = await this.#store.findContent(scope, id)
    if (!content) throw new ServiceError('job_not_found', `No job with the id '${id}'.`)
    const request = readStored(content.request)
    await this.#room.require(job)
    const copies: string[] = []
    return await this.#orDrop(copies, async () => {
      using holding = this.#options.storage?.open(job.tenant)
      const body = await copyBody(request, holding?.over(this.#options.blobs) ?? this.#options.blobs, copies)
      const attachmentBytes = holding?.bytes
      const spec = { ...repeatOf(job, body, request.encode), attachments: copies, attachmentBytes, ...more }
      // What a replay had recorded has no children: the one before it has.
      return await this.create({ ...spec, replayOf: request.replay_of ?? more.replayOf }, key)
    })
  }

  /** Follows a job's events (see {@link follow}). */
  follow(scope: Scope, id: string, after: number, signal: AbortSignal, pollMsMax?: number) {
    return follow({ live: this.#live, store: this.#store, scope, id, after, signal, pollMsMax })
  }

  /**
   * Waits until a job has ended, or `signal` aborts. Gives the job as it is then.
   *
   * @param pollMsMax See {@link follow}.
   * @throws ServiceError `job_not_found`
   */
  async waitForEnd(scope: Scope, id: string, signal: AbortSignal, pollMsMax?: number): Promise<DurableJob> {
    return (await this.waitForResult(scope, id, signal, { pollMsMax })).job
  }

  /** The same, with the result of a job that has completed where that came along (see {@link waitForEnd}). */
  async waitForResult(scope: Scope, id: string, signal: AbortSignal, more: Partial<WaitOptions> = {}) {
    const awaited = await waitForEnd({ ...more, live: this.#live, id, find: () => this.get(scope, id), signal })
    if (TERMINAL.has(awaited.job.state)) this.#dispatcher.ended(awaited.job)
    return awaited
  }

  async close(): Promise<void> {
    await this.#live.close()
  }

  /** Drops the blobs of a job that is surely not made. What is made, or may be, holds them. */
  async #orDrop(
    blobs: readonly string[],
    create: () => Promise<Created>,
    more: () => Promise<void> = async () => {},
  ): Promise<Created> {
    const drop = async () => {
      await dropBlobs(this.#options, blobs)
      await more()
    }
    try {
      const created = await create()
      if (created.outcome !== 'created') await drop()
      return created
    } catch (error) {
      if (isSurelyUndone(error)) await drop()
      throw error
    }
  }

  async #shareHistory(spec: NewDurableJob, holding: Holding | undefined): Promise<SharedBody> {
    const { body, history, tenant, deadlineInMs, runAtMs = 0 } = spec
    if (!history) return { body, history: undefined }
    const waitMs = Math.max(0, runAtMs - Date.now())
    const keepMs = Math.ceil(waitMs + deadlineInMs + this.#options.retentionMs + HISTORY_GRACE_MS)
    const { files } = this.#store
    return await shareHistory({ files, blobs: this.#options.blobs, holding, tenant, keepMs }, body, history)
  }

  /** An answer that got lost leaves the outcome unknown: the same call again gives what the first one did. */
  async #createSurely(
    id: string,
    spec: NewDurableJob & { readonly blobBytes: number },
    request: StoredRequest,
    key?: IdempotencyKey,
  ): Promise<Created> {
    const { retentionMs } = this.#options
    const job = { ...spec, id, request, requestId: request.encode.request_id, retentionMs }
    try {
      return await this.#store.create(job, key)
    } catch (error) {
      if (isSurelyUndone(error) || !this.#store.isReachable) throw error
      const created = await this.#store.create(job, key)
      const isOurs = created.outcome === 'exists' && created.job.id === id
      return isOurs ? { outcome: 'created', job: created.job, events: [] } : created
    }
  }
}

/** How much longer segments are kept than jobs that name them: what an end may take beyond the deadline. */
const HISTORY_GRACE_MS = 3_600_000

/** Whether a job that could not be created is surely not there. */
export function isSurelyUndone(error: unknown): boolean {
  const { code, isUndone } = ServiceError.from(error)
  // The store says `overloaded` when an answer is lost; with any other error it has answered.
  return isUndone || code !== 'overloaded'
}
