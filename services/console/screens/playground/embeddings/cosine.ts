/** Cosine similarity, -1 to 1; 0 if one of the vectors is zero. */
export function cosine(a: readonly number[], b: readonly number[]): number {
  const dot = product(a, b)
  const lengths = Math.sqrt(product(a, a) * product(b, b))
  return lengths === 0 ? 0 : dot / lengths
}

/** The most similar pair of a similarity matrix; undefined for fewer than two rows. */
export function nearestPair(
  rows: readonly (readonly number[])[],
): { readonly a: number; readonly b: number; readonly value: number } | undefined {
  const pairs = rows.flatMap((row, a) => row.slice(0, a).map((value, b) => ({ a: b, b: a, value })))
  return pairs.toSorted((one, other) => other.value - one.value)[0]
}

function product(a: readonly number[], b: readonly number[]): number {
  return a.reduce((sum, value, nth) => sum + value * (b[nth] ?? 0), 0)
}
