/** What was seen of a run at one moment. */
export interface Sample {
  readonly atMs: number
  /** Requests that have ended. */
  readonly done: number
  /** Resident MiB by process. */
  readonly memory: Readonly<Record<string, number>>
}

const SLICES = 10

/** Results a second in each tenth of the time. */
export function ratesOf(samples: readonly Sample[]): number[] {
  let before: Pick<Sample, 'atMs' | 'done'> = { atMs: 0, done: 0 }
  return slicesOf(samples).map((slice) => {
    const last = slice.at(-1) as Sample
    const rate = Math.round(((last.done - before.done) * 1_000) / (last.atMs - before.atMs))
    before = last
    return rate
  })
}

/** The median of the memory of each process in each tenth of the time. */
export function sliceMemory(samples: readonly Sample[]): [string, number[]][] {
  const roles = Object.keys(samples[0]?.memory ?? {})
  return roles.map((role) => {
    const medians = slicesOf(samples).map((slice) =>
      quantile(
        slice.map(({ memory }) => memory[role] ?? 0),
        0.5,
      ),
    )
    return [role, medians.map(Math.round)]
  })
}

/** Two quantiles of calls alone and beside a batch, and their ratios. */
export function tailsOf(alone: readonly number[], beside: readonly number[]): string {
  const tails = [0.5, 0.99].map((share) => {
    const [a, b] = [quantile(alone, share), quantile(beside, share)]
    return `p${share * 100} ${a.toFixed(1)} alone, ${b.toFixed(1)} beside, ratio ${(b / a).toFixed(2)}`
  })
  return `${tails.join('; ')} (${alone.length} and ${beside.length} calls)`
}

function slicesOf(samples: readonly Sample[]): Sample[][] {
  const size = Math.max(1, Math.ceil(samples.length / SLICES))
  return Array.from({ length: Math.ceil(samples.length / size) }, (_, i) => samples.slice(i * size, (i + 1) * size))
}

/** By rank. */
function quantile(numbers: readonly number[], share: number): number {
  const sorted = numbers.toSorted((a, b) => a - b)
  return sorted[Math.min(sorted.length - 1, Math.floor(share * sorted.length))] ?? 0
}
