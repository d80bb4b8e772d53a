import { type FleetRunning, RUNNING_MS } from '#shared/limits/fleet-counts.ts'

/** What was heard within this is as good as now. */
const CACHE_TTL_MS = 1_000

/** Calls that run at once of one key or project: here, and in the other ingresses as they were last heard. */
export class Running {
  /** How the fleet knows it. */
  readonly name: string
  here = 0
  /** How many the fleet was last told. */
  told = 0
  heardAtMs = -Infinity
  #elsewhere = 0
  #jobs = 0

  constructor(name: string) {
    this.name = name
  }

  /** What others said counts no longer here than it does for the fleet: an outage must not keep places taken. */
  elsewhere(nowMs: number): number {
    return nowMs - this.heardAtMs < RUNNING_MS ? this.#elsewhere : 0
  }

  /** Durable jobs that run beside, where they count: as long as {@link elsewhere}. */
  jobs(nowMs: number): number {
    return nowMs - this.heardAtMs < RUNNING_MS ? this.#jobs : 0
  }

  /** Calls here and elsewhere. */
  all(nowMs: number): number {
    return this.here + this.elsewhere(nowMs)
  }

  /** Whether the fleet was heard just now. */
  isFresh(nowMs: number): boolean {
    return nowMs - this.heardAtMs < CACHE_TTL_MS
  }

  /** The fleet has heard of `told`, and says what runs beside. */
  hear({ elsewhere, jobs }: Pick<FleetRunning, 'elsewhere' | 'jobs'>, nowMs: number): void {
    this.#elsewhere = elsewhere
    this.#jobs = jobs
    this.heardAtMs = nowMs
  }
}
