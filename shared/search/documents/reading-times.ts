/** Time in ms for which a project counts as active after its last document. */
const ACTIVE_MS = 2_000
/** Maximum advantage in ms of a project that becomes active. A run that reads 18 ordinary pages needs about 200 ms. */
const HEAD_START_MS = 250

/**
 * Compares how long the documents of projects occupied threads.
 *
 * The method is start-time fair queueing. Each active project has a virtual time, in ms: the reading time of its documents. Idle time cannot be
 * saved up, because a project that becomes active starts at most {@link HEAD_START_MS} below the lowest virtual time.
 *
 * Example: A is at 9,000 ms when B reads its first page. B starts at 8,750 ms. A is ahead until B has used 250 ms. Afterwards, A and B alternate.
 */
export class ReadingTimes {
  readonly #active = new Map<string, { readonly virtualMs: number; readonly usedAtMs: number }>()

  /** Adds the reading time of a document that ended at `nowMs`. */
  add(project: string, ms: number, nowMs: number): void {
    for (const [name, { usedAtMs }] of this.#active) if (nowMs - usedAtMs > ACTIVE_MS) this.#active.delete(name)
    const startMs = this.#active.get(project)?.virtualMs ?? Math.max(0, this.#lowestMs() - HEAD_START_MS)
    this.#active.set(project, { virtualMs: startMs + ms, usedAtMs: nowMs })
  }

  /** Whether an active project has a lower virtual time. */
  isAhead(project: string): boolean {
    return (this.#active.get(project)?.virtualMs ?? 0) > this.#lowestMs()
  }

  #lowestMs(): number {
    const times = Array.from(this.#active.values(), ({ virtualMs }) => virtualMs)
    return times.length === 0 ? 0 : Math.min(...times)
  }
}
