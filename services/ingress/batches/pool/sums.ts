import type { BatchCounts, BatchUsage } from '#schemas/batches/batch.ts'

export interface Sums {
  readonly counts: BatchCounts
  readonly usage: BatchUsage
}

export const NO_SUMS: Sums = {
  counts: { completed: 0, failed: 0, cancelled: 0, expired: 0 },
  usage: { input_tokens: 0, cached_tokens: 0, output_tokens: 0, reasoning_tokens: 0 },
}

export function sumOf(all: readonly Sums[]): Sums {
  return all.reduce((a, b) => ({ counts: added(a.counts, b.counts), usage: added(a.usage, b.usage) }), NO_SUMS)
}

function added<T extends object>(a: T, b: T): T {
  const amounts = Object.entries(a).map(([name, amount]) => [name, amount + (b as Record<string, number>)[name]])
  return Object.fromEntries(amounts) as T
}

export function usageOf(said: unknown): BatchUsage {
  const usage = (said ?? {}) as Record<string, unknown>
  const details = (...names: string[]) =>
    names.map((name) => usage[name] as Record<string, unknown> | undefined).find((found) => found != null) ?? {}
  const number = (from: Record<string, unknown>, ...names: string[]) => {
    const found = names.map((name) => from[name]).find((value) => Number.isInteger(value))
    return (found as number | undefined) ?? 0
  }
  const input = details('input_tokens_details', 'prompt_tokens_details')
  const output = details('output_tokens_details', 'completion_tokens_details')
  return {
    input_tokens: number(usage, 'input_tokens', 'prompt_tokens'),
    cached_tokens: number(input, 'cached_tokens') || number(usage, 'cache_read_input_tokens'),
    output_tokens: number(usage, 'output_tokens', 'completion_tokens'),
    reasoning_tokens: number(output, 'reasoning_tokens'),
  }
}
