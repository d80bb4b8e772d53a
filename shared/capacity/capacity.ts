import type { DurableJob } from '#schemas/durable-job.ts'
import type { ControlRecord } from '#schemas/event.ts'
import type { PoolName } from '#schemas/job.ts'
import type { Price } from '#schemas/price.ts'
import type { ApiKey } from '#shared/keys/keys.ts'
import { abortable } from '#shared/lib/abortable.ts'
import { untilAligned } from '#shared/lib/aligned-interval.ts'
import { ServiceError } from '#shared/lib/error.ts'
import { runYielding } from '#shared/lib/yielding.ts'
import type { Log } from '#shared/log/log.ts'
import type { OperatorStore, Pause, PauseTarget } from '#shared/store/jobs.ts'
import { estimateOf } from '#shared/usage/estimate.ts'
import type { Budgets } from './budgets.ts'
import type { RateLimits, RemainingLimit } from './rate-limits.ts'
import { Semaphore } from './semaphore.ts'

/*
 * The gates that a call passes, in this order. A gate delays the call, or refuses it with an error that states when to try again. Each line names the
 * gate, what the gate protects, the answer to a refused caller, the setting, and the class. Two errors have no Retry-After, because a retry is
 * useless: 429 insufficient_quota, and 403, which replaces 429 if a limit is 0.
 *
 *  1. Requests per minute and concurrent calls of a key. Protects other keys. 429. RATE_LIMIT_REQUESTS, CONCURRENCY_MAX_PER_KEY, and the limits of
 *     keys and projects. RateLimits.
 *  2. Budget that is already spent. Protects the money of the project. 429 insufficient_quota. Budget of a key or project. Budgets.
 *  3. Bytes of request bodies in memory. Protects the ingress. 503. BODY_BUDGET_BYTES, of which one key may use half. A body counts until a blob or
 *     the store has it, or its call has ended. ByteBudget.
 *  4. Code runs of an end user. Protects other end users of the key. 429. CODE_RUNS_PER_USER. RateLimits.
 *  5. Reserved tokens and budget. Protects both limits against bursts. 429. RATE_LIMIT_TOKENS, and the budget. RateLimits, Budgets.
 *  6. Concurrent calls and jobs of a project. Protects other projects. 429. Limit `running` of the project. RateLimits.
 *  7. Calls in flight. Protects the memory of the ingress. 503. JOBS_MAX. AttachedJobs.
 *  8. Paused pool or model. Protects what the operator repairs. 503. Admin API. Pauses.
 *  9. Estimated wait. Protects callers from a wait that ends in a timeout. 503 with Retry-After. START_TIMEOUT_MS. A call that already waits is
 *     refused if the total wait would exceed twice the setting. AdmissionControl.
 * 10. Fair queue of tenants. Protects tenants from each other. The call waits. No setting. TenantDispatcher.
 * 11. Free slot of a worker. Protects the worker. The call waits. If no live worker has the model: 503 after START_TIMEOUT_MS, at most a minute.
 *     INFERENCE_SLOTS and its siblings. Poller.
 * 12. Permit of the model. Protects other models of the worker. The call waits, or another worker takes it. The `concurrency` of the model, divided
 *     among the workers. ModelBulkheads, ParkedCalls.
 * 13. Bytes of bodies from blobs. Protects the memory of the worker. The call waits. BODY_BUDGET_BYTES. Semaphore.
 * 14. Adaptive limit and circuit breaker of a server. Protects the upstream. The call goes to another server. If the working servers are
 *     full, then the call waits. If no server works: 503, which the owner of the job may retry. The `concurrency` of the model is the
 *     maximum of the limit, for all workers together. AdaptiveLimit, Breaker.
 *
 * A durable job passes gates 1 to 4, a, b, 5 and c when it is submitted. When a worker takes the job, it passes 11, 12, d, 13 and 14. The job fails
 * with `model_not_found` if no worker of its pool has the model for 5 minutes.
 *
 *  a. Concurrent submissions: two per ingress while other projects make calls. Protects those calls. The job waits. 429 after 30 s, or
 *     if 1,000 submissions of the project wait. No setting. SubmitQueue.
 *  b. Number of jobs. Protects other projects and the store. Limit of the project or key: 429. Limit of the service, or unreachable
 *     store: 503. DURABLE_JOBS_MAX and its siblings. JobQuota.
 *  c. Free disk space and stored bytes of the project. Protects the disk. 503, or 429 insufficient_quota. DISK_FREE_BYTES_MIN,
 *     FILES_BYTES_MAX_PER_PROJECT. StoredQuota.
 *  d. Claim, one job of each tenant in rotation. Protects tenants from each other. The job stays queued while its pool or model is
 *     paused, or its project is at the limit of gate 6.
 *
 * A line of a batch passes gates c, 1 and 5 when the line becomes a job. While calls run, SubmitQueue also spaces the lines. A line beyond a limit
 * waits.
 *
 * Some kinds have a gate of their own. Embeddings, documents, embedded models and WebAssembly wait for a Semaphore. Audio beyond the AudioQuota of
 * its tenant is refused with 429. `shared/lib/yielding.ts` bounds how long work may hold the event loop.
 */

/**
 * Poll interval in ms for the end of a durable job, whose used tokens are then counted. The interval is long because a notification nearly always
 * arrives first, and thousands of jobs may be pending for days.
 */
const TOKENS_POLL_MS = 600_000

export interface Admission {
  readonly nanos: number
  /** Replaces the reserved tokens with the tokens used. The code that made the reservation calls this method or {@link release}, once. */
  useTokens(tokens: number): void
  /**
   * Replaces the reserved budget with the cost of the ended call.
   *
   * @param entered Resolves when the cost is in the ledger
   */
  settle(costNanos: number, entered: Promise<unknown>): void
  /** Called when the durable job is stored. From then on, the stored job reserves the budget. The tokens are counted when the job ends. */
  handOver(): void
  release(): void
}

interface AdmittedSlot {
  /** Reservation of tokens and budget. Undefined if neither is limited. */
  readonly admission?: Admission
  leave(): void
}

interface AdmittedCall {
  readonly pool: PoolName
  readonly model: string
  readonly body: unknown
}

interface Limiting {
  readonly budgets: Budgets
  readonly limits: RateLimits
  readonly models: { priceOf(call: AdmittedCall): Price | undefined }
}

type KeyOf = Pick<ApiKey, 'id' | 'project' | 'limits'>

/**
 * Counts a call before its body is read (gates 1 and 2 of the list above).
 *
 * @param isJob True for a durable job, which is counted later in the concurrency limit of its project, by the store
 * @returns A function to call when the call has ended
 * @throws ServiceError `rate_limit_exceeded`, `token_limit_exceeded`, `insufficient_quota`, `permission_denied`
 */
export async function enterCall(
  { budgets, limits }: Pick<Limiting, 'budgets' | 'limits'>,
  key: KeyOf,
  isJob: boolean,
  show: (left: readonly RemainingLimit[]) => void,
): Promise<() => void> {
  const leave = await limits.enter(key, show, isJob)
  try {
    await budgets.require(key)
    return leave
  } catch (refused) {
    leave()
    throw refused
  }
}

/**
 * Reserves tokens, budget and a concurrent call for an attached call (gates 5 and 6 of the list above). Returns
 * undefined if no limit applies.
 *
 * @param signalOf Returns the signal that ends a wait for the budget
 * @throws ServiceError `token_limit_exceeded`, `rate_limit_exceeded`, `insufficient_quota`, `permission_denied`
 */
export function admitCall(
  context: Limiting,
  key: KeyOf,
  call: AdmittedCall,
  signalOf: () => AbortSignal,
): Promise<AdmittedSlot> | undefined {
  const reserving = admit(context, key, call, signalOf)
  if (!reserving) return context.limits.enterProject(key)?.then((leave) => ({ leave }))
  return reserving.then(async (admission) => {
    try {
      return { admission, leave: (await context.limits.enterProject(key)) ?? (() => {}) }
    } catch (refused) {
      admission.release()
      throw refused
    }
  })
}

function admit(
  context: Limiting,
  key: KeyOf,
  call: AdmittedCall,
  signalOf?: () => AbortSignal,
): Promise<Admission> | undefined {
  // A batch itself reserves nothing, because each of its requests reserves its own tokens and budget.
  if (call.pool === 'batches') return undefined
  const { budgets, limits } = context
  return budgets.bounds(key) || limits.hasTokenLimit(key) ? reserve(context, key, call, signalOf) : undefined
}

async function reserve(
  { budgets, limits, models }: Limiting,
  key: KeyOf,
  call: AdmittedCall,
  signalOf: (() => AbortSignal) | undefined,
): Promise<Admission> {
  const { tokens, nanos } = await runYielding(estimateOf(call, models.priceOf(call)))
  let settleTokens: ((used: number) => void) | undefined = await limits.reserveTokens(key, tokens)
  const useTokens = (used: number) => {
    settleTokens?.(used)
    settleTokens = undefined
  }
  const reserving = signalOf ? budgets.reserveOrWait(key, nanos, signalOf) : budgets.reserve(key, nanos)
  const held = await reserving.catch((error: unknown) => {
    useTokens(0)
    throw error
  })
  return {
    nanos: held.nanos,
    useTokens,
    settle(cost, entered) {
      useTokens(0)
      held.settle(cost, entered)
    },
    handOver: () => held.handOver(),
    release() {
      useTokens(0)
      held.release()
    },
  }
}

export interface AdmittingJobs extends Limiting {
  readonly keys: { limited(keyId: string, tenant: string): KeyOf }
  readonly log: Log
  readonly closing: AbortSignal
}

/** Reserved budget of a durable job until the job is stored. The code that made the reservation calls either `handOver` or `release`, once. */
export interface JobAdmission {
  readonly nanos: number
  handOver(job: Pick<DurableJob, 'id' | 'tenant'>): void
  release(): void
}

interface EndOfJobs {
  waitForEnd(tenant: string, id: string, signal: AbortSignal, pollMs: number): Promise<{ readonly usage: unknown }>
}

/**
 * Reserves tokens and budget for a durable job (gate 5 of the list above). Returns undefined if no limit applies. If this process stops before the
 * job ends, then the job's tokens are never counted.
 */
export function admitJob(
  context: AdmittingJobs,
  jobs: () => EndOfJobs,
  job: AdmittedCall & { readonly keyId?: string; readonly tenant: string },
): Promise<JobAdmission> | undefined {
  const key = context.keys.limited(job.keyId ?? job.tenant, job.tenant)
  return admit(context, key, job)?.then((admission) => ({
    nanos: admission.nanos,
    release: () => admission.release(),
    handOver(created) {
      admission.handOver()
      if (context.limits.hasTokenLimit(key)) void spendTokens(context, jobs(), created, admission)
      else admission.useTokens(0)
    },
  }))
}

async function spendTokens(
  { closing, log }: AdmittingJobs,
  jobs: EndOfJobs,
  { id, tenant }: Pick<DurableJob, 'id' | 'tenant'>,
  admission: Admission,
): Promise<void> {
  try {
    const { usage } = await jobs.waitForEnd(tenant, id, closing, TOKENS_POLL_MS)
    admission.useTokens(tokensOf(usage))
  } catch (error) {
    log.info(
      { err: error, job_id: id },
      'tokens of a durable job could not be read; the rate limit counts 0 tokens for the job',
    )
    admission.useTokens(0)
  }
}

function tokensOf(usage: unknown): number {
  const { prompt_tokens, completion_tokens, input_tokens, output_tokens } = (usage ?? {}) as Record<string, number>
  return (prompt_tokens ?? input_tokens ?? 0) + (completion_tokens ?? output_tokens ?? 0)
}

/** Interval in ms at which pauses are read from the store. A control record usually announces a pause earlier, but may be lost. */
const READ_MS = 3_000
/** Retry-After for paused work, in ms. The duration of a pause is unknown, so the value is a guess. */
const PAUSED_RETRY_AFTER_MS = 30_000

interface PausableWork {
  readonly pool: PoolName
  readonly model: string
}

/**
 * Paused models and pools (docs/operate/operations.md, Pause a model or a pool). Each process has one instance. If there is a store, then the pauses
 * are read from its table periodically. Otherwise pauses come only from control records.
 */
export class Pauses {
  readonly #store: OperatorStore | undefined
  readonly #log: Log
  readonly #paused = new Map<string, Pause>()
  #changes = 0
  #isStale = false
  #timer: NodeJS.Timeout | undefined
  #isClosed = false

  private constructor(store: OperatorStore | undefined, log: Log) {
    this.#store = store
    this.#log = log
  }

  /**
   * Opens an instance with the stored pauses. If the store is unreachable, then the pauses are read at the next poll. The caller must close the
   * instance.
   */
  static async open(store: OperatorStore | undefined, log: Log): Promise<Pauses> {
    const pauses = new Pauses(store, log)
    if (store) await pauses.#readForEver()
    return pauses
  }

  /** True if pauses are stored, so that they survive a restart and apply to processes that start later. */
  get isPersistent(): boolean {
    return this.#store !== undefined
  }

  get all(): readonly Pause[] {
    return [...this.#paused.values()]
  }

  of({ pool, model }: PausableWork): Pause | undefined {
    if (this.#paused.size === 0) return undefined
    return (
      this.#paused.get(keyOf({ target: 'pool', id: pool })) ?? this.#paused.get(keyOf({ target: 'model', id: model }))
    )
  }

  refuse(work: PausableWork): void {
    const pause = this.of(work)
    if (!pause) return
    const message = `${sentenceOf(pause)} Try again later.`
    throw new ServiceError('overloaded', message, {
      retryAfterMs: PAUSED_RETRY_AFTER_MS,
      isUndone: true,
      reason: 'paused',
    })
  }

  /**
   * Starts or ends a pause for all processes.
   *
   * @param send Publishes the change to all processes
   * @throws ServiceError `overloaded`
   */
  async change(
    target: PauseTarget,
    isPaused: boolean,
    by: string,
    send: (record: ControlRecord) => void,
  ): Promise<void> {
    if (isPaused) await this.#store?.pause(target, by)
    else await this.#store?.resume(target)
    this.#apply(target, isPaused, by)
    send({ type: 'pause_work', ...target, paused: isPaused, by })
  }

  onControl(record: ControlRecord): void {
    if (record.type === 'pause_work') this.#apply(record, record.paused, record.by)
  }

  close(): void {
    this.#isClosed = true
    clearTimeout(this.#timer)
  }

  #apply({ target, id }: PauseTarget, isPaused: boolean, by: string): void {
    this.#changes++
    const key = keyOf({ target, id })
    if (!isPaused) this.#paused.delete(key)
    else if (!this.#paused.has(key)) this.#paused.set(key, { target, id, by, since_ms: Date.now() })
  }

  async #readForEver(): Promise<void> {
    await this.#read()
    if (!this.#isClosed) this.#timer = setTimeout(() => void this.#readForEver(), untilAligned(READ_MS)).unref()
  }

  async #read(): Promise<void> {
    const before = this.#changes
    try {
      const read = await this.#store?.listPauses()
      this.#isStale = false
      // A pause that changed during the read may be missing in the result, so the result is dropped.
      if (!read || before !== this.#changes) return
      this.#paused.clear()
      for (const pause of read) this.#paused.set(keyOf(pause), pause)
    } catch (error) {
      // Only the first failure is logged, because an outage may last for hours.
      if (!this.#isStale && !this.#isClosed)
        this.#log.warn(
          { err: error },
          'paused models and pools could not be read from the store; the last known pauses apply',
        )
      this.#isStale = true
    }
  }
}

export function sentenceOf({ target, id }: PauseTarget): string {
  return `The ${target} '${id}' is paused by the operator of this service.`
}

function keyOf({ target, id }: PauseTarget): string {
  return `${target} ${id}`
}

const ACTIVE_MS = 10_000
/**
 * Maximum concurrent submissions in this process. All projects share these permits. A submission needs a permit only if a project other than its own
 * has made a call in the last {@link ACTIVE_MS}.
 */
const PERMITS = 2
/** A submission that takes at most this long, in ms, causes no pause. Only the time beyond this duration counts for the pause. */
const FREE_RUN_MS = 2
const PAUSE_FACTOR = 2
const PAUSE_MS_MAX = { submission: 200, batchLine: 500 }
const WAITING_MAX = 1_000
const WAIT_MS_MAX = 30_000
const SUBMIT_RETRY_AFTER_MS = 2_000

/**
 * Slows down the submission of durable jobs and batch lines while clients wait for calls.
 *
 * The problem: a submission costs the event loop and the store several times as much as an attached call. No client waits for the result of a
 * submission. When thousands of submissions arrived at the same time, each attached call of other projects was delayed by a hundred submissions.
 *
 * How it works: the duration of a submission shows the load of the store and of this process. Each submission is followed by a pause of
 * {@link PAUSE_FACTOR} times its duration beyond {@link FREE_RUN_MS}. Example: a submission of 12 ms is followed by 20 ms.
 * 1. While *other* projects make calls, a submission needs one of {@link PERMITS} permits, which rotate among the projects. The permit is free again
 *    after the pause.
 * 2. While *any* project makes calls, the lines of all batches wait for the pauses of earlier lines (docs/internals/design.md, Composed jobs). Fewer
 *    lines per second then become jobs, which reduces all load that the batch causes.
 */
export class SubmitQueue {
  readonly #permits = new Semaphore({ permits: PERMITS, waitingPerKeyMax: WAITING_MAX, refusal: tooManySubmissions })
  #last = { project: '', atMs: Number.NEGATIVE_INFINITY }
  #before = { project: '', atMs: Number.NEGATIVE_INFINITY }
  #nextLineAtMs = 0

  recordCall(project: string): void {
    if (this.#last.project !== project) this.#before = this.#last
    this.#last = { project, atMs: performance.now() }
  }

  /**
   * Runs `submit` as soon as the project has a permit.
   *
   * @throws The errors of `submit`. ServiceError `rate_limit_exceeded` if too many submissions wait or this submission waits too long. The reason of
   * the signal
   */
  async run<T>(project: string, submit: () => Promise<T>, signal: AbortSignal): Promise<T> {
    const others = this.#last.project === project ? this.#before : this.#last
    if (performance.now() - others.atMs >= ACTIVE_MS) return await submit()
    const late = AbortSignal.timeout(WAIT_MS_MAX)
    await this.#permits.take(AbortSignal.any([signal, late]), 1, project).catch((error: unknown) => {
      throw late.aborted && !signal.aborted ? tooManySubmissions() : error
    })
    const startedAt = performance.now()
    try {
      return await submit()
    } finally {
      const pauseMs = Math.min(pauseAfter(startedAt), PAUSE_MS_MAX.submission)
      setTimeout(() => this.#permits.release(1, project), pauseMs)
    }
  }

  /**
   * Runs `submit`, which creates a job from a line of a batch, after a delay. The delay grows with the duration of earlier submissions.
   *
   * @throws The errors of `submit`, or the reason of the signal
   */
  async runLine<T>(submit: () => Promise<T>, signal: AbortSignal): Promise<T> {
    for (let waitMs = this.#lineDelayMs; waitMs > 0; waitMs = this.#lineDelayMs) {
      await abortable(new Promise((resolve) => setTimeout(resolve, waitMs)), signal)
    }
    const startedAt = performance.now()
    try {
      return await submit()
    } finally {
      const now = performance.now()
      const nextAtMs = Math.max(now, this.#nextLineAtMs) + pauseAfter(startedAt)
      this.#nextLineAtMs = Math.min(now + PAUSE_MS_MAX.batchLine, nextAtMs)
    }
  }

  get #lineDelayMs(): number {
    const now = performance.now()
    return now - this.#last.atMs > ACTIVE_MS ? 0 : Math.ceil(this.#nextLineAtMs - now)
  }
}

function pauseAfter(startedAtMs: number): number {
  return PAUSE_FACTOR * Math.max(0, performance.now() - startedAtMs - FREE_RUN_MS)
}

function tooManySubmissions(): ServiceError {
  const message = 'Too many jobs of this project are waiting to be stored. Try again in 2 s.'
  return new ServiceError('rate_limit_exceeded', message, { retryAfterMs: SUBMIT_RETRY_AFTER_MS, isUndone: true })
}
