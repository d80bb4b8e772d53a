import type { Blobs } from '#shared/blobs/blobs.ts'
import { fetchBody } from '#shared/jobs/body.ts'
import { readStored } from '#shared/jobs/records.ts'
import { differencesOf, shownValue } from '#shared/json/differences.ts'
import type { ChildEnd, ChildJob, Composition, Cost, StepResult } from '#shared/kinds/composition.ts'
import { ServiceError } from '#shared/lib/error.ts'
import { runYielding } from '#shared/lib/yielding.ts'
import { childJobId, type RecordedStep } from '#shared/store/jobs.ts'
import type { Store } from '#shared/store/store.ts'
import { Children, type ChildrenOptions } from './children.ts'
import type { Composing } from './compose.ts'
import type { OwnerWrites } from './owner-writes.ts'
import { keyOf, lost, valueOfOutput } from './steps.ts'

const LOOK_MAX = 20

export interface ReplayOptions extends ChildrenOptions {
  readonly of: string
  readonly store: Store
  readonly blobs: Blobs
  readonly writes: OwnerWrites
  readonly inner: Composing
}

/**
 * Replay of a composed job: steps and ends of children come from the record of an earlier job. No external call is made and no child is submitted.
 *
 * If the handler requests something that was not recorded, then the replay fails. The error names the request and the most similar recorded step.
 */
export class Replaying implements Composition {
  readonly #options: ReplayOptions
  readonly #children: Children
  readonly #cut = new AbortController()
  readonly cancelled: AbortSignal

  constructor(options: ReplayOptions) {
    this.#options = options
    this.cancelled = AbortSignal.any([options.inner.cancelled, this.#cut.signal])
    this.#children = new Children({ ...options, job: { ...options.job, id: options.of } })
  }

  get spent(): Cost {
    return this.#options.inner.spent
  }

  /**
   * The recorded job has already made all decisions that depend on the clock. A replay therefore has no time limit for
   * its result.
   */
  get wrapUpAtMs(): number {
    return this.cancelled.aborted ? 0 : Number.POSITIVE_INFINITY
  }

  async step<T>(kind: string, input: unknown): Promise<T> {
    return await this.#options.inner.step(kind, input, async () => {
      const kept = await this.#recorded<T>(kind, input)
      if (kept) return kept
      // If a cancel of the recorded job was requested, then the step is missing because of the cancel, so the replay is cancelled too. The handler
      // can then end with a partial result.
      if (await this.#wasCancelled()) this.#cut.abort()
      throw await this.#missing(kind, input)
    })
  }

  async submit(child: ChildJob): Promise<string> {
    const { of, blobs, job } = this.#options
    const id = childJobId(of, child.key)
    const content = await this.#read((store) => store.findContent(job.tenant, id))
    if (!content) throw this.#divergence(`submits the child '${child.key}', which the recorded job did not submit`)
    const body = await fetchBody(readStored(content.request), blobs)
    const row = await this.#read((store) => store.find(job.tenant, id))
    const asked = { model: child.model, body: JSON.parse(JSON.stringify(child.body)) as unknown }
    const differences = differencesOf({ model: row?.model, body }, asked)
    if (differences.length > 0)
      throw this.#divergence(
        `submits the child '${child.key}' with another request (recorded ≠ requested: ${differences.join('; ')})`,
      )
    return id
  }

  async find<T>(kind: string, input: unknown): Promise<T | undefined> {
    return (await this.#options.inner.find<T>(kind, input)) ?? (await this.#recorded<T>(kind, input))?.value
  }

  async publish(key: string, events: readonly unknown[]): Promise<void> {
    await this.#options.inner.publish(key, events)
  }

  async publishStored(key: string, events: readonly unknown[]): Promise<void> {
    await this.#options.inner.publishStored(key, events)
  }

  async published(key: string): Promise<readonly unknown[] | undefined> {
    return (await this.find<unknown[]>('tell', { key })) ?? undefined
  }

  async waitFor(ids: readonly string[]): Promise<(ChildEnd | undefined)[]> {
    const children = await this.#children.find(ids)
    const ends = await Promise.all(children.map((child) => this.#children.endOf(child)))
    for (const end of ends) if (end) this.#options.inner.count(end)
    return ends
  }

  async wait(): Promise<void> {
    // A replay has nothing to wait for: the recorded job has already waited for these children, or has continued
    // without them.
  }

  async endOf(id: string, parent?: string): Promise<ChildEnd | undefined> {
    return await this.#children.findEnd(id, parent)
  }

  async #recorded<T>(kind: string, input: unknown): Promise<StepResult<T> | undefined> {
    const { of, blobs } = this.#options
    const { key } = await runYielding(keyOf(kind, input))
    const kept = await this.#read((store) => store.findStep(of, key))
    return kept && { value: (await valueOfOutput(kept.output, blobs)) as T, cost: kept.cost }
  }

  async #wasCancelled(): Promise<boolean> {
    const { job, of } = this.#options
    const replayed = await this.#read((store) => store.find(job.tenant, of))
    return replayed !== undefined && replayed.cancel_requested_at_ms !== null
  }

  async #missing(kind: string, input: unknown): Promise<ServiceError> {
    const nearest = await this.#nearest(kind, input)
    const like = nearest
      ? `the most similar recorded step is ${shownInput(nearest.step)} (recorded ≠ requested: ${nearest.lines.join('; ')})`
      : 'no recorded step is similar'
    return this.#divergence(`requests ${kind} ${shownValue(input)}, but the recorded job has no such step; ${like}`)
  }

  async #nearest(kind: string, input: unknown): Promise<{ step: RecordedStep; lines: string[] } | undefined> {
    const { of, job } = this.#options
    const asked = JSON.parse(JSON.stringify(input ?? null)) as unknown
    let nearest: { step: RecordedStep; lines: string[] } | undefined
    for (let after = 0; ; after += LOOK_MAX) {
      const page = await this.#read((store) => store.listRecordedSteps(job.tenant, of, after, LOOK_MAX))
      for (const step of page) {
        if (step.kind !== kind || !step.input || !('value' in step.input)) continue
        const lines = differencesOf(step.input.value, asked)
        if (!nearest || lines.length < nearest.lines.length) nearest = { step, lines }
      }
      if (page.length < LOOK_MAX) return nearest
    }
  }

  #divergence(what: string): ServiceError {
    return new ServiceError(
      'invalid_request',
      `The replay differs from the recorded job ${this.#options.of}: it ${what}.`,
    )
  }

  async #read<T>(ask: (store: Store) => Promise<T>): Promise<T> {
    const { signal, store, writes } = this.#options
    const answer = await writes.persist(() => ask(store))
    if (writes.isLost) throw lost(signal)
    return answer as T
  }
}

function shownInput({ input }: RecordedStep): string {
  return input && 'value' in input ? shownValue(input.value) : 'a long input'
}
