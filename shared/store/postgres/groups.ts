import type { Params, TransitionRow, WrittenOutput } from '#shared/store/sql/sql.ts'
import { busy } from './errors.ts'

/** Jobs of one statement at most, and characters of their parameters. */
const GROUP_MAX = 64
const GROUP_CHARACTERS_MAX = 1024 * 1024
/** Statements of one kind under way at most; what comes meanwhile joins the next. */
const UNDER_WAY_MAX = 2
/** Calls of one kind that wait at most; more are refused. */
const WAITING_MAX = 5_000
/** How long a call may wait for its statement to begin. */
const WAIT_MS_MAX = 10_000

/** One job to move, to insert or to find. */
export interface Item {
  readonly id: string
  readonly params: Params
  readonly output: WrittenOutput
}

interface Waiting extends Item {
  /** When it has waited too long, by the clock of `performance`. */
  readonly giveUpAt: number
  readonly resolve: (rows: TransitionRow[]) => void
  readonly reject: (error: unknown) => void
}

/**
 * Does one kind of move, or look-up, for many jobs in one statement, with one round trip and one commit: those that come in
 * one turn of the event loop, and those that come while the statements before are under way.
 *
 * Each keeps what it was alone. A guard that refuses one job refuses only that one. When a statement fails, each is done
 * alone, so that only the one at fault fails; but not where that took so long that its calls have waited long enough: one
 * after the other they would wait for the same lock again. A job comes once in a statement, and jobs come in the order of their ids, so
 * that statements which wait for each other's locks do not do so in a circle.
 */
export class Groups {
  readonly #run: (items: readonly Item[]) => Promise<TransitionRow[]>
  readonly #isReachable: () => boolean
  readonly #waiting: Waiting[] = []
  #underWay = 0
  #isDue = false

  /** @param run Does the move or look-up for these jobs, and gives a row for each that it moved or found. */
  constructor(run: (items: readonly Item[]) => Promise<TransitionRow[]>, isReachable: () => boolean) {
    this.#run = run
    this.#isReachable = isReachable
  }

  /**
   * Does the move for one job.
   *
   * @returns Its row, or none when it was refused or not found.
   * @throws ServiceError `overloaded`
   */
  add(item: Item): Promise<TransitionRow[]> {
    if (this.#waiting.length >= WAITING_MAX) return Promise.reject(busy())
    return new Promise((resolve, reject) => {
      this.#waiting.push({ ...item, resolve, reject, giveUpAt: performance.now() + WAIT_MS_MAX })
      if (this.#isDue) return
      this.#isDue = true
      setImmediate(() => this.#start())
    })
  }

  #start(): void {
    this.#isDue = false
    while (this.#underWay < UNDER_WAY_MAX && this.#waiting.length > 0) {
      this.#underWay++
      // Ends with its answers given; it does not fail.
      void this.#sendInTime(takeGroup(this.#waiting)).finally(() => {
        this.#underWay--
        this.#start()
      })
    }
  }

  async #sendInTime(group: readonly Waiting[]): Promise<void> {
    const isLate = ({ giveUpAt }: Waiting) => performance.now() > giveUpAt
    for (const { reject } of group.filter(isLate)) reject(busy())
    const rest = group.filter((one) => !isLate(one))
    if (rest.length > 0) await this.#send(rest)
  }

  async #send(group: readonly Waiting[]): Promise<void> {
    try {
      const rows = new Map((await this.#run(group)).map((row) => [row.id, row]))
      for (const { id, resolve } of group) {
        const row = rows.get(id)
        resolve(row ? [row] : [])
      }
    } catch (error) {
      if (group.length === 1 || !this.#isReachable()) for (const { reject } of group) reject(error)
      else for (const one of group) await this.#sendInTime([one])
    }
  }
}

/** Takes the first that fit into one statement. A second one of the same job waits for the next, and those after it. */
function takeGroup(waiting: Waiting[]): Waiting[] {
  const group = new Map<string, Waiting>()
  const rest: Waiting[] = []
  let characters = 0
  let isFull = false
  for (const one of waiting.splice(0)) {
    const size = sizeOf(one)
    isFull ||= group.size === GROUP_MAX || (group.size > 0 && characters + size > GROUP_CHARACTERS_MAX)
    if (isFull || group.has(one.id)) {
      rest.push(one)
      continue
    }
    group.set(one.id, one)
    characters += size
  }
  waiting.push(...rest)
  return [...group.values()].toSorted((a, b) => (a.id < b.id ? -1 : 1))
}

function sizeOf({ params, output }: Item): number {
  let size = 0
  for (const value of Object.values(params)) if (typeof value === 'string') size += value.length
  for (const { data } of output) size += data.length
  return size
}
