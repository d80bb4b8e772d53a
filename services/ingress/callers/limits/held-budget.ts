import { Running } from './running.ts'

/** How long a cost that the ledger has is still published to other ingresses, which read the ledger once a second. */
const PUBLISHED_MS = 3_000

/** Amounts of a budget in the ledger, in billionths of a US dollar. */
interface LedgerAnswer {
  readonly costNanos: number
  readonly reservedNanos: number
}

/**
 * Amounts that this ingress holds of one budget in one month, in billionths of a US dollar: reservations of calls that run, and amounts that
 * the store has and that its last read of the ledger cannot have. The read that begins next takes these over.
 *
 *     attached: reserved ──call ends──▶ cost ──entry written──▶ cost, unread ──next read──▶ spent
 *     durable:  reserved ──job created──▶ hold, unread ──next read──▶ ofJobs
 */
export class HeldBudget {
  readonly month: string
  askedAtMs = Number.NEGATIVE_INFINITY
  /** When the ledger last answered, or was last waited for in vain. */
  heardAtMs = Number.NEGATIVE_INFINITY
  reading: Promise<void> | undefined
  /** Amounts that this ingress publishes to the others, and those that they published. */
  readonly running: Running
  /** By the ledger: entered costs, and what unended durable jobs hold. */
  #spent = 0
  #ofJobs = 0
  #reserved = 0
  #costs = 0
  readonly #unread = { costs: 0, holds: 0 }

  constructor(name: string, month: string) {
    this.month = month
    this.running = new Running(name)
  }

  /** Costs that are known. */
  get known(): number {
    return this.#spent + this.#costs + this.#unread.costs
  }

  /** Estimated cost of calls and jobs in flight, in the whole fleet. */
  underWay(nowMs: number): number {
    return this.#reserved + this.#unread.holds + this.#ofJobs + this.running.elsewhere(nowMs)
  }

  /** Whether the store has amounts that no read has given. */
  get isUnread(): boolean {
    return this.#unread.costs + this.#unread.holds > 0
  }

  reserve(nanos: number): void {
    this.#reserved += nanos
    this.running.here += nanos
  }

  release(nanos: number): void {
    this.#reserved -= nanos
    this.running.here -= nanos
  }

  /** A call has ended, and its reservation becomes a cost. */
  settle(nanos: number, cost: number): void {
    this.release(nanos)
    this.#costs += cost
    this.running.here += cost
  }

  /** The ledger has the cost of a call. */
  enter(cost: number): void {
    this.#costs -= cost
    this.#unread.costs += cost
  }

  /** The store has a durable job, which holds its own reservation from now on. */
  handOver(nanos: number): void {
    this.#reserved -= nanos
    this.#unread.holds += nanos
  }

  /**
   * Reads the ledger. What the store had before counts by the answer from then on.
   *
   * @param onLess Called when less is published to the other ingresses, which may have read the ledger by then.
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
      this.running.here -= costs + holds
      onLess()
    }, PUBLISHED_MS).unref()
  }
}
