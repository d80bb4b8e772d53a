import type { DurableJob } from '#schemas/durable-job.ts'
import type { PoolName } from '#schemas/job.ts'
import type { Price } from '#schemas/price.ts'
import type { ApiKey } from '#shared/keys/keys.ts'
import { runYielding } from '#shared/lib/yielding.ts'
import type { Log } from '#shared/log/log.ts'
import { estimateOf } from '#shared/usage/estimate.ts'
import type { Budgets } from './budgets.ts'
import type { RateLimits, RemainingLimit } from './rate-limits.ts'

/*
 * The gates that a call passes, in this order. A gate delays the call, or refuses it with an error that states when to try again.
 * Each line names the gate, what the gate protects, the answer to a refused caller, the setting, and the class.
 *
 *  1. Requests per minute and concurrent calls of a key. Protects other keys. 429. RATE_LIMIT_REQUESTS, CONCURRENCY_MAX_PER_KEY,
 *     and the limits of keys and projects. RateLimits.
 *  2. Budget that is already spent. Protects the money of the project. 429 insufficient_quota. Budget of a key or project. Budgets.
 *  3. Bytes of request bodies in memory. Protects the ingress. 503. BODY_BUDGET_BYTES. ByteBudget.
 *  4. Code runs of an end user. Protects other end users of the key. 429. CODE_RUNS_PER_USER. RateLimits.
 *  5. Reserved tokens and budget. Protects both limits against bursts. 429. RATE_LIMIT_TOKENS, and the budget. RateLimits, Budgets.
 *  6. Concurrent calls and jobs of a project. Protects other projects. 429. Limit `running` of the project. RateLimits.
 *  7. Calls in flight. Protects the memory of the ingress. 503. JOBS_MAX. AttachedJobs.
 *  8. Paused pool or model. Protects what the operator repairs. 503. Admin API. Pauses.
 *  9. Estimated wait. Protects callers from a wait that ends in a timeout. 503 with Retry-After. START_TIMEOUT_MS. AdmissionControl.
 * 10. Fair queue of tenants. Protects tenants from each other. The call waits. No setting. TenantDispatcher.
 * 11. Free slot of a worker. Protects the worker. The call waits. INFERENCE_SLOTS and its siblings. Poller.
 * 12. Permit of the model. Protects other models of the worker. The call waits, or another worker takes it. This worker's part of
 *     the `concurrency` of the model. ModelBulkheads, ParkedCalls.
 * 13. Bytes of bodies from blobs. Protects the memory of the worker. The call waits. BODY_BUDGET_BYTES. Semaphore.
 * 14. Adaptive limit and circuit breaker of a server. Protects the upstream. Another server, or 503. The `concurrency` of the model
 *     is the maximum of the limit, for all workers together. AdaptiveLimit, Breaker.
 *
 * A durable job passes gates 1 to 5, a to c when it is submitted, then 11, 12, d, 13 and 14:
 *
 *  a. Free disk space and stored bytes of the project. Protects the disk. 503, or 429 insufficient_quota. DISK_FREE_BYTES_MIN,
 *     FILES_BYTES_MAX_PER_PROJECT. StoredQuota.
 *  b. One of two permits of the ingress while other projects make calls. Protects those calls. The job waits; after 30 s 429. No
 *     setting. SubmitQueue.
 *  c. Number of jobs. Protects other projects and the store. 429, or 503. DURABLE_JOBS_MAX and its siblings. JobQuota.
 *  d. Claim in turn of tenants. The job stays queued while its pool or model is paused, or its project is at the limit of gate 6.
 *
 * A line of a batch passes gates 1, 5, and a to c when the line becomes a job.
 *
 * Some kinds have a gate of their own. Embeddings, documents, embedded models and WebAssembly wait for a Semaphore. Audio beyond the
 * AudioQuota of its tenant is refused with 429. `shared/lib/yielding.ts` bounds how long work may hold the event loop.
 */

/**
 * Poll interval for the end of a job. The interval is long because a notification nearly always arrives first, and thousands of
 * jobs may be pending for days.
 */
const TOKENS_POLL_MS = 600_000

export interface Admission {
  readonly nanos: number
  /** Replaces the reserved tokens by the tokens used. Call this method or {@link release} once. */
  useTokens(tokens: number): void
  /**
   * Replaces the reserved budget by the cost of the ended call.
   *
   * @param entered Resolves when the cost is in the ledger
   */
  settle(costNanos: number, entered: Promise<unknown>): void
  /**
   * Call when the durable job is stored. From then on, the store counts {@link nanos}, and the tokens are counted when the job
   * ends.
   */
  handOver(): void
  release(): void
}

export interface AdmittedSlot {
  /** Undefined if neither tokens nor budget are limited. */
  readonly admission?: Admission
  leave(): void
}

export interface AdmittedCall {
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
 * Gates 1 and 2 of the list above: counts a call before its body is read.
 *
 * @param isJob True for a durable job, which takes its slot in the concurrency limit of the project later, in the store
 * @returns function to call when the call has ended
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
 * Gates 5 and 6, for an attached call. Returns undefined if no limit applies.
 *
 * @throws ServiceError `token_limit_exceeded`, `rate_limit_exceeded`, `insufficient_quota`, `permission_denied`
 */
export function admitCall(context: Limiting, key: KeyOf, call: AdmittedCall): Promise<AdmittedSlot> | undefined {
  const reserving = admit(context, key, call)
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

function admit(context: Limiting, key: KeyOf, call: AdmittedCall): Promise<Admission> | undefined {
  // Each request of a batch reserves its own tokens and budget.
  if (call.pool === 'batches') return undefined
  const { budgets, limits } = context
  return budgets.bounds(key) || limits.hasTokenLimit(key) ? reserve(context, key, call) : undefined
}

async function reserve({ budgets, limits, models }: Limiting, key: KeyOf, call: AdmittedCall): Promise<Admission> {
  const { tokens, nanos } = await runYielding(estimateOf(call, models.priceOf(call)))
  let settleTokens: ((used: number) => void) | undefined = await limits.reserveTokens(key, tokens)
  const useTokens = (used: number) => {
    settleTokens?.(used)
    settleTokens = undefined
  }
  const held = await budgets.reserve(key, nanos).catch((error: unknown) => {
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

/** Reserved budget of a durable job until the job is stored. Call exactly one of the two methods, once. */
export interface JobAdmission {
  readonly nanos: number
  handOver(job: Pick<DurableJob, 'id' | 'tenant'>): void
  release(): void
}

interface EndOfJobs {
  waitForEnd(tenant: string, id: string, signal: AbortSignal, pollMs: number): Promise<{ readonly usage: unknown }>
}

/**
 * Gate 5, for a durable job. Returns undefined if no limit applies. If this process stops before the job ends, then the job's
 * tokens are never counted.
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
    log.info({ err: error, job_id: id }, 'tokens of a job could not be counted; its rate limit counts 0')
    admission.useTokens(0)
  }
}

function tokensOf(usage: unknown): number {
  const { prompt_tokens, completion_tokens, input_tokens, output_tokens } = (usage ?? {}) as Record<string, number>
  return (prompt_tokens ?? input_tokens ?? 0) + (completion_tokens ?? output_tokens ?? 0)
}
