import type { DurableJob } from '#schemas/durable-job.ts'
import type { DurableEnd, EventsRecord } from '#schemas/event.ts'
import type { JobEnvelope, StoredRequest } from '#schemas/job.ts'
import type { Broker } from '#shared/broker/broker.ts'
import { readStored } from '#shared/jobs/records.ts'
import { EVENTS, eventPartition, jobsTopic } from '#shared/jobs/topics.ts'
import { isSmall } from '#shared/json/write.ts'
import type { Log } from '#shared/log/log.ts'
import type { Moved, QueuedOf } from '#shared/store/store.ts'
import { TERMINAL } from './follow.ts'
import { type NotifierPresence, QueueNotifier } from './queue-notifier.ts'

/** Bytes of a record above which events are only announced; Kafka refuses 1 MiB by default. */
const RECORD_BYTES_MAX = 768 * 1024

/**
 * Puts on the broker what the store has committed: jobs that wait, and events for those who follow.
 *
 * Nothing depends on it. A job that does not get through is published again by the scheduler; an event that does not is
 * read from the store.
 */
export class Dispatcher {
  readonly #broker: Broker
  readonly #log: Log
  readonly #hints: QueueNotifier | undefined

  /** @param presence Says whether workers have room for more records; default: they always have */
  constructor(broker: Broker, log: Log, presence?: () => NotifierPresence) {
    this.#broker = broker
    this.#log = log
    this.#hints = presence && new QueueNotifier(presence)
  }

  /** Puts a queued job on its queue, or tells workers that it waits. False when the broker did not take it. */
  async publishJob(job: DurableJob, request: unknown): Promise<boolean> {
    return await this.publishFound(job, async () => job, request)
  }

  /**
   * The same of one that is read only where it is to have a record, which few of many have that are submitted at once.
   *
   * @param find Gives it; undefined: it waits no more.
   */
  async publishFound(
    of: QueuedOf & { readonly id: string },
    find: () => Promise<DurableJob | undefined>,
    request: unknown,
  ): Promise<boolean> {
    if (this.#hints?.mayPublish(of) === false) {
      this.#hints.notify(of)
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
      this.#log.info({ err: error, job_id: job.id }, 'job not published; the scheduler tries again')
      return false
    }
  }

  /** A job is known to have ended: another may be published in its place (see {@link QueueNotifier}). */
  ended(job: DurableJob): void {
    this.#hints?.ended(job)
  }

  /** Tells workers that jobs wait, whose records or tellings they may have missed. */
  notifyWaiting(of: QueuedOf): void {
    this.#hints?.notify(of)
  }

  /**
   * Tells followers on any replica what a move wrote, and those who wait for the end of the job how it ended, so that they need
   * not ask the store.
   *
   * @param result What is kept as the result of a job that has completed.
   */
  publishMoved({ job, events }: Moved, result: unknown = null): void {
    const last = events.at(-1)
    if (!last) return
    const end: DurableEnd | undefined = TERMINAL.has(job.state) && isSmall(result) ? { job, result } : undefined
    const record: EventsRecord = { last_seq: last.seq, events: [...events], ...(end && { end }) }
    let value = Buffer.from(JSON.stringify(record))
    if (value.length > RECORD_BYTES_MAX) value = Buffer.from(JSON.stringify({ last_seq: last.seq }))
    this.#broker.send(EVENTS, eventPartition(last.job_id), last.job_id, value).catch((error: unknown) => {
      this.#log.debug({ err: error, job_id: last.job_id }, 'events not published; followers read the store')
    })
  }
}

/** A durable job as it travels to a worker; its attempt is not known before the claim. */
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
