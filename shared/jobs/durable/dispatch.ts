/*
 * Publishes committed state transitions of durable jobs: queued jobs for workers, events for subscribers, and ends for parents and children.
 *
 * The problem: one record per waiting job would fill the queue with a backlog, and attached calls would wait behind it.
 *
 * How it works:
 * 1. The worker that receives a record needs a free slot for the job. `QueueNotifier` therefore permits at most as many records as there
 *    are free slots.
 * 2. All further jobs are announced on the control channel, many per record. Workers claim them from the store as slots become free.
 * 3. Events are published with the end and the result of the job, if these are small, so that waiting callers need not read the store.
 * 4. Children of an ended or cancelled job are cancelled at all depths. A parent that waits for no other child is woken (`Family`).
 *
 * Example: with 10 free slots and 1,000 new jobs, the dispatcher publishes 10 records and one announcement.
 *
 * The invariant: correctness never depends on a publication. The scheduler republishes jobs whose records were lost. An ended job stays unsettled in
 * the store until its children were cancelled and its parent was woken, so the scheduler can complete these steps. Subscribers read lost events from
 * the store.
 */

import type { DurableJob } from '#schemas/durable-job.ts'
import type { ControlRecord, DurableEnd, EventsRecord } from '#schemas/event.ts'
import type { JobEnvelope, PoolName, StoredRequest } from '#schemas/job.ts'
import type { Blobs } from '#shared/blobs/blobs.ts'
import type { Broker } from '#shared/broker/broker.ts'
import type { Presence } from '#shared/jobs/presence.ts'
import { EVENTS, eventPartition, jobsTopic, readStored } from '#shared/jobs/records.ts'
import { readJson } from '#shared/json/read.ts'
import { isSmall } from '#shared/json/write.ts'
import { sizeOf } from '#shared/lib/buffers.ts'
import { runYielding } from '#shared/lib/yielding.ts'
import type { Log } from '#shared/log/log.ts'
import type { RecordedStep, StepInput } from '#shared/store/jobs.ts'
import type { QueuedOf, Store, StoreView, TransitionResult } from '#shared/store/store.ts'
import { traceField } from '#shared/telemetry/context.ts'
import { TERMINAL } from './follow.ts'

/**
 * Maximum size of an event record in bytes, because Kafka rejects 1 MiB by default. For larger events, only a
 * notification is published.
 */
const RECORD_BYTES_MAX = 768 * 1024

export class Dispatcher {
  readonly #broker: Broker
  readonly #log: Log
  readonly #notifier: QueueNotifier | undefined

  constructor(broker: Broker, log: Log, presence?: () => NotifierPresence) {
    this.#broker = broker
    this.#log = log
    this.#notifier = presence && new QueueNotifier(presence)
  }

  /**
   * Publishes a queued job to its queue, or announces the job to workers. Returns false if the broker rejected the
   * record.
   */
  async publishJob(job: DurableJob, request: unknown): Promise<boolean> {
    return await this.publishQueued(job, async () => job, request)
  }

  /**
   * Publishes a queued job as {@link publishJob} does, but reads the job only if a record is needed. If many jobs are submitted at the same time, then few
   * need a record, because workers claim the others from the store after an announcement.
   *
   * @param find Reads the job. Returns undefined if the job is no longer queued
   */
  async publishQueued(
    of: QueuedOf & { readonly id: string },
    find: () => Promise<DurableJob | undefined>,
    request: unknown,
  ): Promise<boolean> {
    if (this.#notifier?.mayPublish(of) === false) {
      this.#notifier.notify(of)
      return true
    }
    const job = await find()
    return job ? await this.#submit(job, request) : true
  }

  async #submit(job: DurableJob, request: unknown): Promise<boolean> {
    try {
      const value = Buffer.from(JSON.stringify(envelopeOf(job, readStored(request))))
      await this.#broker.submit(jobsTopic(job.pool, job.priority), value)
      return true
    } catch (error) {
      this.#log.info({ err: error, job_id: job.id }, 'job could not be published to its queue; the scheduler retries')
      return false
    }
  }

  /** Called when a job has ended. The slot of the job is free again, so another queue record may be published ({@link QueueNotifier}). */
  ended(job: DurableJob): void {
    this.#notifier?.ended(job)
  }

  /** Repeats the announcement that jobs wait, because records or earlier announcements may be lost. */
  notifyWaiting(of: QueuedOf): void {
    this.#notifier?.notify(of)
  }

  publishMoved({ job, events }: TransitionResult, result: unknown = null): void {
    const last = events.at(-1)
    if (!last) return
    if (TERMINAL.has(job.state)) this.#logEnd(job, last.at_ms)
    const end: DurableEnd | undefined = TERMINAL.has(job.state) && isSmall(result) ? { job, result } : undefined
    const announced: EventsRecord = { last_seq: last.seq }
    const record =
      sizeOf(events, RECORD_BYTES_MAX) > RECORD_BYTES_MAX
        ? announced
        : { ...announced, events: [...events], ...(end && { end }) }
    let value = Buffer.from(JSON.stringify(record))
    if (value.length > RECORD_BYTES_MAX) value = Buffer.from(JSON.stringify(announced))
    this.#broker.send(EVENTS, eventPartition(last.job_id), last.job_id, value).catch((error: unknown) => {
      this.#log.debug(
        { err: error, job_id: last.job_id },
        'events could not be published; subscribers read them from the store',
      )
    })
  }

  #logEnd(job: DurableJob, atMs: number): void {
    const { state: outcome, error, created_at_ms, owner: worker } = job
    const end = { outcome, ...(error && { error_code: error.code }), duration_ms: atMs - created_at_ms }
    this.#log.info({ ...jobFields(job), ...(worker !== null && { worker }), ...end }, 'job ended')
  }
}

export function jobFields({
  id: job_id,
  traceparent,
  attempt,
  pool,
  kind,
  model,
  tenant: project_id,
}: DurableJob): object {
  return { job_id, ...traceField(traceparent), attempt, pool, kind, model, project_id }
}

/** Returns the queue record of a durable job. The attempt number is assigned later, by the claim. */
export function envelopeOf(job: DurableJob, request: StoredRequest): JobEnvelope {
  return {
    id: job.id,
    attempt: 0,
    pool: job.pool,
    kind: job.kind,
    tenant: job.tenant,
    model: job.model,
    created_at_ms: job.created_at_ms,
    deadline_ms: job.deadline_ms,
    endpoint: job.endpoint,
    encode: request.encode,
    stream: job.stream,
    ...(job.traceparent !== null && { traceparent: job.traceparent }),
    ...(job.request_id !== null && { request_id: job.request_id }),
    ...(request.replay_of !== undefined && { replay_of: request.replay_of }),
    ...(request.history !== undefined && { history: request.history }),
    ...(request.blob === undefined ? { body: request.body } : { blob: request.blob }),
  }
}

/** Maximum number of queue records that are published while a pool has no workers. The first worker that starts then finds jobs at once. */
const WORKERLESS_MAX = 16
/** Time in ms without records on the control channel after which the reported free slots count as outdated. */
const SILENCE_MS_MAX = 2_500
/** Minimum interval between announcements, in ms. Jobs that are queued in the meantime share one record. */
const PUBLISH_INTERVAL_MS_MIN = 100
const QUEUES_PER_RECORD_MAX = 200

export type NotifierPresence = Pick<
  Presence,
  'heartbeatMs' | 'freeSlots' | 'ingresses' | 'workersWithModel' | 'send' | 'silenceMs' | 'workers'
>

type Waiting = Extract<ControlRecord, { type: 'jobs_waiting' }>['backlog'][number]

interface PoolNotifications {
  /** Records published since `sinceMs`, without those whose jobs have ended. `ids` has the jobs of these records. */
  published: number
  readonly ids: Set<string>
  sinceMs: number
  readonly unannounced: Map<string, Waiting>
}

/** Decides whether a queued job gets a queue record or an announcement on the control channel. */
export class QueueNotifier {
  readonly #presence: () => NotifierPresence
  readonly #pools = new Map<PoolName, PoolNotifications>()
  #publishedAtMs = Number.NEGATIVE_INFINITY
  #timer: NodeJS.Timeout | undefined

  constructor(presence: () => NotifierPresence) {
    this.#presence = presence
  }

  /** Whether the job should get a queue record, which then counts as published. If false, then the caller should {@link notify}. */
  mayPublish(job: QueuedOf & { readonly id?: string }): boolean {
    const presence = this.#presence()
    const hints = this.#of(job.pool)
    const hasWorkers = presence.workers(job.pool).length > 0
    const now = performance.now()
    // The reported free slots of workers are as old as their last heartbeats. Records that were published since then are therefore subtracted. The
    // count restarts after each heartbeat interval.
    if (hasWorkers && now - hints.sinceMs >= presence.heartbeatMs) {
      Object.assign(hints, { sinceMs: now, published: 0 })
      hints.ids.clear()
    }
    // Whether an announcement would reach a worker with the model. A worker without published capacity may run a version that ignores announcements.
    const isAnnounceable = presence.workersWithModel(job.pool, job.model).some(({ capacity }) => capacity)
    const needsRecord = presence.silenceMs > SILENCE_MS_MAX || (hasWorkers && !isAnnounceable)
    // Each ingress publishes records, so the free slots are divided equally among the ingresses.
    const free = hasWorkers
      ? Math.ceil(presence.freeSlots(job.pool) / Math.max(1, presence.ingresses()))
      : WORKERLESS_MAX
    if (!needsRecord && (free <= hints.published || isClaimed(presence, job))) return false
    hints.published++
    if (job.id !== undefined) hints.ids.add(job.id)
    return true
  }

  /** Called when a job has ended. The freed slot permits another record before the next heartbeat of the worker reports the slot. */
  ended({ pool, id }: { readonly pool: PoolName; readonly id: string }): void {
    const hints = this.#pools.get(pool)
    if (hints?.ids.delete(id)) hints.published--
  }

  /** Announces within 100 ms that jobs of this pool, kind, model and priority wait. */
  notify({ pool, kind, model, priority }: QueuedOf): void {
    const { unannounced } = this.#of(pool)
    unannounced.set(`${priority} ${kind} ${model}`, { kind, model, priority })
    if (unannounced.size >= QUEUES_PER_RECORD_MAX) return this.#send()
    const waitMs = Math.max(0, this.#publishedAtMs + PUBLISH_INTERVAL_MS_MIN - performance.now())
    this.#timer ??= setTimeout(() => this.#send(), waitMs).unref()
  }

  #send(): void {
    clearTimeout(this.#timer)
    this.#timer = undefined
    this.#publishedAtMs = performance.now()
    for (const [pool, { unannounced }] of this.#pools) {
      if (unannounced.size > 0)
        this.#presence().send({ type: 'jobs_waiting', pool, backlog: [...unannounced.values()] })
      unannounced.clear()
    }
  }

  #of(pool: PoolName): PoolNotifications {
    const known = this.#pools.get(pool)
    if (known) return known
    const [ids, unannounced] = [new Set<string>(), new Map<string, Waiting>()]
    const hints = { published: 0, ids, sinceMs: performance.now(), unannounced }
    this.#pools.set(pool, hints)
    return hints
  }
}

/**
 * Whether some worker was notified that jobs of this pool, kind, model and priority wait. This worker claims them as soon as a slot is free, so
 * queue records of these jobs would only be dropped.
 */
export function isClaimed(presence: Pick<Presence, 'workers'>, { pool, kind, model, priority }: QueuedOf): boolean {
  return presence.workers(pool).some(({ draining, isSuspected, capacity }) => {
    if (draining || isSuspected || capacity?.models?.has(model) === false) return false
    return capacity?.backlog.some((one) => one.kind === kind && one.model === model && one.priority === priority)
  })
}

/** Maximum number of children that one statement cancels, which is also the maximum number of children of a job. */
const CANCELS_MAX = 500

/**
 * Returns a function that sends a cancel over the control channel to the worker that runs the job, if any. The cancel states whether the job may
 * still write a partial result.
 */
export function cancelsIn(presence: Pick<Presence, 'send'>): (job: DurableJob) => void {
  return (job) => {
    const { id, attempt, owner } = job
    if (owner === null) return
    presence.send({ type: 'cancel', job_id: id, attempt, worker: owner, ...(isToWrapUp(job) && { partial: true }) })
  }
}

/** Whether a cancel was requested and the grace period for a partial result is running. A second cancel ends the grace period. */
function isToWrapUp({ cancel_requested_at_ms: atMs, expires_at_ms, partial_ms }: DurableJob): boolean {
  return partial_ms !== null && atMs !== null && expires_at_ms > atMs
}

export interface FamilyOptions {
  readonly store: Store
  readonly dispatcher: Dispatcher
  readonly log: Log
  readonly notifyOwner: (job: DurableJob) => void
}

/** Effects of a job's end or cancel on its parent and children (docs/internals/design.md, Composed jobs). */
export class Family {
  readonly #options: FamilyOptions

  constructor(options: FamilyOptions) {
    this.#options = options
  }

  /**
   * Called after a committed state transition. If the job has ended, or a cancel was requested, then its children are cancelled. If the job has ended,
   * then a parent that waits for no other child is also woken. Never rejects, because the scheduler repeats failed steps.
   */
  async onMoved(job: DurableJob): Promise<void> {
    if (job.depth === 0 && job.children === 0) return
    try {
      if (TERMINAL.has(job.state)) await this.settle(job)
      else if (job.cancel_requested_at_ms !== null) await this.#cancelChildren(job)
    } catch (error) {
      this.#options.log.info(
        { err: error, job_id: job.id },
        'parent job could not be resumed or child jobs could not be cancelled; the scheduler retries',
      )
    }
  }

  async settle(job: DurableJob): Promise<void> {
    const { store, dispatcher } = this.#options
    if (job.children > 0) await this.#cancelChildren(job)
    const woken = job.depth > 0 && job.parent_id !== null ? await store.wake(job.parent_id) : undefined
    if (woken) await dispatcher.publishJob(woken.job, woken.request)
    await store.settle(job.id)
  }

  async #cancelChildren({ id }: DurableJob): Promise<void> {
    const { store, dispatcher, notifyOwner } = this.#options
    for (const moved of await store.cancelChildren(id, CANCELS_MAX)) {
      const { job } = moved
      dispatcher.publishMoved(moved)
      if (job.state === 'in_progress') notifyOwner(job)
      if (TERMINAL.has(job.state)) await this.settle(job)
      else if (job.children > 0) await this.#cancelChildren(job)
    }
  }
}

/**
 * Maximum bytes of outputs that are read from blobs per page. A page ends at this size, but contains at least one step.
 */
const PAGE_BYTES_MAX = 4 * 1024 * 1024

export interface StepView extends Omit<RecordedStep, 'output' | 'blob'> {
  readonly number: number
  readonly input: StepInput | null
  readonly output: unknown
}

/**
 * Lists a page of a job's steps, in order of completion, with their results.
 *
 * @param after Number of the last step of the previous page
 * @throws ServiceError `not_found` if the output of a step was deleted
 */
export async function listSteps(
  { store, blobs }: { readonly store: StoreView; readonly blobs: Blobs },
  { id, tenant }: DurableJob,
  after: number,
  limit: number,
): Promise<{ steps: StepView[]; hasMore: boolean }> {
  const rows = await store.listRecordedSteps(tenant, id, after, limit + 1)
  const steps: StepView[] = []
  let bytes = 0
  for (const { output, blob: _, ...row } of rows.slice(0, limit)) {
    if (bytes >= PAGE_BYTES_MAX) break
    const json = 'blob' in output ? await blobs.get(output.blob) : undefined
    bytes += json?.length ?? 0
    const value = 'blob' in output ? json && (await runYielding(readJson(json))) : output.value
    steps.push({ ...row, number: after + steps.length + 1, output: value })
  }
  return { steps, hasMore: rows.length > steps.length }
}
