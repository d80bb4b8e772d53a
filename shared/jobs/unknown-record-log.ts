import type { Log } from '#shared/log/log.ts'

const LOG_INTERVAL_MS = 60_000
/** Maximum number of distinct messages with their own counter. All further messages have one common counter. */
const TYPES_MAX = 32

interface RecordType {
  count: number
  loggedAtMs: number
}

/**
 * Rate-limited log of ignored records: the first of each sort is logged at once, later ones once a minute with their count. The
 * number of such records is controlled by other processes, so the log must not grow with it.
 */
export class UnknownRecordLog {
  readonly #log: Log
  readonly #types = new Map<string, RecordType>()

  constructor(log: Log) {
    this.#log = log
  }

  note(message: string, type = ''): void {
    const sort = this.#typeOf(`${message} ${type}`)
    sort.count++
    const now = Date.now()
    if (now - sort.loggedAtMs < LOG_INTERVAL_MS) return
    this.#log.warn({ ...(type !== '' && { type }), count: sort.count }, message)
    sort.count = 0
    sort.loggedAtMs = now
  }

  #typeOf(name: string): RecordType {
    const key = this.#types.has(name) || this.#types.size < TYPES_MAX ? name : ''
    const known = this.#types.get(key)
    if (known) return known
    const sort = { count: 0, loggedAtMs: Number.NEGATIVE_INFINITY }
    this.#types.set(key, sort)
    return sort
  }
}
