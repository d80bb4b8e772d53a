import type { JobEnvelope } from '#schemas/job.ts'
import type { Blobs } from '#shared/blobs/blobs.ts'
import { HELD_PER_BYTE } from '#shared/byte-budget.ts'
import { bytesOfBody, fetchBody } from '#shared/jobs/body.ts'
import { Slots } from '#shared/slots.ts'

/** A body that was fetched. Release it when the job has ended. */
export interface FetchedBody {
  readonly body: unknown
  release(): void
}

/**
 * The memory that bodies from blobs may take in a worker, as long as their jobs run: a slot is made for a small one. What has
 * no room waits for it in the order of its coming, until its signal aborts. One alone always has room.
 */
export class BodyBudget {
  readonly #held: Slots

  constructor(bytesMax: number) {
    this.#held = new Slots(bytesMax)
  }

  /** The body of a job. @throws The signal's reason; ServiceError as {@link fetchBody} */
  async fetch(
    job: Pick<JobEnvelope, 'body' | 'blob' | 'history'>,
    blobs: Blobs,
    signal: AbortSignal,
  ): Promise<FetchedBody> {
    if (job.blob === undefined && !job.history) return { body: job.body, release() {} }
    // Of what is gone fetchBody tells.
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
