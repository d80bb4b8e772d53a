import type { DurableState, Priority } from '#schemas/durable-job.ts'
import type { PoolName } from '#schemas/job.ts'

/** Unended jobs by tenant: the basis of limits per tenant and of fair queues. */
export interface TenantReads {
  /** Number of queued and running jobs per tenant. The cost depends only on the number of these jobs. */
  depth(): Promise<TenantDepth[]>
  queued(of: Lane): Promise<{ readonly tenant: string; readonly count: number }[]>
  /**
   * Positions of a tenant's queued jobs among its own jobs: of each of the {@link EXACT_POSITIONS} oldest jobs, then of one job
   * per {@link POSITIONS_STEP}.
   */
  positions(of: Lane, tenant: string): Promise<QueuedPosition[]>
  running(tenant: string): Promise<number>
  waitingOfKey(keyId: string): Promise<Record<'queued' | 'scheduled', number>>
  /** Whether any job is queued for these slots, including jobs of tenants at their limits. */
  isWaiting(of: Lane): Promise<boolean>
  /**
   * Sets the limits that every later claim respects. A store shared by many processes ignores this. Claims then read the stored limits
   * (shared/keys/postgres.ts) and the calls that all ingresses have reported (shared/capacity/fleet-counts.ts).
   */
  limitRunning(limits: RunningLimits): void
}

/** Maximum concurrent calls and durable jobs of each tenant, and the number of its running calls. Called during a claim. */
export interface RunningLimits {
  mostOf(tenant: string): number | undefined
  callsOf(tenant: string): number
}

interface Lane {
  readonly pool: PoolName
  readonly kind: string
  readonly model: string
  readonly priority: Priority
}

export interface TenantDepth {
  readonly tenant: string
  readonly state: Extract<DurableState, 'queued' | 'scheduled' | 'in_progress' | 'waiting'>
  readonly count: number
}

export interface QueuedPosition {
  readonly id: string
  readonly nth: number
}

/** Number of a tenant's oldest jobs whose positions are all returned. */
export const EXACT_POSITIONS = 1_000
/** Beyond {@link EXACT_POSITIONS}, only one position per this many jobs is returned. */
export const POSITIONS_STEP = 100
/** Maximum number of waiting jobs of a tenant that are read to determine positions in the queue. */
export const POSITIONS_MAX = 10_000
