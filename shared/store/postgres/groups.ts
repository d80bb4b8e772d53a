import type { Params, TransitionRow, WrittenOutput } from '#shared/store/sql/sql.ts'
import { busy } from './errors.ts'

/** Maximum jobs per statement, and maximum total length of their parameters in characters. */
const GROUP_MAX = 64
const GROUP_CHARACTERS_MAX = 1024 * 1024
/** Maximum concurrent statements of the same kind, such as claims. Later calls wait and are combined into the next statement. */
const CONCURRENT_STATEMENTS_MAX = 2
const WAITING_MAX = 5_000
const WAIT_MS_MAX = 10_000

export interface Item {
  readonly id: string
  readonly params: Params
  readonly output: WrittenOutput
}

interface Waiting extends Item {
  readonly giveUpAt: number
  readonly resolve: (rows: TransitionRow[]) => void
  readonly reject: (error: unknown) => void
}

/**
 * Combines calls of one kind for many jobs into one statement, with one round trip and one commit. A statement combines the calls of one event-loop
 * iteration, and those that arrive while earlier statements run.
 *
 * A guard that refuses one job does not affect the other jobs of the statement. If a statement fails, then each call is repeated alone, so that only
 * the faulty call fails. Calls that have waited too long are not repeated, because each of them would wait for the same lock again.
 *
 * A statement contains each job at most once. Jobs are sorted by id, so statements that wait for each other's locks cannot deadlock.
 */
export class Groups {
  readonly #run: (items: readonly Item[]) => Promise<TransitionRow[]>
  readonly #isReachable: () => boolean
  readonly #waiting: Waiting[] = []
  #underWay = 0
  #isDue = false

  /** @param run Executes one statement for these jobs, and returns a row for each job that was changed or found. */
  constructor(run: (items: readonly Item[]) => Promise<TransitionRow[]>, isReachable: () => boolean) {
    this.#run = run
    this.#isReachable = isReachable
  }

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
    while (this.#underWay < CONCURRENT_STATEMENTS_MAX && this.#waiting.length > 0) {
      this.#underWay++
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

/**
 * Removes the next group from `waiting`: the first calls that fit into one statement. If a job occurs twice, then its second call stays for the next
 * statement.
 */
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
