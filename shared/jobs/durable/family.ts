import type { DurableJob } from '#schemas/durable-job.ts'
import type { Presence } from '#shared/jobs/presence.ts'
import type { Log } from '#shared/log/log.ts'
import type { Store } from '#shared/store/store.ts'
import type { Dispatcher } from './dispatch.ts'
import { TERMINAL } from './follow.ts'

/** Children of one job that are cancelled in one go: all that may be under way. */
const CANCELS_MAX = 500

/** Tells the owner of a job over the control channel that the job is cancelled, and whether it is to write what there is. */
export function cancelsIn(presence: Pick<Presence, 'send'>): (job: DurableJob) => void {
  return (job) => {
    const { id, attempt, owner } = job
    if (owner === null) return
    presence.send({ type: 'cancel', job_id: id, attempt, worker: owner, ...(isToWrapUp(job) && { partial: true }) })
  }
}

/** Whether the cancel of a job gave it time to write what there is. */
export function isToWrapUp({ cancel_requested_at_ms: atMs, expires_at_ms, partial_ms }: DurableJob): boolean {
  return partial_ms !== null && atMs !== null && expires_at_ms > atMs
}

/** What {@link Family} needs. */
export interface FamilyOptions {
  readonly store: Store
  readonly dispatcher: Dispatcher
  readonly log: Log
  /** Tells the worker that runs a job to stop. The flag in the store is the truth; this is quicker. */
  readonly notifyOwner: (job: DurableJob) => void
}

/**
 * What the end of a job, or its cancel, means to its parent and its children (docs/design.md, Families): children of a job that
 * has ended or was cancelled are cancelled, all depths, and a parent is woken that waits for nothing else.
 *
 * Whoever moved the job does so at once; what is cut short is done by the scheduler, for the store remembers whose family does
 * not know yet.
 */
export class Family {
  readonly #options: FamilyOptions

  constructor(options: FamilyOptions) {
    this.#options = options
  }

  /** After the commit of any move. Never rejects: the scheduler does it again. */
  async onMoved(job: DurableJob): Promise<void> {
    if (job.depth === 0 && job.children === 0) return
    try {
      if (TERMINAL.has(job.state)) await this.settle(job)
      else if (job.cancel_requested_at_ms !== null) await this.#cancelChildren(job)
    } catch (error) {
      this.#options.log.info({ err: error, job_id: job.id }, 'family not told; the scheduler tries again')
    }
  }

  /** Tells the family of a job that has ended, and that it has been told. */
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
