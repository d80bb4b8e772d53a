import type { DurableJob } from '#schemas/durable-job.ts'
import type { DurableEnd, EventsRecord } from '#schemas/event.ts'
import type { JobEnvelope, StoredRequest } from '#schemas/job.ts'
import type { Broker } from '#shared/broker/broker.ts'
import { readStored } from '#shared/jobs/records.ts'
import { EVENTS, eventPartition, jobsTopic } from '#shared/jobs/topics.ts'
import { isSmall } from '#shared/json/write.ts'
import { sizeOf } from '#shared/lib/event-size.ts'
import type { Log } from '#shared/log/log.ts'
import type { QueuedOf, TransitionResult } from '#shared/store/store.ts'
import { TERMINAL } from './follow.ts'
import { type NotifierPresence, QueueNotifier } from './queue-notifier.ts'

/** Maximum size of an event record in bytes; Kafka rejects 1 MiB by default. Larger events are only announced. */
const RECORD_BYTES_MAX = 768 * 1024

/**
 * Publishes committed state transitions: queued jobs for workers, and events for subscribers.
 *
 * Correctness never depends on a publication. The scheduler republishes a lost job, and subscribers read lost events from the
 * store.
 */
export class Dispatcher {
  readonly #broker: Broker
  readonly #log: Log
  readonly #notifier: QueueNotifier | undefined

  constructor(broker: Broker, log: Log, presence?: () => NotifierPresence) {
    this.#broker = broker
    this.#log = log
    this.#notifier = presence && new QueueNotifier(presence)
  }

  /** Publishes a queued job to its queue, or announces it to workers. Returns false if the broker did not accept it. */
  async publishJob(job: DurableJob, request: unknown): Promise<boolean> {
    return await this.publishQueued(job, async () => job, request)
  }

  /**
   * Like {@link publishJob}, but reads the job only if a record is needed. If many jobs are submitted at once, then few need one.
   *
   * @param find Reads the job; undefined: the job is no longer queued
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
      this.#log.info({ err: error, job_id: job.id }, 'job could not be published; the scheduler retries')
      return false
    }
  }

  /** Call when a job has ended, so that another record may be published (see {@link QueueNotifier}). */
  ended(job: DurableJob): void {
    this.#notifier?.ended(job)
  }

  /** Announces again to workers that jobs wait, because records or earlier announcements may be lost. */
  notifyWaiting(of: QueuedOf): void {
    this.#notifier?.notify(of)
  }

  /**
   * Publishes the events of a state transition to subscribers on all replicas. The last event carries the end and the result, so
   * that waiting callers need not read the store.
   *
   * @param result Stored result of a completed job
   */
  publishMoved({ job, events }: TransitionResult, result: unknown = null): void {
    const last = events.at(-1)
    if (!last) return
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
}

/** The envelope of a durable job in its queue record. The attempt number is assigned by the claim. */
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
