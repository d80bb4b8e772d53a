import { type FleetRunning, RUNNING_MS } from '#shared/limits/fleet-counts.ts'

/** Maximum age of the fleet's counts at which they count as current. */
const CACHE_TTL_MS = 1_000

/** Concurrent calls of one key or project: in this ingress, and in the others at the last synchronization. */
export class Running {
  readonly name: string
  here = 0
  told = 0
  heardAtMs = -Infinity
  #elsewhere = 0
  #jobs = 0

  constructor(name: string) {
    this.name = name
  }

  /**
   * Calls in other ingresses. The count expires here when it expires in the store, so that an outage does not occupy
   * slots.
   */
  elsewhere(nowMs: number): number {
    return nowMs - this.heardAtMs < RUNNING_MS ? this.#elsewhere : 0
  }

  /** Running durable jobs of the project; expires as {@link elsewhere} does. */
  jobs(nowMs: number): number {
    return nowMs - this.heardAtMs < RUNNING_MS ? this.#jobs : 0
  }

  all(nowMs: number): number {
    return this.here + this.elsewhere(nowMs)
  }

  isFresh(nowMs: number): boolean {
    return nowMs - this.heardAtMs < CACHE_TTL_MS
  }

  hear({ elsewhere, jobs }: Pick<FleetRunning, 'elsewhere' | 'jobs'>, nowMs: number): void {
    this.#elsewhere = elsewhere
    this.#jobs = jobs
    this.heardAtMs = nowMs
  }
}
