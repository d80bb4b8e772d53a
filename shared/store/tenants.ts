import type { DurableState, Priority } from '#schemas/durable-job.ts'
import type { PoolName } from '#schemas/job.ts'

/** Says whose the jobs are that have not ended: it bounds what one tenant may have, and tells whose turn it is. */
export interface TenantReads {
  /** How many jobs of each tenant wait and run. Reads those only, however many are kept. */
  depth(): Promise<TenantDepth[]>
  /** How many jobs of each tenant are queued for the same slots. */
  queued(of: Lane): Promise<{ readonly tenant: string; readonly count: number }[]>
  /** Where the jobs of one tenant among them stand: {@link EXACT_PLACES} of the oldest, then each {@link PLACES_STEP}th. */
  places(of: Lane, tenant: string): Promise<QueuedPlace[]>
  /** How many jobs of a tenant run now. */
  running(tenant: string): Promise<number>
  /** How many jobs that were submitted with a key wait to be started, and for their time. */
  waitingOfKey(keyId: string): Promise<Record<'queued' | 'scheduled', number>>
  /** Whether any job waits for these slots, be it that its tenant runs as much as it may. */
  isWaiting(of: Lane): Promise<boolean>
  /**
   * Has every claim keep to these limits from now on. A store that many processes share goes by those that are kept beside it
   * (shared/keys/postgres.ts), and by the calls that all ingresses have said (shared/limits/).
   */
  limitRunning(limits: RunningLimits): void
}

/** How many calls and durable jobs of each tenant may run at once, and how many calls do. Asked in the middle of a claim. */
export interface RunningLimits {
  /** Undefined: any number. */
  mostOf(tenant: string): number | undefined
  callsOf(tenant: string): number
}

/** What jobs have in common that wait for the same slots. */
interface Lane {
  readonly pool: PoolName
  readonly kind: string
  readonly model: string
  readonly priority: Priority
}

/** How many jobs of one tenant are in one state. */
export interface TenantDepth {
  readonly tenant: string
  readonly state: Extract<DurableState, 'queued' | 'scheduled' | 'in_progress' | 'waiting'>
  readonly count: number
}

/** A queued job, and the how manieth of its tenant it is, from 1; the oldest first. */
export interface QueuedPlace {
  readonly id: string
  readonly nth: number
}

/** Jobs of a tenant whose places are told one by one. */
export const EXACT_PLACES = 1_000
/** Of the others one in so many is told. */
export const PLACES_STEP = 100
/** Jobs of a tenant that are looked at. */
export const PLACES_MAX = 10_000
