/** Sentences that are compared with each other; the others count as beside the middle. */
const SENTENCES_MAX = 200
const ROUNDS = 12
const DAMPING = 0.85

/**
 * How central each of some sentences is among them, 0 to 1: a sentence that shares terms with many is in the middle of what they
 * are about (TextRank, Mihalcea and Tarau 2004). Yields so that it can be done in turns.
 */
export function* textRank(sentences: readonly ReadonlySet<string>[]): Generator<void, number[]> {
  const compared = sentences.slice(0, SENTENCES_MAX)
  const links: number[][] = []
  for (const [at, a] of compared.entries()) {
    links.push(compared.map((b, other) => (other === at ? 0 : likeness(a, b))))
    yield
  }
  const out = links.map((row) => row.reduce((sum, link) => sum + link, 0))
  let ranks = compared.map(() => 1)
  for (let round = 0; round < ROUNDS; round++) {
    ranks = links.map((row) => {
      const given = row.reduce((sum, link, other) => sum + (link * (ranks[other] ?? 0)) / (out[other] || 1), 0)
      return 1 - DAMPING + DAMPING * given
    })
    yield
  }
  const most = Math.max(...ranks, Number.EPSILON)
  return sentences.map((_, at) => (ranks[at] ?? 0) / most)
}

function likeness(a: ReadonlySet<string>, b: ReadonlySet<string>): number {
  if (a.size < 2 || b.size < 2) return 0
  let shared = 0
  for (const term of a) if (b.has(term)) shared++
  return shared / (Math.log(a.size) + Math.log(b.size))
}
