/** Maximum characters of a name that are compared. Limited, because the work grows with the square of the length. */
const CHARS_MAX = 64
const SUGGESTIONS_MAX = 3

/** `Did you mean …? ` with the most similar names, or an empty text if no name is similar. */
export function didYouMean(unknown: string, names: readonly string[]): string {
  const similar = similarNames(unknown, names)
  return similar.length > 0 ? `Did you mean ${similar.join(' or ')}? ` : ''
}

/**
 * The names that a typo may have meant, the most similar first. Two names are similar if their edit distance is at most a
 * quarter of the letters. A prefix of a name is similar too.
 */
export function similarNames(unknown: string, names: readonly string[]): string[] {
  const typed = unknown.toLowerCase().slice(0, CHARS_MAX)
  const distanceMax = Math.max(1, Math.floor(typed.length / 4))
  const ranked = names.flatMap((name) => {
    const known = name.toLowerCase().slice(0, CHARS_MAX)
    if (Math.abs(known.length - typed.length) <= distanceMax) {
      const distance = editDistance(typed, known)
      if (distance <= distanceMax) return { name, rank: distance }
    }
    const isPrefix = typed.length > 2 && known.length > 2 && (known.startsWith(typed) || typed.startsWith(known))
    return isPrefix ? { name, rank: distanceMax + 1 } : []
  })
  const sorted = ranked.toSorted((one, other) => one.rank - other.rank)
  return sorted.slice(0, SUGGESTIONS_MAX).map(({ name }) => name)
}

/** Levenshtein distance: insertions, deletions and substitutions. */
function editDistance(one: string, other: string): number {
  let row = Array.from({ length: other.length + 1 }, (_, i) => i)
  for (const [i, letter] of [...one].entries()) {
    const next = [i + 1]
    for (let j = 0; j < other.length; j++) {
      const [left = 0, above = 0, before = 0] = [next[j], row[j + 1], row[j]]
      next.push(Math.min(left + 1, above + 1, before + (letter === other[j] ? 0 : 1)))
    }
    row = next
  }
  return row.at(-1) ?? 0
}
