/*
 * Fits the logistic regression that decides whether documents answer a question. Each question has several quotes, and each quote has a vector
 * of signals. A question counts as answered if at least one of its quotes answers it (multiple-instance learning). The fit therefore alternates
 * between two steps: for each question, choose the quote with the highest log-odds, then fit the coefficients to the chosen quotes.
 */

export interface Sample {
  /** Name of a group of related questions. Cross-validation leaves all samples of one group out of the fit together. */
  readonly group: string
  readonly isAnswerable: boolean
  /** Signals of each quote. Empty if no quote may answer the question. */
  readonly quotes: readonly (readonly number[])[]
}

const ROUNDS = 6
const STEPS = 12
/** Ridge penalty of each coefficient, for signals that are scaled to a standard deviation of 1. */
const PENALTY = 3

/** Returns the coefficients of the signals, then the bias. */
export function fitRegression(samples: readonly Sample[]): number[] {
  const used = samples.filter(({ quotes }) => quotes.length > 0)
  const all = used.flatMap(({ quotes }) => quotes)
  const width = all[0]?.length ?? 0
  const means = range(width).map((at) => mean(all.map((quote) => quote[at] ?? 0)))
  const deviations = range(width).map((at) =>
    Math.sqrt(mean(all.map((quote) => ((quote[at] ?? 0) - (means[at] ?? 0)) ** 2)) || 1),
  )
  const scaled = used.map(({ quotes, isAnswerable }) => ({
    isAnswerable,
    quotes: quotes.map((quote) => quote.map((value, at) => (value - (means[at] ?? 0)) / (deviations[at] ?? 1))),
  }))
  let solution = [...range(width).map(() => 1), 0]
  for (let round = 0; round < ROUNDS; round++) {
    const chosen = scaled.map(({ quotes, isAnswerable }) => ({ isAnswerable, quote: best(quotes, solution) }))
    solution = newton(chosen, solution)
  }
  const raw = range(width).map((at) => (solution[at] ?? 0) / (deviations[at] ?? 1))
  const bias = (solution[width] ?? 0) - raw.reduce((sum, value, at) => sum + value * (means[at] ?? 0), 0)
  return [...raw, bias]
}

/** Returns the highest log-odds of the quotes. Without quotes, the result is negative infinity. */
export function logOddsOf({ quotes }: Sample, solution: readonly number[]): number {
  return Math.max(Number.NEGATIVE_INFINITY, ...quotes.map((quote) => dot(quote, solution)))
}

function best(quotes: readonly (readonly number[])[], solution: readonly number[]): readonly number[] {
  return quotes.toSorted((a, b) => dot(b, solution) - dot(a, solution))[0] ?? []
}

function newton(
  samples: readonly { readonly isAnswerable: boolean; readonly quote: readonly number[] }[],
  start: readonly number[],
): number[] {
  let solution = [...start]
  const size = solution.length
  for (let step = 0; step < STEPS; step++) {
    const gradient = solution.map((value, at) => (at === size - 1 ? 0 : PENALTY * value))
    const hessian = range(size).map((row) =>
      range(size).map((column): number => (row === column && row < size - 1 ? PENALTY : 0)),
    )
    for (const { isAnswerable, quote } of samples) {
      const input = [...quote, 1]
      const probability = 1 / (1 + Math.exp(-dot(quote, solution)))
      for (const [row, x] of input.entries()) {
        gradient[row] = (gradient[row] ?? 0) + x * (probability - Number(isAnswerable))
        for (const [column, y] of input.entries()) {
          const line = hessian[row]
          if (line) line[column] = (line[column] ?? 0) + x * y * probability * (1 - probability)
        }
      }
    }
    const change = solve(hessian, gradient)
    solution = solution.map((value, at) => value - (change[at] ?? 0))
  }
  return solution
}

/** Solves a system of linear equations by Gauss-Jordan elimination. The matrix is positive definite, so no pivot is 0. */
function solve(matrix: readonly (readonly number[])[], right: readonly number[]): number[] {
  const rows = matrix.map((row, at) => [...row, right[at] ?? 0])
  for (const [at, pivotRow] of rows.entries()) {
    const pivot = pivotRow[at] ?? 1
    for (const [column, value] of pivotRow.entries()) pivotRow[column] = value / pivot
    for (const [other, row] of rows.entries()) {
      const factor = row[at] ?? 0
      if (other !== at)
        for (const [column, value] of pivotRow.entries()) row[column] = (row[column] ?? 0) - factor * value
    }
  }
  return rows.map((row) => row.at(-1) ?? 0)
}

function dot(values: readonly number[], solution: readonly number[]): number {
  return values.reduce((sum, value, at) => sum + value * (solution[at] ?? 0), solution.at(-1) ?? 0)
}

function range(size: number): number[] {
  return Array.from({ length: size }, (_, at) => at)
}

function mean(values: readonly number[]): number {
  return values.reduce((sum, value) => sum + value, 0) / Math.max(1, values.length)
}
