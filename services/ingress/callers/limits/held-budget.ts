import { Running } from './running.ts'

/**
 * Time for which a cost is still published after the ledger has it. The other ingresses read the ledger once a second.
 */
const PUBLISHED_MS = 3_000

/** Amounts of a budget in the ledger, in billionths of a US dollar. */
interface LedgerAnswer {
  readonly costNanos: number
  readonly reservedNanos: number
}

/**
 * Amounts that this ingress holds of one budget in one month, in billionths of a US dollar. Included are reservations
 * of running calls, and amounts in the store that the last read of the ledger cannot contain. The next read takes these
 * over.
 *
 *     attached: reserved ──call ends──▶ cost ──entry written──▶ cost, unread ──next read──▶ spent
 *     durable:  reserved ──job created──▶ hold, unread ──next read──▶ ofJobs
 */
export class HeldBudget {
  readonly month: string
  askedAtMs = Number.NEGATIVE_INFINITY
  /** Time of the last read of the ledger, successful or failed. */
  heardAtMs = Number.NEGATIVE_INFINITY
  reading: Promise<void> | undefined
  /** Amounts that this ingress publishes to the others, and those that they published. */
  readonly running: Running
  /** Amounts in the ledger: costs, and reservations of unfinished durable jobs. */
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

  /** Estimated cost of calls and jobs in flight, in the whole fleet. */
  underWay(nowMs: number): number {
    return this.#reserved + this.#unread.holds + this.#ofJobs + this.running.elsewhere(nowMs)
  }

  /** Whether the store has amounts that no read has returned yet. */
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

  settle(nanos: number, cost: number): void {
    this.release(nanos)
    this.#costs += cost
    this.running.here += cost
  }

  enter(cost: number): void {
    this.#costs -= cost
    this.#unread.costs += cost
  }

  /** Transfers a reservation to a stored durable job. */
  handOver(nanos: number): void {
    this.#reserved -= nanos
    this.#unread.holds += nanos
  }

  /**
   * Reads the ledger. The answer then replaces the amounts that were in the store before.
   *
   * @param onLess Called when the published amount shrinks, after the other ingresses have had time to read the ledger.
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
