/*
 * Composed job: one attempt of a durable job that runs steps and child jobs (docs/internals/design.md, Composed jobs).
 *
 * The problem: a composed job runs for minutes to hours. A crash must not repeat paid external calls, and a waiting parent must not occupy a slot.
 *
 * How it works:
 * 1. The handler runs from its beginning in every attempt. Each external call is a step, whose result is committed before it is returned. A later
 *    attempt reads the record instead (`steps.ts`).
 * 2. Work of other pools is submitted as child jobs. Their ids are derived from parent id and key, so a repeated submission finds the existing child
 *    (`children.ts`).
 * 3. If the handler waits for unfinished children and nothing else is in progress, then the attempt is parked, which frees its slot. The last child
 *    that ends requeues the parent.
 *
 * Example: a handler runs 3 steps and submits 10 children, then its worker crashes. The next attempt reads the 3 records, finds the 10 children and
 * waits, without a single external call.
 *
 * Rejected alternative: storing the handler's state. Code changes would invalidate it, and every local variable would have to be serializable.
 */

import type { DurableJob } from '#schemas/durable-job.ts'
import { TERMINAL } from '#shared/jobs/durable/follow.ts'
import type { ChildEnd, ChildJob, Composition, Cost, StepRun } from '#shared/kinds/composition.ts'
import { abortable } from '#shared/lib/abortable.ts'
import type { NewEvent } from '#shared/store/store.ts'
import { Children, type ChildrenOptions } from './children.ts'
import { Steps, type StepsOptions } from './steps.ts'

/** Fraction of a job's total time that is reserved at its end for writing the result, which may be partial. */
const WRAP_UP_SHARE = 0.15
const WRAP_UP_MS = { min: 2_000, max: 60_000 }

export interface ComposingOptions extends Omit<ChildrenOptions & StepsOptions, 'job'> {
  readonly job: ChildrenOptions['job']
  /** Time at which the job should start to write its result, in Unix milliseconds by the clock of this process. */
  readonly wrapUpAtMs: number
  readonly cancelled: AbortSignal
  readonly encode: (events: readonly unknown[]) => NewEvent[]
  /** Called when the attempt must end because it waits for these children. The job continues in a new attempt after they have ended. */
  readonly onPark: (ids: readonly string[]) => void
}

export function wrapUpMsOf(totalMs: number): number {
  return Math.min(Math.max(totalMs * WRAP_UP_SHARE, WRAP_UP_MS.min), WRAP_UP_MS.max)
}

export class Composing implements Composition {
  readonly #options: ComposingOptions
  readonly #steps: Steps
  readonly #children: Children
  readonly #spent: Record<string, number> = {}
  readonly #counted = new Set<string>()
  readonly #awaited = new Set<string>()
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

  async step<T>(kind: string, input: unknown, run: StepRun<T>): Promise<T> {
    return await this.#busy(async () => (await this.#steps.do(kind, input, run, (cost) => this.#spend(cost))) as T)
  }

  async find<T>(kind: string, input: unknown): Promise<T | undefined> {
    return (await this.#busy(() => this.#steps.find(kind, input))) as T | undefined
  }

  async publish(key: string, events: readonly unknown[]): Promise<void> {
    await this.#record(key, events, null)
  }

  async publishStored(key: string, events: readonly unknown[]): Promise<void> {
    await this.#record(key, events, events)
  }

  async published(key: string): Promise<readonly unknown[] | undefined> {
    const value = await this.find('tell', { key })
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

  async #record(key: string, events: readonly unknown[], value: unknown): Promise<void> {
    const output = this.#options.encode(events)
    const recorded = async () => ({ value })
    await this.#busy(() => this.#steps.do('tell', { key }, recorded, (cost) => this.#spend(cost), output))
  }

  async #ended(ids: readonly string[]): Promise<DurableJob[] | undefined> {
    const children = await this.#children.find(ids)
    const isOver = Date.now() >= this.wrapUpAtMs
    return isOver || children.every(({ state }) => TERMINAL.has(state)) ? children : undefined
  }

  /**
   * Runs work, and rejects when the attempt is aborted. Otherwise a pending write could wait for an unreachable store while another worker already
   * runs the job.
   */
  async #busy<T>(work: () => Promise<T>): Promise<T> {
    this.#underWay++
    try {
      return await abortable(work(), this.#options.signal)
    } finally {
      this.#underWay--
      this.#parkSoon()
    }
  }

  /**
   * Waits for child jobs by ending the attempt, which frees its slot. The promise therefore never resolves. If the attempt is aborted, then the
   * promise rejects.
   */
  #leave(ids: readonly string[]): Promise<never> {
    for (const id of ids) this.#awaited.add(id)
    this.#parkSoon()
    const { signal } = this.#options
    return new Promise((_, reject) => {
      if (signal.aborted) reject(signal.reason)
      else signal.addEventListener('abort', () => reject(signal.reason), { once: true })
    })
  }

  /** Ends the attempt in a later event-loop iteration, because the handler may start another step in this iteration. */
  #parkSoon(): void {
    if (this.#awaited.size === 0) return
    setImmediate(() => {
      if (this.#underWay === 0 && !this.#options.signal.aborted) this.#options.onPark([...this.#awaited])
    })
  }

  count(end: ChildEnd): void {
    if (end.state !== 'completed' || this.#counted.has(end.id)) return
    this.#counted.add(end.id)
    this.#spend({ tokens: tokensOf(end.usage) })
  }

  #spend(cost: Cost): void {
    for (const [unit, amount] of Object.entries(cost)) this.#spent[unit] = (this.#spent[unit] ?? 0) + amount
  }
}

function tokensOf(usage: unknown): number {
  const fields = (usage ?? {}) as Record<string, unknown>
  const number = (...names: string[]) => Number(names.map((name) => fields[name]).find(Number.isFinite) ?? 0)
  const total = number('total_tokens')
  return total > 0 ? total : number('input_tokens', 'prompt_tokens') + number('output_tokens', 'completion_tokens')
}
