import { type FleetRunning, RUNNING_MS } from '#shared/limits/fleet-counts.ts'

/** Maximum age at which counts of the fleet are current. */
const CACHE_TTL_MS = 1_000

/**
 * Number of concurrent calls of one key or project: in this ingress now, and in the others at the last synchronization.
 */
export class Running {
  readonly name: string
  local = 0
  published = 0
  syncedAtMs = -Infinity
  #elsewhere = 0
  #jobs = 0

  constructor(name: string) {
    this.name = name
  }

  /**
   * Number of calls in other ingresses. The number expires here at the same time as in the store, so that it occupies
   * no slots during an outage.
   */
  elsewhere(nowMs: number): number {
    return nowMs - this.syncedAtMs < RUNNING_MS ? this.#elsewhere : 0
  }

  /** Number of running durable jobs of the project, with the same expiry. */
  jobs(nowMs: number): number {
    return nowMs - this.syncedAtMs < RUNNING_MS ? this.#jobs : 0
  }

  all(nowMs: number): number {
    return this.local + this.elsewhere(nowMs)
  }

  isFresh(nowMs: number): boolean {
    return nowMs - this.syncedAtMs < CACHE_TTL_MS
  }

  update({ elsewhere, jobs }: Pick<FleetRunning, 'elsewhere' | 'jobs'>, nowMs: number): void {
    this.#elsewhere = elsewhere
    this.#jobs = jobs
    this.syncedAtMs = nowMs
  }
}
