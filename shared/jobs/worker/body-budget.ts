import type { JobEnvelope } from '#schemas/job.ts'
import type { Blobs } from '#shared/blobs/blobs.ts'
import { HELD_PER_BYTE } from '#shared/capacity/byte-budgets.ts'
import { Slots } from '#shared/capacity/semaphore.ts'
import { bytesOfBody, fetchBody } from '#shared/jobs/body.ts'

/** A body in memory. Call `release` when its job has ended. */
export interface FetchedBody {
  readonly body: unknown
  release(): void
}

/**
 * Memory budget for bodies from blobs in one worker. Slots limit the number of jobs, but a few large bodies could still exhaust
 * memory.
 *
 * A body that exceeds the remaining budget waits in order of arrival, until its signal aborts. A single body larger than the
 * budget is admitted alone.
 */
export class BodyBudget {
  readonly #held: Slots

  constructor(bytesMax: number) {
    this.#held = new Slots(bytesMax)
  }

  /** Fetches the body of a job. @throws The signal's reason; ServiceError as {@link fetchBody} */
  async fetch(
    job: Pick<JobEnvelope, 'body' | 'blob' | 'history'>,
    blobs: Blobs,
    signal: AbortSignal,
  ): Promise<FetchedBody> {
    if (job.blob === undefined && !job.history) return { body: job.body, release() {} }
    // If the blob is gone, then fetchBody reports that.
    const bytes = (await bytesOfBody(job, blobs).catch(() => 0)) * HELD_PER_BYTE
    if (bytes > 0) await this.#held.take(signal, bytes)
    const release = once(() => this.#held.release(bytes))
    try {
      return { body: await fetchBody(job, blobs), release }
    } catch (error) {
      release()
      throw error
    }
  }
}

function once(action: () => void): () => void {
  let isDone = false
  return () => {
    if (!isDone) action()
    isDone = true
  }
}
