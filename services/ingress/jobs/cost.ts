import type { DurableJob } from '#schemas/durable-job.ts'
import { usageOf } from '#services/ingress/batches/pool/sums.ts'
import { batch } from '#shared/kinds/batch.ts'
import type { ModelCatalogue } from '#shared/models/models.ts'
import type { DoneStep } from '#shared/store/family.ts'
import { callCost } from '#shared/usage/cost.ts'

const NANOS_PER_USD = 1_000_000_000

/** Parts of a job that are already loaded. */
interface Known {
  readonly result: unknown
  readonly children?: readonly DurableJob[]
  readonly steps?: readonly DoneStep[]
}

/**
 * Cost of a job so far in US dollars, with its children and steps, at current prices. Undefined if no part has a price.
 * The ledger (docs/operate/usage.md) has the amounts that were actually charged.
 */
export function costOf(
  { models }: { readonly models: Pick<ModelCatalogue, 'priceOf'> },
  job: DurableJob,
  { result, children = [], steps = [] }: Known,
): number | undefined {
  const ofSteps = steps.map(({ cost }) => (cost.cost_usd === undefined ? undefined : cost.cost_usd * NANOS_PER_USD))
  const isWhole = children.length === 0
  const own = isWhole ? nanosOf(models, job) : undefined
  const ofChildren = children.map((child) => nanosOf(models, child))
  const all = job.kind === batch.name ? [ofBatch(models, result)] : [own, ...ofChildren, ...ofSteps]
  const known = all.filter((nanos) => nanos !== undefined)
  return known.length === 0 ? undefined : known.reduce((sum, nanos) => sum + nanos, 0) / NANOS_PER_USD
}

type Prices = Pick<ModelCatalogue, 'priceOf'>

/** Cost of a job itself. The tokens of a composed job are those of its children, so they are not counted here. */
function nanosOf(models: Prices, { pool, model, state, usage }: DurableJob): number | undefined {
  if (usage === null || usage === undefined || pool === 'research' || pool === 'batches') return undefined
  return callCost(meteredOf(usage), models.priceOf({ pool, model }), state === 'completed')
}

function ofBatch(models: Prices, result: unknown): number | undefined {
  const { model, usage, counts } = (result ?? {}) as { model?: string; usage?: object; counts?: { completed: number } }
  const price = typeof model === 'string' ? models.priceOf({ pool: 'inference', model }) : undefined
  if (!price || !usage || !counts) return undefined
  const ofTokens = callCost(meteredOf(usage), { ...price, per_call: 0 }, true)
  const ofCalls = price.per_call * counts.completed * NANOS_PER_USD
  return ofTokens === undefined && ofCalls === 0 ? undefined : (ofTokens ?? 0) + ofCalls
}

function meteredOf(usage: unknown) {
  const { input_tokens, cached_tokens, output_tokens } = usageOf(usage)
  const { type, seconds = 0 } = usage as { type?: unknown; seconds?: number }
  const audio_ms = type === 'duration' ? Math.round(seconds * 1_000) : 0
  return { input_tokens, cached_tokens, output_tokens, audio_ms, run_ms: 0, cost_nanos: 0 }
}
