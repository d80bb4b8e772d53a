import type { ControlRecord } from '#schemas/event.ts'
import type { PoolName } from '#schemas/job.ts'
import { ServiceError } from '#shared/error.ts'
import type { Log } from '#shared/log/log.ts'
import type { OperatorStore, Pause, PauseTarget } from '#shared/store/operator.ts'
import { untilTick } from '#shared/ticks.ts'

/** How often the store is asked: a control record is quicker, and may be lost. */
const READ_MS = 3_000
/** When a caller may ask again for work that is paused: nobody knows how long it will be. */
const RETRY_AFTER_MS = 30_000

/** What asks whether it may start. */
interface PausableWork {
  readonly pool: PoolName
  /** Its id in the catalogue. */
  readonly model: string
}

/**
 * The models and pools of which nothing is started for now (docs/operations.md, Pause a model or a pool). One for all roles of a
 * process. Where there is a store its table is the truth, read at the start and every few seconds; without one it is what the
 * processes that run have heard.
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

  /** Reads what is paused. A store that is away is asked again. The caller closes it. */
  static async open(store: OperatorStore | undefined, log: Log): Promise<Pauses> {
    const pauses = new Pauses(store, log)
    if (store) await pauses.#readForEver()
    return pauses
  }

  /** Whether pauses outlive the processes that heard of them, and reach those that start later: there is a store. */
  get isKept(): boolean {
    return this.#store !== undefined
  }

  /** What is paused, oldest first. */
  get all(): readonly Pause[] {
    return [...this.#paused.values()]
  }

  /** The pause that keeps work from being started; undefined where none does. */
  of({ pool, model }: PausableWork): Pause | undefined {
    if (this.#paused.size === 0) return undefined
    return this.#paused.get(keyOf({ what: 'pool', id: pool })) ?? this.#paused.get(keyOf({ what: 'model', id: model }))
  }

  /** Refuses work that would have to be started. @throws ServiceError `overloaded` */
  refuse(work: PausableWork): void {
    const pause = this.of(work)
    if (!pause) return
    const message = `${sentenceOf(pause)} Try again later.`
    throw new ServiceError('overloaded', message, { retryAfterMs: RETRY_AFTER_MS, isUndone: true })
  }

  /** Pauses, or ends a pause, in the whole fleet. @param send Tells every process. @throws ServiceError `overloaded` */
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

  /** Hears what another process has changed. Anything else is passed over. */
  onControl(record: ControlRecord): void {
    if (record.type === 'pause_work') this.#apply(record, record.paused, record.by)
  }

  /** Asks the store no more. */
  close(): void {
    this.#isClosed = true
    clearTimeout(this.#timer)
  }

  #apply({ what, id }: PauseTarget, isPaused: boolean, by: string): void {
    this.#changes++
    const key = keyOf({ what, id })
    if (!isPaused) this.#paused.delete(key)
    else if (!this.#paused.has(key)) this.#paused.set(key, { what, id, by, since_ms: Date.now() })
  }

  async #readForEver(): Promise<void> {
    await this.#read()
    if (!this.#isClosed) this.#timer = setTimeout(() => void this.#readForEver(), untilTick(READ_MS)).unref()
  }

  async #read(): Promise<void> {
    const before = this.#changes
    try {
      const read = await this.#store?.listPauses()
      this.#isStale = false
      // What was heard meanwhile is newer than what was read.
      if (!read || before !== this.#changes) return
      this.#paused.clear()
      for (const pause of read) this.#paused.set(keyOf(pause), pause)
    } catch (error) {
      // Said once: an outage may last for hours.
      if (!this.#isStale && !this.#isClosed) this.#log.warn({ err: error }, 'pauses not read; keeping the known ones')
      this.#isStale = true
    }
  }
}

/** A pause for people. */
export function sentenceOf({ what, id }: PauseTarget): string {
  return `The ${what} '${id}' is paused by the operator of this service.`
}

function keyOf({ what, id }: PauseTarget): string {
  return `${what} ${id}`
}
