import { openRandom, type Random } from '../../chaos/load/random.ts'

/** How long faults happen, in virtual time; then everything gets well. */
export const FAULTS_MS = 20_000

/** What may happen to a call of the store. */
export type StoreFate =
  | 'well'
  /** Refused before it changed anything. */
  | 'refused'
  /** Done, but its answer is lost. */
  | 'unanswered'
  /** Given up by its caller, and done all the same somewhat later. */
  | 'late'

/** What may happen to a record on its way into a queue or a channel. */
export type SendFate = 'well' | 'refused' | 'lost' | 'doubled' | 'unanswered'

/** What may happen to a record that is handed to a taker. */
export type DeliveryFate = 'well' | 'doubled' | 'released'

/** How likely each fault is per port call; 0 switches it off. */
interface Odds {
  readonly crash: number
  readonly storeRefused: number
  readonly storeUnanswered: number
  readonly storeLate: number
  readonly storeSlow: number
  readonly sendRefused: number
  readonly sendLost: number
  readonly sendDoubled: number
  readonly sendSlow: number
  readonly deliveryDoubled: number
  readonly deliveryReleased: number
  readonly recordMissed: number
}

/** The highest odds of each fault. */
const ODDS_MAX: Odds = {
  crash: 0.004,
  storeRefused: 0.06,
  storeUnanswered: 0.1,
  storeLate: 0.04,
  storeSlow: 0.1,
  sendRefused: 0.1,
  sendLost: 0.3,
  sendDoubled: 0.2,
  sendSlow: 0.2,
  deliveryDoubled: 0.2,
  deliveryReleased: 0.1,
  recordMissed: 0.1,
}

const SLOW_MS = 3_000

/** A time in which nobody could reach a port. */
export interface Outage {
  readonly port: 'store' | 'broker'
  readonly fromMs: number
  /** Infinite while it lasts. */
  toMs: number
}

/**
 * The faults of one seed. Each kind is on in half of the seeds, with odds of its own, so that some seeds have many kinds
 * and some have one alone (swarm testing, Groce et al., 2012).
 */
export class Faults {
  isOn = true
  /** Times, by the database's clock, in which a port was gone for everybody. */
  readonly outages: Outage[] = []
  readonly random: Random
  readonly #odds: Odds

  constructor(seed: number) {
    this.random = openRandom(seed ^ 0x5eed)
    const odds = Object.entries(ODDS_MAX).map(([kind, max]) => {
      const share = this.random.next() * max
      return [kind, this.random.chance(0.5) ? share : 0]
    })
    this.#odds = Object.fromEntries(odds) as Odds
  }

  /** The kinds that are on, for people. */
  toString(): string {
    const on = Object.entries(this.#odds).filter(([, odds]) => odds > 0)
    return on.map(([kind, odds]) => `${kind} ${odds.toFixed(3)}`).join(', ') || 'none'
  }

  isDown(port: Outage['port']): boolean {
    return this.outages.some((outage) => outage.port === port && outage.toMs === Number.POSITIVE_INFINITY)
  }

  /** From now on nobody can reach a port. The caller ends it. */
  begin(port: Outage['port'], fromMs: number): Outage {
    const outage = { port, fromMs, toMs: Number.POSITIVE_INFINITY }
    this.outages.push(outage)
    return outage
  }

  get isCrash(): boolean {
    return this.#happens('crash')
  }

  get isRecordMissed(): boolean {
    return this.#happens('recordMissed')
  }

  storeFate(): StoreFate {
    if (this.#happens('storeRefused')) return 'refused'
    if (this.#happens('storeUnanswered')) return 'unanswered'
    return this.#happens('storeLate') ? 'late' : 'well'
  }

  sendFate(): SendFate {
    if (this.#happens('sendRefused')) return this.random.chance(0.5) ? 'refused' : 'unanswered'
    if (this.#happens('sendLost')) return 'lost'
    return this.#happens('sendDoubled') ? 'doubled' : 'well'
  }

  deliveryFate(): DeliveryFate {
    if (this.#happens('deliveryDoubled')) return 'doubled'
    return this.#happens('deliveryReleased') ? 'released' : 'well'
  }

  /** Time on the way to or from the store: mostly none worth a timer. */
  storeMs(): number {
    if (this.#happens('storeSlow')) return this.random.between(1, SLOW_MS)
    return this.random.chance(0.3) ? this.random.between(1, 8) : 0
  }

  /** The same for the broker. */
  sendMs(): number {
    if (this.#happens('sendSlow')) return this.random.between(1, SLOW_MS)
    return this.random.chance(0.3) ? this.random.between(1, 5) : 0
  }

  #happens(kind: keyof Odds): boolean {
    return this.isOn && this.#odds[kind] > 0 && this.random.chance(this.#odds[kind])
  }
}
