import type { DurableJob } from '#schemas/durable-job.ts'
import { abortable } from '#shared/abortable.ts'
import { TERMINAL } from '#shared/jobs/durable/follow.ts'
import type { ChildEnd, ChildJob, Composition, Cost, StepResult } from '#shared/kinds/composition.ts'
import type { NewEvent } from '#shared/store/store.ts'
import { Children, type ChildrenOptions } from './children.ts'
import { Steps, type StepsOptions } from './steps.ts'

/** How long before its deadline a job is to write what there is: this share of its time, within these bounds. */
const WRAP_UP_SHARE = 0.15
const WRAP_UP_MS = { min: 2_000, max: 60_000 }

/** What {@link Composing} needs. */
export interface ComposingOptions extends Omit<ChildrenOptions & StepsOptions, 'job'> {
  readonly job: ChildrenOptions['job']
  /** Unix milliseconds by the clock of this process. */
  readonly wrapUpAtMs: number
  /** Aborts when the job is to write what there is. */
  readonly cancelled: AbortSignal
  /** Events that the job says, as they are written: they go along with a step. */
  readonly say: (events: readonly unknown[]) => NewEvent[]
  /** The attempt is to end: nothing goes on before these children have ended. */
  readonly onPark: (ids: readonly string[]) => void
}

/** Milliseconds before its deadline at which a job is to wrap up. @param totalMs From its first start to its deadline */
export function wrapUpMsOf(totalMs: number): number {
  return Math.min(Math.max(totalMs * WRAP_UP_SHARE, WRAP_UP_MS.min), WRAP_UP_MS.max)
}

/**
 * What one attempt of a durable job composes (docs/design.md, Families).
 *
 * It parks when its handler waits for children that have not ended, and does nothing else: no step and no submit is under way,
 * so that nothing outside is done twice.
 */
export class Composing implements Composition {
  readonly #options: ComposingOptions
  readonly #steps: Steps
  readonly #children: Children
  readonly #spent: Record<string, number> = {}
  /** Children whose usage was counted. */
  readonly #counted = new Set<string>()
  readonly #awaited = new Set<string>()
  /** Steps, submits and reads that have not ended. */
  #underWay = 0

  constructor(options: ComposingOptions) {
    this.#options = options
    this.#steps = new Steps(options)
    this.#children = new Children(options)
  }

  get spent(): Cost {
    return { ...this.#spent }
  }

  get cancelled(): AbortSignal {
    return this.#options.cancelled
  }

  get wrapUpAtMs(): number {
    return this.cancelled.aborted ? 0 : this.#options.wrapUpAtMs
  }

  async step<T>(kind: string, input: unknown, run: (signal: AbortSignal) => Promise<StepResult<T>>): Promise<T> {
    return await this.#busy(async () => (await this.#steps.do(kind, input, run, (cost) => this.#spend(cost))) as T)
  }

  async publish(key: string, events: readonly unknown[]): Promise<void> {
    await this.#tell(key, events, null)
  }

  async publishStored(key: string, events: readonly unknown[]): Promise<void> {
    await this.#tell(key, events, events)
  }

  async published(key: string): Promise<readonly unknown[] | undefined> {
    const value = await this.#busy(() => this.#steps.find('tell', { key }))
    return Array.isArray(value) ? value : undefined
  }

  async submit(child: ChildJob): Promise<string> {
    return await this.#busy(() => this.#children.submit(child))
  }

  async waitFor(ids: readonly string[]): Promise<(ChildEnd | undefined)[]> {
    const ends = await this.#busy(async () => {
      const children = await this.#ended(ids)
      return children && (await Promise.all(children.map((child) => this.#children.endOf(child))))
    })
    if (!ends) return await this.#leave(ids)
    for (const end of ends) if (end) this.count(end)
    return ends
  }

  async wait(ids: readonly string[]): Promise<void> {
    if (!(await this.#busy(() => this.#ended(ids)))) await this.#leave(ids)
  }

  async endOf(id: string, parent?: string): Promise<ChildEnd | undefined> {
    return await this.#busy(() => this.#children.findEnd(id, parent))
  }

  async #tell(key: string, events: readonly unknown[], value: unknown): Promise<void> {
    const output = this.#options.say(events)
    const said = async () => ({ value })
    await this.#busy(() => this.#steps.do('tell', { key }, said, (cost) => this.#spend(cost), output))
  }

  /** Children of which nothing more is to be waited for. */
  async #ended(ids: readonly string[]): Promise<DurableJob[] | undefined> {
    const children = await this.#children.find(ids)
    const isOver = Date.now() >= this.wrapUpAtMs
    return isOver || children.every(({ state }) => TERMINAL.has(state)) ? children : undefined
  }

  /** The handler waits no longer than its attempt lasts: a write may wait for a store that is away until others run the job. */
  async #busy<T>(work: () => Promise<T>): Promise<T> {
    this.#underWay++
    try {
      return await abortable(work(), this.#options.signal)
    } finally {
      this.#underWay--
      this.#parkSoon()
    }
  }

  /** Ends with the attempt only: with its abort, or never, when it is parked. */
  #leave(ids: readonly string[]): Promise<never> {
    for (const id of ids) this.#awaited.add(id)
    this.#parkSoon()
    const { signal } = this.#options
    return new Promise((_, reject) => {
      if (signal.aborted) reject(signal.reason)
      else signal.addEventListener('abort', () => reject(signal.reason), { once: true })
    })
  }

  /** What follows a step at once belongs to it. */
  #parkSoon(): void {
    if (this.#awaited.size === 0) return
    setImmediate(() => {
      if (this.#underWay === 0 && !this.#options.signal.aborted) this.#options.onPark([...this.#awaited])
    })
  }

  /** Counts what a child has used, once. */
  count(end: ChildEnd): void {
    if (end.state !== 'completed' || this.#counted.has(end.id)) return
    this.#counted.add(end.id)
    this.#spend({ tokens: tokensOf(end.usage) })
  }

  #spend(cost: Cost): void {
    for (const [unit, amount] of Object.entries(cost)) this.#spent[unit] = (this.#spent[unit] ?? 0) + amount
  }
}

/** Tokens by the usage of an answer, in the words of whichever endpoint. */
function tokensOf(usage: unknown): number {
  const said = (usage ?? {}) as Record<string, unknown>
  const number = (...names: string[]) => Number(names.map((name) => said[name]).find(Number.isFinite) ?? 0)
  const total = number('total_tokens')
  return total > 0 ? total : number('input_tokens', 'prompt_tokens') + number('output_tokens', 'completion_tokens')
}
