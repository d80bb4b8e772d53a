/*
 * Durable jobs, for submitters and subscribers: create, read, cancel, erase, run again and follow.
 *
 * The store alone decides the state of a durable job (docs/internals/design.md, Owners), so every returned state or event is already
 * committed.
 *
 * Steps of a creation:
 * 1. The number of jobs is checked, then budget is reserved (gates b and 5 of the list in `shared/capacity/capacity.ts`). A replay reserves
 *    nothing, because a replay makes no external calls.
 * 2. Stored bytes are reserved, and a body over 64 KiB is written to a blob (gate c).
 * 3. The row is committed with its first event, so that the event exists before any subscriber can follow the job.
 * 4. The queue record is published. If the broker is unreachable, then the scheduler publishes the record later.
 *
 * The invariant: a refused job leaves no data behind. If the outcome of a creation is unknown, then the blob sweep deletes orphaned blobs.
 * A creation whose response was lost is repeated with the same id, so it returns the job of the first creation.
 */

import type { DurableJob, WebhookDelivery } from '#schemas/durable-job.ts'
import type { EncodeContext, PoolName, SharedHistory, StoredRequest } from '#schemas/job.ts'
import type { Blobs } from '#shared/blobs/blobs.ts'
import type { Broker } from '#shared/broker/broker.ts'
import type { Holding, StoredQuota } from '#shared/capacity/byte-budgets.ts'
import type { JobAdmission } from '#shared/capacity/capacity.ts'
import { type JobBounds, JobQuota } from '#shared/capacity/job-quota.ts'
import { copyBody, storeRequest } from '#shared/jobs/body.ts'
import { ownerOf } from '#shared/jobs/owner.ts'
import type { Presence } from '#shared/jobs/presence.ts'
import { readStored } from '#shared/jobs/records.ts'
import { parseSoon } from '#shared/json/read.ts'
import { ServiceError } from '#shared/lib/error.ts'
import type { Log } from '#shared/log/log.ts'
import { type CancelHow, type DoneStep, newJobId, ownerOfBlob } from '#shared/store/jobs.ts'
import type { QueuedPosition } from '#shared/store/records.ts'
import type { Created, IdempotencyKey, ListQuery, NewJob, Scope, Store, StoreView } from '#shared/store/store.ts'
import { tracing } from '#shared/telemetry/tracing.ts'
import { cancelsIn, Dispatcher, Family, listSteps, type StepView } from './dispatch.ts'
import { follow, LiveEvents, pastOf, TERMINAL, type WaitOptions, waitForEnd } from './follow.ts'
import { dropBlobs, eraseJob, releaseHistory, type SharedBody, shareHistory } from './history.ts'

export interface NewDurableJob extends Omit<NewJob, 'id' | 'request' | 'requestId' | 'retentionMs' | 'blobBytes'> {
  readonly body: unknown
  /**
   * Keys of blobs to which the body refers. All keys contain one job id ({@link newAttachmentKey}), which becomes the id of the new job. The new job
   * then owns the blobs.
   */
  readonly attachments?: readonly string[] | undefined
  /** Stored segments that contain the beginning of the prompt (see `history.ts`). */
  readonly history?: SharedHistory | undefined
  readonly bodyBytes?: number | undefined
  readonly attachmentBytes?: number | undefined
  readonly stream: boolean
  /** Id of the job that is replayed. The results recorded for that job replace all external calls. */
  readonly replayOf?: string | undefined
  readonly encode: Omit<EncodeContext, 'call_id' | 'created_at'>
}

interface DurableJobsOptions {
  readonly store: StoreView
  readonly broker: Broker
  readonly blobs: Blobs
  readonly log: Log
  readonly presence: () => Presence
  readonly retentionMs: number
  readonly bounds: JobBounds
  readonly storage?: StoredQuota
  /**
   * Reserves budget for a job, or throws a ServiceError if the job is refused. Returns undefined if no limit applies to the job. Default:
   * no job is limited.
   */
  readonly admit?: (spec: NewDurableJob) => Promise<JobAdmission> | undefined
  readonly callsWaiting?: (pool: PoolName) => number
}

export class DurableJobs {
  readonly positions: Positions
  readonly #store: Store
  readonly #options: DurableJobsOptions
  readonly #dispatcher: Dispatcher
  readonly #family: Family
  readonly #live: LiveEvents
  readonly #quota: JobQuota

  private constructor(options: DurableJobsOptions, live: LiveEvents) {
    this.#store = ownerOf(options.store)
    this.#options = options
    this.#live = live
    this.#quota = new JobQuota(options.store, options.bounds)
    this.positions = new Positions(options.store, options.callsWaiting ?? (() => 0))
    this.#dispatcher = new Dispatcher(options.broker, options.log, options.presence)
    const { log, presence } = options
    const notifyOwner = (job: DurableJob) => cancelsIn(presence())(job)
    this.#family = new Family({ store: this.#store, dispatcher: this.#dispatcher, log, notifyOwner })
  }

  static async open(options: DurableJobsOptions): Promise<DurableJobs> {
    return new DurableJobs(options, await LiveEvents.open(options.broker, options.log))
  }

  /**
   * @throws ServiceError `overloaded` if the store is unreachable or too many jobs are in progress. `rate_limit_exceeded` if the tenant has too many
   * jobs
   */
  async create(spec: NewDurableJob, key?: IdempotencyKey): Promise<Created> {
    return await this.#quota.enter(spec, () => this.#admit(spec, key))
  }

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
    const rowChars = (request.blob === undefined ? JSON.stringify(request).length : 0) + (spec.input?.length ?? 0)
    const create = async () => {
      await holding?.grow(rowChars)
      return await this.#createWithRetry(id, { ...spec, blobBytes }, request, key)
    }
    const created = await this.#dropBlobsOnError(own, create, drop)
    if (created.outcome !== 'created') return created
    holding?.stored()
    void this.positions.added(created.job)
    if (created.job.state === 'queued') void this.#dispatcher.publishJob(created.job, request)
    return created
  }

  async get(scope: Scope, id: string): Promise<DurableJob> {
    const job = await this.#store.find(scope, id)
    if (!job || job.erased_at_ms !== null) throw new ServiceError('job_not_found', `No job with the id '${id}'.`)
    return job
  }

  async has(scope: Scope, id: string): Promise<boolean> {
    return (await this.#store.find(scope, id)) !== undefined
  }

  /** True if the job existed and its retention has ended. After the purge has removed the row, the result is false. */
  async isPast(scope: Scope, id: string): Promise<boolean> {
    return await this.#store.isPast(scope, id)
  }

  async deliveriesOf({ id, webhook_url }: DurableJob): Promise<WebhookDelivery[]> {
    return webhook_url === null ? [] : await this.#store.listDeliveries(id)
  }

  list(scope: Scope, query: ListQuery): Promise<{ jobs: DurableJob[]; hasMore: boolean }> {
    return this.#store.list(scope, query)
  }

  async result(scope: Scope, id: string): Promise<unknown> {
    const text = await this.resultText(scope, id)
    return text === null ? null : await parseSoon(text)
  }

  async resultText(scope: Scope, id: string): Promise<string | null> {
    return await this.#store.findResultText(scope, id)
  }

  /**
   * Cancels a job: at once if it is queued, otherwise when its worker receives the cancel. A job that can write a partial result does so first
   * (docs/internals/design.md, Composed jobs).
   *
   * @param how `final`: no partial result. `once`: a repeated cancel does not end the grace period for the partial result
   * @throws ServiceError `job_not_found`, `job_already_finished`
   */
  async cancel(scope: Scope, id: string, how?: CancelHow): Promise<DurableJob> {
    const moved = await this.#store.cancel(scope, id, how)
    if (!moved) {
      const job = await this.get(scope, id)
      if (job.state === 'cancelled' || !TERMINAL.has(job.state)) return job
      throw new ServiceError(
        'job_already_finished',
        `The job has already ${pastOf(job.state)} and cannot be cancelled.`,
      )
    }
    this.#dispatcher.publishMoved(moved)
    // The cancel is already in the store, and the worker of the job reads it with its next lease renewal. The control record only lets the worker
    // stop earlier.
    if (moved.job.state === 'in_progress') cancelsIn(this.#options.presence())(moved.job)
    if (moved.job.state === 'queued') void this.#dispatcher.publishJob(moved.job, moved.request)
    await this.#family.onMoved(moved.job)
    return moved.job
  }

  async childrenOf({ id, tenant, children }: DurableJob): Promise<DurableJob[]> {
    return children === 0 ? [] : await this.#store.listChildren(tenant, id)
  }

  async stepsOf({ id, tenant, steps }: DurableJob): Promise<DoneStep[]> {
    return steps === 0 ? [] : await this.#store.listSteps(tenant, id)
  }

  listStepViews(job: DurableJob, after: number, limit: number): Promise<{ steps: StepView[]; hasMore: boolean }> {
    return listSteps(this.#options, job, after, limit)
  }

  /**
   * Erases a finished job with its children and steps. Deeper descendants are removed by the next purges.
   *
   * @throws ServiceError `job_not_found`; `job_not_finished` if the job, its parent or a child has not ended
   */
  async erase(scope: Scope, id: string): Promise<void> {
    await eraseJob({ ...this.#options, store: this.#store }, scope, await this.get(scope, id))
  }

  /**
   * Redrives a failed, cancelled or expired job, which runs again as a new job. The body is copied, so that each of the two jobs can be erased alone.
   *
   * @throws ServiceError `job_not_found`, `job_not_finished`, `job_already_finished` if the job completed, `overloaded`
   */
  async redrive(scope: Scope, id: string, key?: IdempotencyKey): Promise<Created> {
    const job = await this.get(scope, id)
    requireEnded(job, 'redriven')
    if (job.state === 'completed') {
      throw new ServiceError(
        'job_already_finished',
        'The job has completed. Only a failed, cancelled or expired job can run again.',
      )
    }
    return await this.#rerun(scope, job, {}, key)
  }

  /**
   * Replays a composed job: runs it again as a new job, with recorded results instead of external calls. The replay fails if it requests something
   * that was not recorded.
   *
   * @throws ServiceError `job_not_found`, `job_not_finished`, `invalid_request` for a job without recorded steps, `overloaded`
   */
  async replay(scope: Scope, id: string, key?: IdempotencyKey): Promise<Created> {
    const job = await this.get(scope, id)
    requireEnded(job, 'replayed')
    if (job.steps === 0) throw new ServiceError('invalid_request', 'The job has no recorded steps to replay.')
    return await this.#rerun(scope, job, { replayOf: id, parentId: undefined, webhook: undefined }, key)
  }

  async #rerun(
    scope: Scope,
    job: DurableJob,
    more: Partial<NewDurableJob>,
    key: IdempotencyKey | undefined,
  ): Promise<Created> {
    const { id } = job
    const content = await this.#store.findInput(scope, id)
    if (!content) throw new ServiceError('job_not_found', `No job with the id '${id}'.`)
    const request = readStored(content.request)
    await this.#quota.require(job)
    const copies: string[] = []
    return await this.#dropBlobsOnError(copies, async () => {
      using holding = this.#options.storage?.open(job.tenant)
      const body = await copyBody(request, holding?.over(this.#options.blobs) ?? this.#options.blobs, copies)
      const attachmentBytes = holding?.bytes
      const input = content.input === null ? undefined : JSON.stringify(content.input)
      const spec = { ...repeatOf(job, body, request.encode), input, attachments: copies, attachmentBytes, ...more }
      // A replay of a replay replays the original job, because only the original job has child jobs.
      return await this.create({ ...spec, replayOf: request.replay_of ?? more.replayOf }, key)
    })
  }

  follow(scope: Scope, id: string, after: number, signal: AbortSignal, pollMsMax?: number) {
    return follow({ live: this.#live, store: this.#store, scope, id, after, signal, pollMsMax })
  }

  /**
   * Waits until a job has ended or `signal` aborts, and returns the job.
   *
   * @param pollMsMax Maximum time in ms without events after which the store is read. Default: 5,000
   * @throws ServiceError `job_not_found` if the project has no such job
   */
  async waitForEnd(scope: Scope, id: string, signal: AbortSignal, pollMsMax?: number): Promise<DurableJob> {
    return (await this.waitForResult(scope, id, signal, { pollMsMax })).job
  }

  async waitForResult(scope: Scope, id: string, signal: AbortSignal, more: Partial<WaitOptions> = {}) {
    const awaited = await waitForEnd({ ...more, live: this.#live, id, find: () => this.get(scope, id), signal })
    if (TERMINAL.has(awaited.job.state)) this.#dispatcher.ended(awaited.job)
    return awaited
  }

  async close(): Promise<void> {
    await this.#live.close()
  }

  async #dropBlobsOnError(
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
      if (isDefinitelyUndone(error)) await drop()
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

  async #createWithRetry(
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
      if (isDefinitelyUndone(error) || !this.#store.isReachable) throw error
      const created = await this.#store.create(job, key)
      const isOurs = created.outcome === 'exists' && created.job.id === id
      return isOurs ? { outcome: 'created', job: created.job, events: [] } : created
    }
  }
}

/**
 * Additional retention in ms of the stored segments of a conversation (`history.ts`), compared with the jobs that refer to them. The retention of a
 * job begins at its end, which may be later than its deadline. Without this margin, a segment could expire before its job.
 */
const HISTORY_GRACE_MS = 3_600_000

function requireEnded({ state }: DurableJob, done: string): void {
  if (TERMINAL.has(state)) return
  throw new ServiceError('job_not_finished', `The job is ${state}. Only a job that has ended can be ${done}.`)
}

export function isDefinitelyUndone(error: unknown): boolean {
  const { code, isUndone } = ServiceError.from(error)
  // The code `overloaded` may mean that the response was lost, so the job may exist. Any other code proves that the store has answered and
  // created no job.
  return isUndone || code !== 'overloaded'
}

function repeatOf(job: DurableJob, body: unknown, encode: EncodeContext) {
  const { webhook_url: url, webhook_events: events, traceparent, created_at_ms, deadline_ms, partial_ms } = job
  const webhook = url === null ? undefined : { url, events }
  const deadlineInMs = deadline_ms - created_at_ms
  // The repeated job gets a trace of its own, with a link to the trace of the first job. Days may lie between the two
  // jobs, so one common trace would be too long.
  const attributes = { 'sluice.repeated_job.id': job.id, 'sluice.project': job.tenant }
  const repeat = tracing.tracer?.start({
    name: 'repeat job',
    kind: 'producer',
    links: [traceparent ?? undefined],
    attributes,
  })
  repeat?.end()
  const more = {
    webhook,
    traceparent: repeat?.traceparent ?? traceparent ?? undefined,
    partialMs: partial_ms ?? undefined,
  }
  return { ...job, body, encode, deadlineInMs, parentId: job.id, ...more }
}

/**
 * Minimum lifetime of cached queue positions, in ms. The value is short, because the jobs of a short queue start soon.
 */
const CACHE_TTL_MS_MIN = 100
/** A cached read stays valid for this multiple of its own duration, because reading a long queue is slow. */
const CACHE_TTL_FACTOR = 50
const CACHED_MAX = 1_000

interface CachedRead<T> {
  readonly value: Promise<T>
  freshUntilMs: number
}

/**
 * Queue positions of waiting durable jobs. The position is the number of jobs of the same kind, model and priority that start earlier, including
 * attached calls that wait for the pool.
 *
 * For each other tenant, only the jobs that the round robin starts earlier are counted. A long backlog of one tenant therefore does not change the
 * positions of others (docs/internals/design.md, Fairness).
 *
 * The position is an upper bound, because only the workers have the current position of the round robin.
 */
export class Positions {
  readonly #store: StoreView
  readonly #callsWaiting: (pool: PoolName) => number
  readonly #tenants = new Map<string, CachedRead<Map<string, number>>>()
  readonly #places = new Map<string, CachedRead<QueuedPosition[]>>()

  constructor(store: StoreView, callsWaiting: (pool: PoolName) => number) {
    this.#store = store
    this.#callsWaiting = callsWaiting
  }

  async of(job: DurableJob): Promise<number | null> {
    if (job.state !== 'queued') return null
    try {
      const [tenants, places] = await Promise.all([
        cachedRead(this.#tenants, queueOf(job), async () => {
          const queued = await this.#store.tenants.queued(job)
          return new Map(queued.map(({ tenant, count }) => [tenant, count]))
        }),
        cachedRead(this.#places, `${queueOf(job)} ${job.tenant}`, () => this.#store.tenants.positions(job, job.tenant)),
      ])
      return this.#count(job, tenants, places)
    } catch {
      // A request for a job must not fail because its position cannot be read, so the position is reported as unknown.
      return null
    }
  }

  async added(job: DurableJob): Promise<void> {
    const tenants = await this.#tenants.get(queueOf(job))?.value.catch(() => undefined)
    tenants?.set(job.tenant, (tenants.get(job.tenant) ?? 0) + 1)
    const places = await this.#places.get(`${queueOf(job)} ${job.tenant}`)?.value.catch(() => undefined)
    if (!places) return
    // The cached list of the waiting jobs of one tenant is sorted by id. Ids begin with their creation time, so the new job nearly always becomes
    // the last entry.
    const at = indexOf(job.id, places)
    const after = places.slice(at).map(({ id, nth }) => ({ id, nth: nth + 1 }))
    places.splice(at, after.length, { id: job.id, nth: (places[at - 1]?.nth ?? 0) + 1 }, ...after)
  }

  #count(job: DurableJob, tenants: ReadonlyMap<string, number>, places: readonly QueuedPosition[]): number {
    // Jobs of one tenant start in the order of their ids, which begin with the creation time. The position of the previous id is therefore the
    // number of the tenant's jobs that start earlier.
    const own = places[indexOf(job.id, places) - 1]?.nth ?? 0
    let before = own
    // Round robin: until this job starts, each other tenant starts at most one job more than this tenant.
    for (const [tenant, count] of tenants) if (tenant !== job.tenant) before += Math.min(count, own + 1)
    return before + Math.min(this.#callsWaiting(job.pool), before + 1)
  }
}

function indexOf(id: string, places: readonly QueuedPosition[]): number {
  let [from, to] = [0, places.length]
  while (from < to) {
    const middle = (from + to) >>> 1
    if ((places[middle]?.id ?? '') < id) from = middle + 1
    else to = middle
  }
  return from
}

function queueOf({ pool, kind, model, priority }: DurableJob): string {
  return JSON.stringify([pool, kind, model, priority])
}

async function cachedRead<T>(all: Map<string, CachedRead<T>>, key: string, read: () => Promise<T>): Promise<T> {
  const known = all.get(key)
  const now = Date.now()
  if (known && now < known.freshUntilMs) return await known.value
  if (all.size >= CACHED_MAX) all.clear()
  // A read in progress is shared by all callers until it has ended.
  const entry = { value: read(), freshUntilMs: Number.POSITIVE_INFINITY }
  all.set(key, entry)
  try {
    return await entry.value
  } finally {
    const tookMs = Date.now() - now
    entry.freshUntilMs = now + Math.max(CACHE_TTL_MS_MIN, CACHE_TTL_FACTOR * tookMs)
  }
}
