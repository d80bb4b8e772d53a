import { createHash } from 'node:crypto'
import { appendFileSync, existsSync, readFileSync } from 'node:fs'
import type { ChildEnd, ChildJob, Composition, Cost, StepResult } from '#shared/kinds/composition.ts'

/** Thrown to simulate that the worker process was killed during a research. */
export class Killed extends Error {}

export interface CompositionOptions {
  /**
   * Path of a file to which steps are appended as JSON lines. Steps that the file already contains are not run again. Default: steps are kept in
   * memory only.
   */
  readonly cassette?: string
  /** Recorded steps in the output format of `sluice steps`. A step that is not among them makes the run fail. */
  readonly recorded?: string
  /**
   * Number of steps after which the run is killed. Only steps that this run executes and stores count. Steps that it reads from storage do
   * not.
   */
  readonly killAfter?: number
  /** Runs a child job. Default: every child fails. */
  readonly runChild?: (child: ChildJob) => Promise<ChildEnd>
  readonly wrapUpAtMs?: number
  /** Signal that is aborted when the caller cancels the job and requests a partial result. */
  readonly cancelled?: AbortSignal
}

interface StoredStep {
  readonly key: string
  readonly kind: string
  readonly value: unknown
  readonly cost: Cost
}

/**
 * Executes the steps and child jobs of a composed job in memory. As in the product, a stored step is found by its kind and input, and a
 * child by its key. To simulate a second attempt, a new composition takes over the stored steps of the first.
 */
export class MemoryComposition implements Composition {
  readonly cancelled: AbortSignal
  readonly #options: CompositionOptions
  readonly #kept: Map<string, StoredStep>
  readonly #children = new Map<string, { child: ChildJob; end: Promise<ChildEnd> }>()
  readonly #spent: Record<string, number> = {}
  /** Kinds of the steps that this composition executed, in order. Steps that were read from storage are not included. */
  readonly ran: string[] = []
  /** Child jobs that were submitted, in order. */
  readonly children: ChildJob[] = []

  constructor(options: CompositionOptions = {}, before?: MemoryComposition) {
    this.#options = options
    this.cancelled = options.cancelled ?? new AbortController().signal
    this.#kept = before ? new Map(before.#kept) : new Map()
    for (const kept of linesOf<StoredStep>(options.cassette)) this.#kept.set(kept.key, kept)
    for (const { output: value, ...step } of linesOf<Omit<StoredStep, 'value'> & { output: unknown }>(options.recorded))
      this.#kept.set(step.key, { ...step, value })
  }

  get spent(): Cost {
    return this.#spent
  }

  get wrapUpAtMs(): number {
    return this.cancelled.aborted ? 0 : (this.#options.wrapUpAtMs ?? Number.POSITIVE_INFINITY)
  }

  async find<T>(kind: string, input: unknown): Promise<T | undefined> {
    return this.#kept.get(stepKey(kind, input))?.value as T | undefined
  }

  async publish(): Promise<void> {
    throw new Error('A research does not report progress events: it yields its output.')
  }

  async publishStored(): Promise<void> {
    await this.publish()
  }

  async published(): Promise<undefined> {
    return undefined
  }

  async step<T>(kind: string, input: unknown, run: (signal: AbortSignal) => Promise<StepResult<T>>): Promise<T> {
    const key = stepKey(kind, input)
    const known = this.#kept.get(key)
    if (known) {
      this.#spend(known.cost)
      return known.value as T
    }
    if (this.#options.recorded) throw new Error(`No recorded step for ${kind} ${canonical(input)}`)
    const { value, cost = {} } = await run(new AbortController().signal)
    // A step is converted to JSON and back, as the real store does. A value that JSON cannot represent then fails in the first attempt, not only
    // in the next one.
    const kept: StoredStep = JSON.parse(JSON.stringify({ key, kind, value, cost }))
    this.#kept.set(key, kept)
    this.ran.push(kind)
    this.#spend(cost)
    if (this.#options.cassette) appendFileSync(this.#options.cassette, `${JSON.stringify(kept)}\n`)
    if (this.ran.length === this.#options.killAfter) throw new Killed()
    return kept.value as T
  }

  async wait(ids: readonly string[]): Promise<void> {
    await this.waitFor(ids)
  }

  async endOf(id: string): Promise<ChildEnd | undefined> {
    return await this.#children.get(id)?.end
  }

  async submit(child: ChildJob): Promise<string> {
    if (!this.#children.has(child.key)) {
      this.children.push(child)
      const run = this.#options.runChild ?? (async () => failed(child.key))
      this.#children.set(child.key, { child, end: run(JSON.parse(JSON.stringify(child))) })
    }
    return child.key
  }

  async waitFor(ids: readonly string[]): Promise<(ChildEnd | undefined)[]> {
    const ends = ids.map((id) => this.#children.get(id)?.end)
    if (Date.now() >= this.wrapUpAtMs) return ids.map(() => undefined)
    const cut = new Promise<undefined[]>((resolve) => {
      this.cancelled.addEventListener('abort', () => resolve(ids.map(() => undefined)), { once: true })
    })
    return await Promise.race([Promise.all(ends), cut])
  }

  #spend(cost: Cost): void {
    for (const [unit, amount] of Object.entries(cost)) this.#spent[unit] = (this.#spent[unit] ?? 0) + amount
  }
}

function failed(id: string): ChildEnd {
  return { id, state: 'failed', error: { code: 'upstream_error', message: 'No model.', param: null } }
}

function linesOf<T>(path: string | undefined): T[] {
  if (path === undefined || !existsSync(path)) return []
  return readFileSync(path, 'utf8')
    .split('\n')
    .filter((line) => line !== '')
    .map((line) => JSON.parse(line) as T)
}

/** Returns JSON with sorted keys, so that equal inputs have equal texts. */
function canonical(value: unknown): string {
  return JSON.stringify(value, (_, each: unknown) => {
    if (each === null || typeof each !== 'object' || Array.isArray(each)) return each
    return Object.fromEntries(Object.entries(each).toSorted(([a], [b]) => (a < b ? -1 : 1)))
  })
}

function stepKey(kind: string, input: unknown): string {
  return createHash('sha256')
    .update(`${kind}\n${canonical(input)}`)
    .digest('hex')
}
