import { Running } from './running.ts'

/**
 * Time for which an amount is still published after this ingress has read it from the ledger. The other ingresses read
 * the ledger once a second, so after this time they have the amount, too.
 */
const PUBLISHED_MS = 3_000

/** Amounts of one budget in the ledger, in billionths of a US dollar. */
interface LedgerAnswer {
  readonly costNanos: number
  readonly reservedNanos: number
}

/**
 * Amounts of one budget in one month that this ingress counts itself, in billionths of a US dollar. Included are
 * reservations of running calls, and amounts in the store that the last read of the ledger did not contain. The next
 * read contains the latter.
 *
 *     attached: reserved ──call ends──▶ cost ──entry written──▶ cost, unread ──next read──▶ spent
 *     durable:  reserved ──job created──▶ hold, unread ──next read──▶ ofJobs
 */
export class HeldBudget {
  readonly month: string
  requestedAtMs = Number.NEGATIVE_INFINITY
  /** Time of the last read of the ledger, successful or failed. */
  readAtMs = Number.NEGATIVE_INFINITY
  reading: Promise<void> | undefined
  /** Amounts that this ingress publishes, and the sum that the other ingresses published. */
  readonly running: Running
  /** Last read of the ledger: `#spent` are costs, `#ofJobs` reservations of unfinished durable jobs. */
  #spent = 0
  #ofJobs = 0
  #reserved = 0
  #costs = 0
  readonly #unread = { costs: 0, holds: 0 }

  constructor(name: string, month: string) {
    this.month = month
    this.running = new Running(name)
  }

  get known(): number {
    return this.#spent + this.#costs + this.#unread.costs
  }

  /** Estimated cost of all calls and jobs in flight, in the whole fleet. */
  underWay(nowMs: number): number {
    return this.#reserved + this.#unread.holds + this.#ofJobs + this.running.elsewhere(nowMs)
  }

  /** Whether amounts are in the store that no read has returned yet. */
  get isUnread(): boolean {
    return this.#unread.costs + this.#unread.holds > 0
  }

  reserve(nanos: number): void {
    this.#reserved += nanos
    this.running.local += nanos
  }

  release(nanos: number): void {
    this.#reserved -= nanos
    this.running.local -= nanos
  }

  settle(nanos: number, cost: number): void {
    this.release(nanos)
    this.#costs += cost
    this.running.local += cost
  }

  enter(cost: number): void {
    this.#costs -= cost
    this.#unread.costs += cost
  }

  /** Moves a reservation to a durable job that is now stored. */
  handOver(nanos: number): void {
    this.#reserved -= nanos
    this.#unread.holds += nanos
  }

  /**
   * Reads the ledger. Amounts that were in the store before the read are then no longer counted separately.
   *
   * @param onLess Called when the published amount shrinks, once the other ingresses have had time to read the ledger
   */
  async read(ask: () => Promise<LedgerAnswer>, onLess: () => void): Promise<void> {
    const { costs, holds } = this.#unread
    const { costNanos, reservedNanos } = await ask()
    this.#spent = costNanos
    this.#ofJobs = reservedNanos
    this.#unread.costs -= costs
    this.#unread.holds -= holds
    if (costs + holds === 0) return
    setTimeout(() => {
      this.running.local -= costs + holds
      onLess()
    }, PUBLISHED_MS).unref()
  }
}
