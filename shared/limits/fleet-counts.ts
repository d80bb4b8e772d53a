export const NAMES_MAX = 500
export const WINDOW_MS = 60_000
/** Lifetime of an ingress's report of its running calls, in ms. The ingress renews the report earlier. */
export const RUNNING_MS = 15_000

export interface FleetWindow {
  readonly name: string
  readonly used: number
  /** Milliseconds until the next window begins. */
  readonly remainingMs: number
}

export interface FleetRunning {
  readonly name: string
  /** Number of calls that run in other processes. */
  readonly elsewhere: number
  readonly jobs: number
}

/** Counter name for the running calls of a tenant, which share a concurrency limit with the tenant's durable jobs. */
export function callsName(tenant: string): string {
  return `calls ${tenant}`
}

/**
 * Counts that all ingresses of a fleet share, by name; a table of Postgres. An embedded service has one ingress and needs none.
 *
 * Promises every adapter keeps (test/shared/limits/fleet-counts.test.ts).
 * 1. Concurrent writers see each other's sums, so totals are exact.
 * 2. A window begins with its first use. Only the clock of the store counts; if that clock jumps back, then a new window begins.
 * 3. A report of running calls expires {@link RUNNING_MS} after its last renewal, so a dead process holds no permits.
 * 4. The counts need not be durable: the store may lose all of them in a crash.
 * 5. While the store is unreachable, every call rejects, at once if `isReachable` is false. Calls succeed again when the store is back.
 */
export interface FleetCounts {
  readonly isReachable: boolean
  /**
   * Adds amounts and returns the present window of each name. A negative amount gives back; 0 only reads. At most {@link NAMES_MAX} names, each at
   * most once.
   */
  add(used: readonly { readonly name: string; readonly amount: number }[]): Promise<FleetWindow[]>
  /**
   * Reports the number of calls that run in the process `boot`, and returns the load of each name elsewhere. The bounds are those of {@link add}. For
   * a name of {@link callsName}, the result includes running durable jobs, and later claims take the report into account.
   */
  setRunning(
    boot: string,
    running: readonly { readonly name: string; readonly count: number }[],
  ): Promise<FleetRunning[]>
  close(): Promise<void>
}
