/** Lease for the purge. Only one process purges at a time, because two concurrent purges would wait for each other's rows. */
export const PURGE_LEASE = 'purge'

/** Lease that `Sweeps.reap` requires. The duration must be less than a process lease minus the renewal interval. */
export const REAPER_LEASE = 'reaper'

export interface Leases {
  /**
   * Renews the lease of a process for `leaseMs` and returns the jobs that it owns. A job that runs in the process but is not
   * returned was taken away. If crashes were counted because the process seemed dead, then a renewal subtracts them again.
   */
  renew(process: ProcessLease): Promise<OwnedJob[]>
  /** Ends the lease of a process, so that the reaper may take its jobs at once. */
  deregister(boot: string): Promise<void>
  /** Takes or renews a named lease, unless another process holds it. */
  holdLease(name: string, boot: string, leaseMs: number): Promise<boolean>
  releaseLease(name: string, boot: string): Promise<void>
}

export interface ProcessLease {
  readonly boot: string
  readonly role: string
  readonly slots: number
  readonly version: string
  readonly draining: boolean
  /** Milliseconds from now after which the process counts as dead, unless it renews. */
  readonly leaseMs: number
}

export interface OwnedJob {
  readonly id: string
  readonly attempt: number
  /** The job must stop: a cancel was requested, without a grace period for a partial result. */
  readonly isCancelRequested: boolean
  /** A cancel was requested, and the job should write its partial result. */
  readonly isToWrapUp: boolean
}
