import type { PoolName } from '#schemas/job.ts'
import type { Call, IngressContext } from '#services/ingress/call.ts'
import type { Admission } from '#services/ingress/callers/limits/admission.ts'
import { projectIdOf } from '#shared/keys/project.ts'
import { type EndedCall, entryOf } from '#shared/usage/cost.ts'
import { Meter } from '#shared/usage/meter.ts'

/**
 * Counts the usage of one attached call. Tokens reach limits, metrics and access log as soon as they are known; the
 * ledger entry follows at the end (docs/operate/usage.md).
 */
export class CallUsage {
  readonly #context: IngressContext
  readonly #call: Call
  readonly #pool: PoolName
  readonly #admission: Admission | undefined
  readonly #meter = new Meter()
  #isReported = false

  constructor(context: IngressContext, call: Call, pool: PoolName, admission: Admission | undefined) {
    this.#context = context
    this.#call = call
    this.#pool = pool
    this.#admission = admission
  }

  /** Reads the next event of the answer, of any kind. */
  see(event: unknown): void {
    this.#meter.see(event)
    if ((event as { usage?: unknown }).usage !== undefined) this.#reportTokens()
  }

  end(end: EndedCall['end']): void {
    this.#reportTokens()
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

  #reportTokens(): void {
    const { input, output } = this.#meter.tokens
    if (this.#isReported || input + output === 0) return
    this.#isReported = true
    const { metrics } = this.#context
    const { facts } = this.#call
    facts.input_tokens = input
    facts.output_tokens = output
    metrics.tokens.inc({ model: facts.model ?? '', direction: 'input' }, input)
    metrics.tokens.inc({ model: facts.model ?? '', direction: 'output' }, output)
    this.#admission?.useTokens(input + output)
  }
}
