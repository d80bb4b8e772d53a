import type { Cell, Sample } from '../calls/measure.ts'
import type { TargetName } from '../calls/targets.ts'
import { median } from './stats.ts'

/** A figure of the samples of one target under one load, and the same figure of another target in the same rounds. */
export class Figures {
  readonly #samples: readonly Sample[]

  constructor(samples: readonly Sample[]) {
    this.#samples = samples
  }

  /** Each load that was measured, in order. */
  get cells(): Cell[] {
    return [...new Map(this.#samples.map(({ cell }) => [nameOf(cell), cell])).values()]
  }

  /** Each target that was measured, in order. */
  get targets(): TargetName[] {
    return [...new Set(this.#samples.map(({ target }) => target))]
  }

  /** The samples of a target under a load, one a round. */
  of(target: TargetName, cell: Cell): Sample[] {
    return this.#samples.filter((sample) => sample.target === target && nameOf(sample.cell) === nameOf(cell))
  }

  /** Median over the rounds. NaN when nothing was measured. */
  median(target: TargetName, cell: Cell, figure: (sample: Sample) => number): number {
    return median(this.of(target, cell).map(figure))
  }

  /** Median over the rounds of a comparison with another target in the same round. NaN when nothing was measured. */
  paired(
    target: TargetName,
    base: TargetName,
    cell: Cell,
    figure: (sample: Sample) => number,
    compare: (value: number, base: number) => number,
  ): number {
    const bases = new Map(this.of(base, cell).map((sample) => [sample.round, figure(sample)]))
    return median(this.of(target, cell).map((sample) => compare(figure(sample), bases.get(sample.round) ?? Number.NaN)))
  }
}

/** How much more than the base. */
export const added = (value: number, base: number) => value - base
/** How many times the base. */
export const ratio = (value: number, base: number) => value / base

/** The name of a load, such as `whole-64`, or `whole-64-32k` where calls are about a text of 32 KiB. */
export function nameOf(cell: Cell): string {
  return `${cell.shape}-${cell.callers}${cell.promptKib === undefined ? '' : `-${cell.promptKib}k`}`
}
