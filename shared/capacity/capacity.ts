import type { DurableJob } from '#schemas/durable-job.ts'
import type { PoolName } from '#schemas/job.ts'
import type { Price } from '#schemas/price.ts'
import type { ApiKey } from '#shared/keys/keys.ts'
import { runYielding } from '#shared/lib/yielding.ts'
import type { Log } from '#shared/log/log.ts'
import { estimateOf } from '#shared/usage/estimate.ts'
import type { Budgets } from './budgets.ts'
import type { RateLimits } from './rate-limits.ts'

/**
 * Interval at which a job is read until it has ended. Kept long, because a notification nearly always arrives first,
 * and thousands of jobs may be pending for days.
 */
const TOKENS_POLL_MS = 600_000

export interface Admission {
  /** Part of the budget that the durable job reserves in the store, in billionths of a US dollar. */
  readonly nanos: number
  /** Replaces the token reservation by the tokens used. Must be called once, unless {@link release} is called. */
  useTokens(tokens: number): void
  /**
   * Replaces the reserved budget by the cost of the ended call.
   *
   * @param entered Resolves when the cost is in the ledger
   */
  settle(costNanos: number, entered: Promise<unknown>): void
  /**
   * Ends this reservation once the durable job is stored: the store counts {@link nanos} from then on, and tokens are
   * settled when the job ends.
   */
  handOver(): void
  /** Releases tokens and budget of a call that did not run. */
  release(): void
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
 * Reserves tokens and budget for a call. Returns undefined if no limit applies.
 *
 * @throws ServiceError `token_limit_exceeded`, `rate_limit_exceeded`, `insufficient_quota`
 */
export function admit(context: Limiting, key: KeyOf, call: AdmittedCall): Promise<Admission> | undefined {
  // Each request of a batch has its own reservation, so the batch needs none.
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

/**
 * Reservation of a job in the budgets and limits of its project, until the store holds the job. Exactly one method is called,
 * once.
 */
export interface JobAdmission {
  /** Maximum cost, in billionths of a US dollar. */
  readonly nanos: number
  handOver(job: Pick<DurableJob, 'id' | 'tenant'>): void
  release(): void
}

interface EndOfJobs {
  waitForEnd(tenant: string, id: string, signal: AbortSignal, pollMs: number): Promise<{ readonly usage: unknown }>
}

/** {@link admit} for a durable job. The tokens used are counted only if this process still runs when the job ends. */
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
    log.info({ err: error, job_id: id }, 'job tokens not counted')
    admission.useTokens(0)
  }
}

function tokensOf(usage: unknown): number {
  const { prompt_tokens, completion_tokens, input_tokens, output_tokens } = (usage ?? {}) as Record<string, number>
  return (prompt_tokens ?? input_tokens ?? 0) + (completion_tokens ?? output_tokens ?? 0)
}
