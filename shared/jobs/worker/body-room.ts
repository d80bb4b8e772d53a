import type { JobEnvelope } from '#schemas/job.ts'
import type { Blobs } from '#shared/blobs/blobs.ts'
import { HELD_PER_BYTE } from '#shared/byte-budget.ts'
import { fetchBody } from '#shared/jobs/body.ts'

/** A body that was fetched. Release it when the job has ended. */
export interface FetchedBody {
  readonly body: unknown
  release(): void
}

interface Waiting {
  readonly bytes: number
  readonly enter: () => void
}

/**
 * The memory that bodies from blobs may take in a worker, as long as their jobs run: a slot is made for a small one. What has
 * no room waits for it in the order of its coming, until its signal aborts. One alone always has room.
 */
export class BodyRoom {
  readonly #bytesMax: number
  readonly #waiting = new Set<Waiting>()
  #held = 0

  constructor(bytesMax: number) {
    this.#bytesMax = bytesMax
  }

  /** The body of a job. @throws The signal's reason; ServiceError as {@link fetchBody} */
  async fetch(job: Pick<JobEnvelope, 'body' | 'blob'>, blobs: Blobs, signal: AbortSignal): Promise<FetchedBody> {
    // Of what is gone fetchBody tells.
    const bytes = job.blob === undefined ? 0 : (await blobs.size(job.blob).catch(() => 0)) * HELD_PER_BYTE
    if (bytes > 0) await this.#enter(bytes, signal)
    const release = once(() => this.#leave(bytes))
    try {
      return { body: await fetchBody(job, blobs), release }
    } catch (error) {
      release()
      throw error
    }
  }

  async #enter(bytes: number, signal: AbortSignal): Promise<void> {
    signal.throwIfAborted()
    if (this.#waiting.size > 0 || !this.#hasRoom(bytes)) await this.#wait(bytes, signal)
    else this.#held += bytes
  }

  async #wait(bytes: number, signal: AbortSignal): Promise<void> {
    const { promise, resolve, reject } = Promise.withResolvers<void>()
    const waiting = { bytes, enter: resolve }
    const onAbort = () => {
      this.#waiting.delete(waiting)
      // It may have kept smaller ones waiting behind it.
      this.#letIn()
      reject(signal.reason)
    }
    this.#waiting.add(waiting)
    signal.addEventListener('abort', onAbort, { once: true })
    await promise.finally(() => signal.removeEventListener('abort', onAbort))
  }

  #hasRoom(bytes: number): boolean {
    return this.#held === 0 || this.#held + bytes <= this.#bytesMax
  }

  #leave(bytes: number): void {
    this.#held -= bytes
    this.#letIn()
  }

  #letIn(): void {
    for (const waiting of this.#waiting) {
      if (!this.#hasRoom(waiting.bytes)) return
      this.#waiting.delete(waiting)
      this.#held += waiting.bytes
      waiting.enter()
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
