/**
 * Computes, for each passage, the largest cosine similarity to one of the questions. Yields to the event loop between vectors.
 *
 * @param result Response of `POST /v1/embeddings` whose inputs were the questions, then the passages.
 * @returns One cosine per passage; undefined if the number of vectors is wrong, their dimensions differ or one has no finite, positive norm
 */
export function* similarityOf(
  result: unknown,
  questions: number,
  passages: number,
): Generator<void, number[] | undefined> {
  const data = (result as { data?: unknown } | null)?.data
  if (!Array.isArray(data) || data.length !== questions + passages) return undefined
  const vectors: Float64Array[] = []
  for (const [at, item] of data.entries()) {
    const vector = unitOf(item, at)
    if (!vector || vector.length !== (vectors[0] ?? vector).length) return undefined
    vectors.push(vector)
    yield
  }
  const asked = vectors.slice(0, questions)
  const nearness: number[] = []
  for (const vector of vectors.slice(questions)) {
    nearness.push(Math.max(...asked.map((question) => dot(question, vector))))
    yield
  }
  return nearness
}

/** Normalizes a vector to length 1; undefined if the item is no vector or its norm is 0 or not finite. */
function unitOf(item: { index?: unknown; embedding?: unknown } | null, at: number): Float64Array | undefined {
  const numbers = item?.embedding
  if (item?.index !== at || !Array.isArray(numbers)) return undefined
  if (!numbers.every((number) => typeof number === 'number')) return undefined
  const vector = Float64Array.from(numbers)
  const length = Math.sqrt(dot(vector, vector))
  return length > 0 && Number.isFinite(length) ? vector.map((number) => number / length) : undefined
}

function dot(a: Float64Array, b: Float64Array): number {
  let sum = 0
  for (let at = 0; at < a.length; at++) sum += (a[at] ?? 0) * (b[at] ?? 0)
  return sum
}
