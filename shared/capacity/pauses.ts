import type { ControlRecord } from '#schemas/event.ts'
import type { PoolName } from '#schemas/job.ts'
import { untilAligned } from '#shared/lib/aligned-interval.ts'
import { ServiceError } from '#shared/lib/error.ts'
import type { Log } from '#shared/log/log.ts'
import type { OperatorStore, Pause, PauseTarget } from '#shared/store/jobs.ts'

/** Poll interval of the store. Pauses usually arrive earlier in a control record, but a record may be lost. */
const READ_MS = 3_000
/** Retry-After for paused work, in ms. The duration of a pause is unknown, so this is a guess. */
const RETRY_AFTER_MS = 30_000

interface PausableWork {
  readonly pool: PoolName
  readonly model: string
}

/**
 * Paused models and pools (docs/operate/operations.md, Pause a model or a pool), in one instance per process. With a store, its
 * table is authoritative and polled. Without a store, pauses come only from control records.
 */
export class Pauses {
  readonly #store: OperatorStore | undefined
  readonly #log: Log
  readonly #paused = new Map<string, Pause>()
  #changes = 0
  #isStale = false
  #timer: NodeJS.Timeout | undefined
  #isClosed = false

  private constructor(store: OperatorStore | undefined, log: Log) {
    this.#store = store
    this.#log = log
  }

  /** Reads the pauses. If the store is unreachable, then they are read at the next poll. The caller closes the instance. */
  static async open(store: OperatorStore | undefined, log: Log): Promise<Pauses> {
    const pauses = new Pauses(store, log)
    if (store) await pauses.#readForEver()
    return pauses
  }

  /** True if a store keeps the pauses, so that they survive a restart and apply to processes that start later. */
  get isPersistent(): boolean {
    return this.#store !== undefined
  }

  get all(): readonly Pause[] {
    return [...this.#paused.values()]
  }

  of({ pool, model }: PausableWork): Pause | undefined {
    if (this.#paused.size === 0) return undefined
    return (
      this.#paused.get(keyOf({ target: 'pool', id: pool })) ?? this.#paused.get(keyOf({ target: 'model', id: model }))
    )
  }

  refuse(work: PausableWork): void {
    const pause = this.of(work)
    if (!pause) return
    const message = `${sentenceOf(pause)} Try again later.`
    throw new ServiceError('overloaded', message, { retryAfterMs: RETRY_AFTER_MS, isUndone: true })
  }

  /**
   * Starts or ends a pause for all processes. @param send Publishes the record to every process @throws ServiceError `overloaded`
   */
  async change(
    target: PauseTarget,
    isPaused: boolean,
    by: string,
    send: (record: ControlRecord) => void,
  ): Promise<void> {
    if (isPaused) await this.#store?.pause(target, by)
    else await this.#store?.resume(target)
    this.#apply(target, isPaused, by)
    send({ type: 'pause_work', ...target, paused: isPaused, by })
  }

  onControl(record: ControlRecord): void {
    if (record.type === 'pause_work') this.#apply(record, record.paused, record.by)
  }

  close(): void {
    this.#isClosed = true
    clearTimeout(this.#timer)
  }

  #apply({ target, id }: PauseTarget, isPaused: boolean, by: string): void {
    this.#changes++
    const key = keyOf({ target, id })
    if (!isPaused) this.#paused.delete(key)
    else if (!this.#paused.has(key)) this.#paused.set(key, { target, id, by, since_ms: Date.now() })
  }

  async #readForEver(): Promise<void> {
    await this.#read()
    if (!this.#isClosed) this.#timer = setTimeout(() => void this.#readForEver(), untilAligned(READ_MS)).unref()
  }

  async #read(): Promise<void> {
    const before = this.#changes
    try {
      const read = await this.#store?.listPauses()
      this.#isStale = false
      // A change arrived during the read, so the result of the read may be older than the change.
      if (!read || before !== this.#changes) return
      this.#paused.clear()
      for (const pause of read) this.#paused.set(keyOf(pause), pause)
    } catch (error) {
      // Logged once per outage, which may last for hours.
      if (!this.#isStale && !this.#isClosed)
        this.#log.warn({ err: error }, 'pauses could not be read from the store; the last known ones apply')
      this.#isStale = true
    }
  }
}

export function sentenceOf({ target, id }: PauseTarget): string {
  return `The ${target} '${id}' is paused by the operator of this service.`
}

function keyOf({ target, id }: PauseTarget): string {
  return `${target} ${id}`
}
