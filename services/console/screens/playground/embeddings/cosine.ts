/** The cosine of the angle between two vectors, -1 to 1; 0 where one of them is nothing. */
export function cosine(a: readonly number[], b: readonly number[]): number {
  const dot = product(a, b)
  const lengths = Math.sqrt(product(a, a) * product(b, b))
  return lengths === 0 ? 0 : dot / lengths
}

/** The two that are nearest, of the cosines of all; undefined where there are no two. */
export function nearestPair(
  rows: readonly (readonly number[])[],
): { readonly a: number; readonly b: number; readonly value: number } | undefined {
  const pairs = rows.flatMap((row, a) => row.slice(0, a).map((value, b) => ({ a: b, b: a, value })))
  return pairs.toSorted((one, other) => other.value - one.value)[0]
}

function product(a: readonly number[], b: readonly number[]): number {
  return a.reduce((sum, value, nth) => sum + value * (b[nth] ?? 0), 0)
}
