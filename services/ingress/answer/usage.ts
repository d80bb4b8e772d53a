import type { PoolName } from '#schemas/job.ts'
import type { Call, IngressContext } from '#services/ingress/call.ts'
import type { Admission } from '#services/ingress/callers/limits/admission.ts'
import { projectIdOf } from '#shared/keys/project.ts'
import { type EndedCall, entryOf } from '#shared/usage/cost.ts'
import { Meter } from '#shared/usage/meter.ts'

/**
 * Counts what one attached call uses: tokens for the limits of its key, the metrics and the access log as soon as they are
 * known; all of it for the ledger when it has ended (docs/usage.md).
 */
export class CallUsage {
  readonly #context: IngressContext
  readonly #call: Call
  readonly #pool: PoolName
  readonly #admission: Admission | undefined
  readonly #meter = new Meter()
  #isTold = false

  /** @param admission What the call has reserved, which this settles. */
  constructor(context: IngressContext, call: Call, pool: PoolName, admission: Admission | undefined) {
    this.#context = context
    this.#call = call
    this.#pool = pool
    this.#admission = admission
  }

  /** Takes the next event of the answer, of whatever kind. */
  see(event: unknown): void {
    this.#meter.see(event)
    if ((event as { usage?: unknown }).usage !== undefined) this.#tellTokens()
  }

  /** The call ended, well or not. To be called once. */
  end(end: EndedCall['end']): void {
    this.#tellTokens()
    const { models, usage } = this.#context
    const { key, facts } = this.#call
    const pool = this.#pool
    const model = facts.model ?? ''
    const whose = { project: projectIdOf(key), keyId: key.id, pool, model }
    const ended = { ...whose, end, metered: this.#meter.metered, endedAtMs: Date.now() }
    const entry = entryOf(ended, models.priceOf({ pool, model }))
    const entered = usage?.add(entry) ?? Promise.resolve()
    this.#admission?.settle(entry.costNanos, entered)
  }

  #tellTokens(): void {
    const { input, output } = this.#meter.tokens
    if (this.#isTold || input + output === 0) return
    this.#isTold = true
    const { metrics } = this.#context
    const { facts } = this.#call
    facts.input_tokens = input
    facts.output_tokens = output
    metrics.tokens.inc({ model: facts.model ?? '', direction: 'input' }, input)
    metrics.tokens.inc({ model: facts.model ?? '', direction: 'output' }, output)
    this.#admission?.useTokens(input + output)
  }
}
