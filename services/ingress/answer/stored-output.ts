import type { DurableEvent, DurableJob } from '#schemas/durable-job.ts'
import { formatOf } from '#services/ingress/reply/errors.ts'
import { type Output, refusalOf } from '#services/ingress/reply/reply.ts'
import type { DurableJobs } from '#shared/jobs/durable/durable.ts'
import { isLast } from '#shared/jobs/durable/follow.ts'
import { type AnswerStream, type Frame, frameOf } from '#shared/kinds/answer.ts'
import { ServiceError } from '#shared/lib/error.ts'

/**
 * Result of an ended job.
 *
 * @throws ServiceError the failure of the job; `job_cancelled`, `job_expired`, `job_not_finished`
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

/**
 * Recorded output of one durable job, as an {@link Output} for {@link sendStream}. Must be disposed, because a reader
 * that stops early is still subscribed.
 */
export class StoredOutput implements Output, AsyncDisposable {
  firstOutputAtMs: number | undefined
  readonly #jobs: DurableJobs
  readonly #tenant: string
  readonly #id: string
  /** Attempt at the start. Output of earlier attempts is skipped, because none of it was sent to this caller. */
  readonly #attempt: number
  readonly #signal: AbortSignal
  readonly #events: AsyncGenerator<DurableEvent[]>
  #hasEnded = false
  /** Sequence number of the last progress event sent. */
  #progress = 0

  /** @param signal Aborts when the reader stops. If the reason is a ServiceError, then `next` throws it */
  constructor(jobs: DurableJobs, job: DurableJob, signal: AbortSignal) {
    this.#jobs = jobs
    this.#tenant = job.tenant
    this.#id = job.id
    this.#attempt = job.attempt
    this.#signal = signal
    this.#events = jobs.follow(job.tenant, job.id, 0, signal)
  }

  async next(): Promise<unknown[] | undefined> {
    for (;;) {
      const { value: events, done } = await this.#events.next()
      if (done) break
      const chunks: unknown[] = []
      for (const event of events) this.#take(event, chunks)
      if (chunks.length > 0) return chunks
    }
    const job = await this.#jobs.get(this.#tenant, this.#id)
    // A reader that stopped early did not receive the whole output, even if the job has ended in the meantime.
    if (!this.#hasEnded && this.#signal.aborted) throw disconnectError(this.#signal, job)
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
      // A stream cannot retract output. The event stream of the job contains the new output.
      throw new ServiceError(
        'worker_lost',
        'The output was started over, because a worker was lost. Follow the events of the job instead.',
      )
    }
  }

  /**
   * Whether a chunk was not sent before. When an attempt resumes another, it repeats progress events under the same
   * numbers.
   */
  #isNew(chunk: unknown): boolean {
    const { research_progress: progress } = (chunk ?? {}) as { research_progress?: { sequence: number } }
    if (!progress) return true
    const isNew = progress.sequence > this.#progress
    if (isNew) this.#progress = progress.sequence
    return isNew
  }
}

/** Stream of the recorded chunks. Adds the event names of the Anthropic format, which are not recorded. */
export function storedOutputStream(endpoint: string): AnswerStream {
  const isNamed = formatOf(endpoint) === 'anthropic'
  return {
    push(chunk): Frame[] {
      return [frameOf(chunk, isNamed ? { event: (chunk as { type: string }).type } : {})]
    },
    end: () => [],
  }
}

/** Whether a chunk is output. Chat chunks without choices contain progress or usage, which may be sent twice. */
function isOutput(chunk: unknown): boolean {
  const { choices } = (chunk ?? {}) as { choices?: unknown[] }
  return choices?.length !== 0
}

function disconnectError(signal: AbortSignal, { id }: DurableJob): ServiceError {
  const refusal = refusalOf(signal)
  return (
    refusal ?? new ServiceError('overloaded', `The server is shutting down. Job ${id} continues; repeat the request.`)
  )
}
