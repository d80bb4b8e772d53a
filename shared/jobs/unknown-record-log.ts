import type { Log } from '#shared/log/log.ts'

/** The same news is told this often at most. */
const QUIET_MS = 60_000
/** Different news that are told apart; what comes beyond is told as one. */
const SORTS_MAX = 32

interface Sort {
  count: number
  toldAtMs: number
}

/**
 * Tells what was passed over of what others sent: the first of a sort at once, then once a minute how many it was since. Other
 * processes send as much as they like; the log must not grow with it.
 */
export class UnknownRecordLog {
  readonly #log: Log
  readonly #sorts = new Map<string, Sort>()

  constructor(log: Log) {
    this.#log = log
  }

  /** Counts one. @param message What was passed over. @param type Of which type it was, where that is known. */
  note(message: string, type = ''): void {
    const sort = this.#sort(`${message} ${type}`)
    sort.count++
    const now = Date.now()
    if (now - sort.toldAtMs < QUIET_MS) return
    this.#log.warn({ ...(type !== '' && { type }), count: sort.count }, message)
    sort.count = 0
    sort.toldAtMs = now
  }

  #sort(name: string): Sort {
    const key = this.#sorts.has(name) || this.#sorts.size < SORTS_MAX ? name : ''
    const known = this.#sorts.get(key)
    if (known) return known
    const sort = { count: 0, toldAtMs: Number.NEGATIVE_INFINITY }
    this.#sorts.set(key, sort)
    return sort
  }
}
