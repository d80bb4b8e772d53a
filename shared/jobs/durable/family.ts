import type { DurableJob } from '#schemas/durable-job.ts'
import type { Blobs } from '#shared/blobs/blobs.ts'
import type { Presence } from '#shared/jobs/presence.ts'
import { readJson } from '#shared/json/read.ts'
import { runYielding } from '#shared/lib/yielding.ts'
import type { Log } from '#shared/log/log.ts'
import type { RecordedStep, StepInput } from '#shared/store/jobs.ts'
import type { Store, StoreView } from '#shared/store/store.ts'
import type { Dispatcher } from './dispatch.ts'
import { TERMINAL } from './follow.ts'

/** Maximum number of children that one statement cancels; equal to the maximum number of children of a job. */
const CANCELS_MAX = 500

/** Sends a cancel to the owner of a job over the control channel. The cancel states whether the job may still write a partial result. */
export function cancelsIn(presence: Pick<Presence, 'send'>): (job: DurableJob) => void {
  return (job) => {
    const { id, attempt, owner } = job
    if (owner === null) return
    presence.send({ type: 'cancel', job_id: id, attempt, worker: owner, ...(isToWrapUp(job) && { partial: true }) })
  }
}

/** True if a cancel was requested and its grace period for a partial result has not been cut short by a second cancel. */
function isToWrapUp({ cancel_requested_at_ms: atMs, expires_at_ms, partial_ms }: DurableJob): boolean {
  return partial_ms !== null && atMs !== null && expires_at_ms > atMs
}

export interface FamilyOptions {
  readonly store: Store
  readonly dispatcher: Dispatcher
  readonly log: Log
  readonly notifyOwner: (job: DurableJob) => void
}

/**
 * Effects of a job's end or cancel on its parent and children (docs/internals/design.md, Composed jobs). Children of an ended or
 * cancelled job are cancelled at all depths. A parent that waits for no other child is woken.
 *
 * The process that committed the transition applies these effects at once. If it crashes in between, then the scheduler completes
 * them: the store marks ended jobs as unsettled until their parents and children are updated.
 */
export class Family {
  readonly #options: FamilyOptions

  constructor(options: FamilyOptions) {
    this.#options = options
  }

  /** Applies the effects of a committed state transition. Never rejects: the scheduler retries. */
  async onMoved(job: DurableJob): Promise<void> {
    if (job.depth === 0 && job.children === 0) return
    try {
      if (TERMINAL.has(job.state)) await this.settle(job)
      else if (job.cancel_requested_at_ms !== null) await this.#cancelChildren(job)
    } catch (error) {
      this.#options.log.info(
        { err: error, job_id: job.id },
        'job ended, but its parent and child jobs could not be updated; the scheduler retries',
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

/** Maximum bytes of outputs read from blobs per page. A page ends at this size, but contains at least one step. */
const PAGE_BYTES_MAX = 4 * 1024 * 1024

export interface StepView extends Omit<RecordedStep, 'output' | 'blob'> {
  readonly number: number
  readonly input: StepInput | null
  readonly output: unknown
}

/**
 * A page of a job's steps, in order of completion, with their results.
 *
 * @param after Number of the last step of the previous page
 * @throws ServiceError `not_found` if the output of a step is gone
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
