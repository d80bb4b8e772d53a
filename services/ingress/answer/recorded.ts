import type { DurableEvent, DurableJob } from '#schemas/durable-job.ts'
import { formatOf } from '#services/ingress/reply/errors.ts'
import { type Output, refusalOf } from '#services/ingress/reply/reply.ts'
import { ServiceError } from '#shared/error.ts'
import type { DurableJobs } from '#shared/jobs/durable/durable.ts'
import { isLast } from '#shared/jobs/durable/follow.ts'
import type { AnswerStream, Frame } from '#shared/kinds/answer.ts'

/**
 * The result of a job that has ended.
 *
 * @throws ServiceError What it failed with; `job_cancelled`, `job_expired`, `job_not_finished`
 */
export async function resultOf(jobs: DurableJobs, tenant: string, job: DurableJob): Promise<unknown> {
  switch (job.state) {
    case 'completed':
      return await jobs.result(tenant, job.id)
    case 'failed':
      throw ServiceError.fromBody(job.error ?? { code: 'internal_error', message: 'The job failed.', param: null })
    case 'cancelled':
      throw new ServiceError('job_cancelled', 'The job was cancelled.')
    case 'expired':
      throw new ServiceError('job_expired', 'The job waited longer than its deadline allows and was not started.')
    default:
      throw new ServiceError('job_not_finished', 'The job has not ended yet.', { retryAfterMs: 2_000 })
  }
}

/** The recorded output of one job, as {@link sendStream} reads it. Dispose it: who stops early is still subscribed. */
export class RecordedOutput implements Output, AsyncDisposable {
  firstOutputAtMs: number | undefined
  readonly #jobs: DurableJobs
  readonly #tenant: string
  readonly #id: string
  /** Output of the attempts before does not count; nobody has been told of it yet. */
  readonly #attempt: number
  readonly #signal: AbortSignal
  readonly #events: AsyncGenerator<DurableEvent[]>
  #hasEnded = false
  /** Number of the last progress that was told. */
  #progress = 0

  /** @param signal Nobody reads on: its reason is thrown, where it is a ServiceError. */
  constructor(jobs: DurableJobs, job: DurableJob, signal: AbortSignal) {
    this.#jobs = jobs
    this.#tenant = job.tenant
    this.#id = job.id
    this.#attempt = job.attempt
    this.#signal = signal
    this.#events = jobs.follow(job.tenant, job.id, 0, signal)
  }

  /** Chunks of the wire, at least one; undefined after the last. @throws ServiceError What the job failed with */
  async next(): Promise<unknown[] | undefined> {
    for (;;) {
      const { value: events, done } = await this.#events.next()
      if (done) break
      const chunks: unknown[] = []
      for (const event of events) this.#take(event, chunks)
      if (chunks.length > 0) return chunks
    }
    const job = await this.#jobs.get(this.#tenant, this.#id)
    // What was left in the middle is no whole output, even if the job has ended since.
    if (!this.#hasEnded && this.#signal.aborted) throw leftBecause(this.#signal, job)
    await resultOf(this.#jobs, this.#tenant, job)
    return undefined
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.#events.return(undefined)
  }

  #take(event: DurableEvent, chunks: unknown[]): void {
    const { type, data, attempt } = event
    if (isLast(event)) this.#hasEnded = true
    if (attempt < this.#attempt) return
    if (type === 'job.output.delta') {
      const { chunk } = data as { chunk: unknown }
      if (isOutput(chunk)) this.firstOutputAtMs ??= Date.now()
      if (this.#isNew(chunk)) chunks.push(chunk)
    } else if (type === 'job.retrying' && this.firstOutputAtMs !== undefined) {
      // A plain stream cannot take back what it said; the job goes on, and its events tell all.
      throw new ServiceError('worker_lost', 'The output had to be started over. Follow the events of the job instead.')
    }
  }

  /** An attempt that takes up the work of another says its progress from the beginning, with the same numbers. */
  #isNew(chunk: unknown): boolean {
    const { research_progress: progress } = (chunk ?? {}) as { research_progress?: { sequence: number } }
    if (!progress) return true
    const isNew = progress.sequence > this.#progress
    if (isNew) this.#progress = progress.sequence
    return isNew
  }
}

/** What was kept are the messages of the stream, without the names that one format gives them. */
export function recordedStream(endpoint: string): AnswerStream {
  const isNamed = formatOf(endpoint) === 'anthropic'
  return {
    push(chunk): Frame[] {
      const data = JSON.stringify(chunk)
      return [isNamed ? { event: (chunk as { type: string }).type, data } : { data }]
    },
    end: () => [],
  }
}

/** Chat chunks without choices tell progress or usage: a caller may hear them twice. */
function isOutput(chunk: unknown): boolean {
  const { choices } = (chunk ?? {}) as { choices?: unknown[] }
  return choices?.length !== 0
}

function leftBecause(signal: AbortSignal, { id }: DurableJob): ServiceError {
  const refusal = refusalOf(signal)
  return refusal ?? new ServiceError('overloaded', `The server is shutting down. Job ${id} goes on: ask for it again.`)
}
