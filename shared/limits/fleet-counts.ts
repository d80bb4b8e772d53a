/** Names that one call takes at most. */
export const NAMES_MAX = 500
/** How long a limit a minute counts what was used, in milliseconds. */
export const WINDOW_MS = 60_000
/** How long what an ingress has said about its running calls counts, in milliseconds; it says it again before. */
export const RUNNING_MS = 15_000

/** What the whole fleet has used in the minute under way. */
export interface FleetWindow {
  readonly name: string
  readonly used: number
  /** Milliseconds until the next one begins. */
  readonly leftMs: number
}

/** What runs beside the calls of one process, of what one name counts. */
export interface FleetRunning {
  readonly name: string
  /** Calls in other processes. */
  readonly elsewhere: number
  /** Durable jobs, in the whole fleet. */
  readonly jobs: number
}

/** Under which name those calls of a tenant are counted that leave the rest of its places to durable jobs. */
export function callsName(tenant: string): string {
  return `calls ${tenant}`
}

/**
 * What all ingresses of a fleet count together, by the name of what is counted. A table of Postgres; an embedded service has
 * one ingress, which needs nobody to count with.
 *
 * Promises every adapter keeps (test/shared/limits/fleet-counts.test.ts):
 * - Of writers that write at once each sees what those before it have written: sums are exact.
 * - A minute begins with its first use. Only the clock of the store counts, and one that jumps back begins a new minute.
 * - What a process has said about its running calls ends {@link RUNNING_MS} after it last said so: nobody who dies holds a place.
 * - Nothing here is worth keeping: the store may lose it all when it breaks.
 * - While it cannot be reached every call rejects, at once when `isReachable` is false; it works again by itself.
 */
export interface FleetCounts {
  readonly isReachable: boolean
  /** Adds what was used, or gives it back below 0; 0 only asks. Gives each name, which may come once, at most {@link NAMES_MAX}. */
  add(used: readonly { readonly name: string; readonly amount: number }[]): Promise<FleetWindow[]>
  /**
   * Says how many calls run in the process `boot`. Gives how many run in all others, for each name, with the bounds of {@link add};
   * of a name that {@link callsName} makes also how many durable jobs do: from then on claims keep to what was said.
   */
  setRunning(
    boot: string,
    running: readonly { readonly name: string; readonly count: number }[],
  ): Promise<FleetRunning[]>
  /** Lets go of everything. Tolerates a second call. */
  close(): Promise<void>
}
