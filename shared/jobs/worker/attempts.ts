import type { ControlRecord } from '#schemas/event.ts'
import type { JobEnvelope } from '#schemas/job.ts'
import type { Blobs } from '#shared/blobs/blobs.ts'
import type { ModelBulkhead, ModelBulkheads } from '#shared/capacity/bulkheads.ts'
import type { Semaphore } from '#shared/capacity/semaphore.ts'
import type { ParkedCalls } from '#shared/capacity/slots.ts'
import type { Attempt, AttemptEnd } from './attempt.ts'
import type { Lane, Poller } from './poller.ts'
import type { Reporter } from './reporter.ts'

const CANCELS_MAX = 10_000

export interface PoolObserver {
  onEnd(job: JobEnvelope, end: AttemptEnd, durationMs: number): void
}

export interface AttemptsOptions {
  readonly parkedCalls: ParkedCalls<Lane, ModelBulkhead>
  readonly boot: string
  readonly blobs: Blobs
  readonly bodyBudget: Semaphore
  readonly observer: PoolObserver
  readonly reporter: Reporter
  readonly bulkheads: ModelBulkheads
  readonly poller: Poller
}

/** Running attempts of one worker. Applies control records (cancel, pause, resume), even if they arrive before their job. */
export class Attempts {
  readonly #options: AttemptsOptions
  readonly #running = new Map<string, Attempt>()
  readonly #lostPeers = new Set<string>()
  /** Cancels that arrived before their job: key of the job → whether the cancel allows a partial result. */
  readonly #cancelled = new Map<string, boolean>()
  readonly #awaited = new Set<{ readonly left: Set<Attempt>; readonly done: () => void }>()
  #isHandingBack = false

  constructor(options: AttemptsOptions) {
    this.#options = options
  }

  /** Runs one attempt to its end in a slot of its lane. If the bulkhead of its model is full, then an attached call is parked first. */
  async run(lane: Lane, attempt: Attempt): Promise<void> {
    const { parkedCalls, blobs, bodyBudget, observer, bulkheads, poller } = this.#options
    const { job } = attempt
    const key = keyOf(job.id, job.attempt)
    const bulkhead = bulkheads.of(job)
    const isAttached = job.reply !== undefined
    const counted = isAttached ? undefined : lane.priority
    let startedAt: number | undefined
    let end: (() => void) | undefined
    const enter = () => {
      startedAt = performance.now()
      end = bulkhead.begin(counted)
      poller.enter(lane, 1, isAttached)
      if (isAttached) parkedCalls.count(bulkhead, job.tenant, 1)
    }
    this.#running.set(key, attempt)
    if (isAttached) poller.countAttached(1)
    const mustWait = isAttached && !parkedCalls.canStart(lane, bulkhead)
    if (!mustWait) enter()
    // A drain had already handed back the other attempts when this one was claimed, so it is handed back too.
    if (this.#isHandingBack) attempt.handBack()
    try {
      const turn = mustWait
        ? (signal: AbortSignal) => parkedCalls.wait(bulkhead, { lane, tenant: job.tenant, enter }, signal)
        : undefined
      const outcome = await attempt.run(blobs, bodyBudget, turn)
      observer.onEnd(job, outcome, performance.now() - (startedAt ?? performance.now()))
    } finally {
      this.#running.delete(key)
      if (end) {
        poller.leave(lane, 1, isAttached)
        end()
        if (isAttached) parkedCalls.count(bulkhead, job.tenant, -1)
      }
      if (isAttached) poller.countAttached(-1)
      if (job.reply && this.#lostPeers.has(job.reply.boot)) this.#forgetLost(job.reply.boot)
      if (this.#awaited.size > 0) this.#noteEnd(attempt)
      poller.free()
    }
  }

  /** Returns whether the attempt runs already, or was cancelled before it arrived, and removes such a cancel. */
  isOver(job: JobEnvelope): boolean {
    const key = keyOf(job.id, job.attempt)
    return this.#cancelled.delete(job.id) || this.#cancelled.delete(key) || this.#running.has(key)
  }

  /**
   * Returns whether an attempt was cancelled before its record arrived, and removes the stored cancel. `partial`: the cancel allows a
   * partial result.
   */
  wasCancelled({ id, attempt }: Pick<JobEnvelope, 'id' | 'attempt'>): false | 'at once' | 'partial' {
    const key = keyOf(id, attempt)
    const isPartial = this.#cancelled.get(key)
    return this.#cancelled.delete(key) && (isPartial ? 'partial' : 'at once')
  }

  /** Returns whether the whole job, rather than one attempt, was cancelled before it arrived, and removes the stored cancel. */
  wasJobCancelled({ id }: Pick<JobEnvelope, 'id'>): boolean {
    return this.#cancelled.delete(id)
  }

  async untilOver(): Promise<void> {
    if (this.#running.size === 0) return
    const { promise, resolve } = Promise.withResolvers<void>()
    this.#awaited.add({ left: new Set(this.#running.values()), done: resolve })
    await promise
  }

  handBackAll(): void {
    this.#isHandingBack = true
    for (const attempt of this.#running.values()) attempt.handBack()
  }

  onControl(record: ControlRecord): void {
    const { boot } = this.#options
    if (record.type === 'pause') this.#running.get(keyOf(record.job_id, record.attempt))?.pause()
    else if (record.type === 'resume') this.#running.get(keyOf(record.job_id, record.attempt))?.resume()
    else if (record.type === 'cancel' && (record.worker ?? boot) === boot) this.#onCancel(record)
  }

  /**
   * Called when an ingress has missed its heartbeats: all its jobs are handed back. If the ingress was only slow, then it
   * receives the hand-back events.
   */
  onPeerLost(boot: string): void {
    this.#lostPeers.add(boot)
    for (const attempt of this.#of(boot)) attempt.handBack()
    this.#forgetLost(boot)
  }

  #onCancel({ job_id: id, attempt, partial = false }: Extract<ControlRecord, { type: 'cancel' }>): void {
    let isRunning = false
    for (const running of this.#running.values()) {
      if (running.job.id !== id || (attempt !== undefined && running.job.attempt !== attempt)) continue
      running.cancel(partial)
      isRunning = true
    }
    if (!isRunning) this.#remember(attempt === undefined ? id : keyOf(id, attempt), partial)
  }

  /** Stores a cancel, because a job that is cancelled before it arrives must not run. Beyond the limit, the oldest cancels are dropped. */
  #remember(cancelled: string, isPartial: boolean): void {
    this.#cancelled.set(cancelled, isPartial)
    const [oldest = cancelled] = this.#cancelled.keys()
    if (this.#cancelled.size > CANCELS_MAX) this.#cancelled.delete(oldest)
  }

  #noteEnd(attempt: Attempt): void {
    for (const awaited of this.#awaited) {
      if (!awaited.left.delete(attempt) || awaited.left.size > 0) continue
      this.#awaited.delete(awaited)
      awaited.done()
    }
  }

  #forgetLost(boot: string): void {
    if (!this.#of(boot).next().done) return
    this.#lostPeers.delete(boot)
    this.#options.reporter.drop(boot)
  }

  *#of(boot: string): Generator<Attempt> {
    for (const attempt of this.#running.values()) if (attempt.job.reply?.boot === boot) yield attempt
  }
}

function keyOf(jobId: string, attempt: number): string {
  return `${jobId}:${attempt}`
}
