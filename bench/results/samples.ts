export interface Sample {
  readonly target: string
  readonly load: string
  readonly round: number
  readonly figures: Readonly<Record<string, number>>
}

/** Returns a percentile by the nearest rank, or NaN without values. @param share Between 0 and 1 */
export function percentile(values: readonly number[], share: number): number {
  const sorted = Float64Array.from(values).sort()
  return sorted[Math.min(sorted.length - 1, Math.floor(sorted.length * share))] ?? Number.NaN
}

/** Returns the middle value, or the mean of the two middle values if the count is even. NaN values are ignored. */
export function median(values: readonly number[]): number {
  const sorted = Float64Array.from(values.filter((value) => !Number.isNaN(value))).sort()
  const half = sorted.length >> 1
  const upper = sorted[half] ?? Number.NaN
  return sorted.length % 2 === 1 ? upper : (upper + (sorted[half - 1] ?? Number.NaN)) / 2
}

export function sumOf(values: readonly number[]): number {
  return values.reduce((sum, value) => sum + value, 0)
}

/** Samples of a measurement. Each result is a median over the rounds, or NaN if nothing was measured. */
export class Samples {
  readonly all: Sample[] = []

  add(target: string, load: string, round: number, figures: Readonly<Record<string, number>>): void {
    this.all.push({ target, load, round, figures })
  }

  get targets(): string[] {
    return [...new Set(this.all.map(({ target }) => target))]
  }

  get loads(): string[] {
    return [...new Set(this.all.map(({ load }) => load))]
  }

  median(target: string, load: string, figure: string): number {
    return median(this.#of(target, load).map(({ figures }) => figures[figure] ?? Number.NaN))
  }

  /**
   * Returns the figure of the target divided by that of the base. Only figures of one round are compared, because other work on the machine
   * then affects both equally.
   */
  ratio(target: string, base: string, load: string, figure: string): number {
    return this.#paired(target, base, load, figure, (value, other) => value / other)
  }

  added(target: string, base: string, load: string, figure: string): number {
    return this.#paired(target, base, load, figure, (value, other) => value - other)
  }

  #paired(target: string, base: string, load: string, figure: string, compare: (a: number, b: number) => number) {
    const bases = new Map(this.#of(base, load).map(({ round, figures }) => [round, figures[figure]]))
    const own = this.#of(target, load)
    return median(own.map((one) => compare(one.figures[figure] ?? Number.NaN, bases.get(one.round) ?? Number.NaN)))
  }

  #of(target: string, load: string): Sample[] {
    return this.all.filter((sample) => sample.target === target && sample.load === load)
  }
}
