/** The lease of whoever purges: two at once would wait for each other's rows. */
export const PURGE_LEASE = 'purge'

/** The lease that `Sweeps.reap` asks for. Hold it for less than a process lease less its renewal interval. */
export const REAPER_LEASE = 'reaper'

/** Who is alive, and who does what alone; part of the store port. */
export interface Leases {
  /**
   * Says that a process lives for `leaseMs` more. Gives the jobs it owns: what it runs but is not here was taken away. That is
   * no crash of those jobs, since the process did not die of them.
   */
  renew(process: ProcessLease): Promise<OwnedJob[]>
  /** Says that a process is gone: what it still owns may be reaped at once. */
  goodbye(boot: string): Promise<void>
  /** Takes or renews a named lease, unless another holds it. */
  holdLease(name: string, boot: string, leaseMs: number): Promise<boolean>
  releaseLease(name: string, boot: string): Promise<void>
}

/** What a process tells of itself when it renews its lease. */
export interface ProcessLease {
  /** Boot id: unique for each start. */
  readonly boot: string
  readonly role: string
  readonly slots: number
  readonly version: string
  readonly draining: boolean
  /** Milliseconds from now after which the process counts as dead, unless it renews. */
  readonly leaseMs: number
}

/** A job that the store gives to the process which renews its lease. */
export interface OwnedJob {
  readonly id: string
  readonly attempt: number
  /** It is to stop: its cancel was asked for, and there is no time to write what there is. */
  readonly isCancelRequested: boolean
  /** Its cancel was asked for, and it is to write what there is. */
  readonly isToWrapUp: boolean
}
