import { openRandom, type Random } from '../../chaos/load/random.ts'

/** Duration of the faults in virtual time. Afterwards, the store and the broker work again. */
export const FAULTS_MS = 20_000

/** Possible outcomes of a call to the store. `well`: no fault. */
export type StoreFate =
  | 'well'
  /** The store refused the call and changed nothing. */
  | 'refused'
  /** The store executed the call, but its response was lost. */
  | 'unanswered'
  /** The caller received a timeout, and the store executed the call later. */
  | 'late'

/** Possible outcomes of sending a record. `unanswered`: the broker stored the record, but its response was lost. */
export type SendFate = 'well' | 'refused' | 'lost' | 'doubled' | 'unanswered'

/** Possible outcomes of a delivery to a consumer. `released`: the record returns to the queue. */
export type DeliveryFate = 'well' | 'doubled' | 'released'

/** Probability of each type of fault per call. 0 disables the fault. */
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

/** Maximum probability of each type of fault; each seed chooses a value below it. */
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

/** A period in which no process could reach the store or the broker. */
export interface Outage {
  readonly port: 'store' | 'broker'
  readonly fromMs: number
  /** End of the outage; infinite while the outage lasts. */
  toMs: number
}

/**
 * The faults of one seed. Each type of fault is enabled in half of the seeds, with its own probability. Some seeds therefore combine many types,
 * and others have only one (swarm testing, Groce et al., 2012).
 */
export class Faults {
  isOn = true
  /** Outages of the store or the broker, which affect all processes. Times are those of the database's clock. */
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

  /** Lists the enabled types of faults, for the report of a failure. */
  toString(): string {
    const on = Object.entries(this.#odds).filter(([, odds]) => odds > 0)
    return on.map(([kind, odds]) => `${kind} ${odds.toFixed(3)}`).join(', ') || 'none'
  }

  isDown(port: Outage['port']): boolean {
    return this.outages.some((outage) => outage.port === port && outage.toMs === Number.POSITIVE_INFINITY)
  }

  /** Starts an outage of the store or the broker. The caller must end the outage. */
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

  /** Latency of a message to or from the store. Usually 0, so that no timer is needed. */
  storeMs(): number {
    if (this.#happens('storeSlow')) return this.random.between(1, SLOW_MS)
    return this.random.chance(0.3) ? this.random.between(1, 8) : 0
  }

  /** Latency of a message to or from the broker. Usually 0. */
  sendMs(): number {
    if (this.#happens('sendSlow')) return this.random.between(1, SLOW_MS)
    return this.random.chance(0.3) ? this.random.between(1, 5) : 0
  }

  #happens(kind: keyof Odds): boolean {
    return this.isOn && this.#odds[kind] > 0 && this.random.chance(this.#odds[kind])
  }
}
