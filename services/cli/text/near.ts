/** Characters of a name that are compared: what is longer is no typo. */
const CHARS_MAX = 64
/** Names that are offered at most. */
const OFFERED_MAX = 3

/** `Did you mean …? ` with the names that look most like one that is none of them; empty where none does. */
export function didYouMean(wrong: string, names: readonly string[]): string {
  const near = nearNames(wrong, names)
  return near.length > 0 ? `Did you mean ${near.join(' or ')}? ` : ''
}

/** The names that a typo may have meant, the nearest first: few letters are different, or one begins as the other. */
export function nearNames(wrong: string, names: readonly string[]): string[] {
  const asked = wrong.toLowerCase().slice(0, CHARS_MAX)
  const most = Math.max(1, Math.floor(asked.length / 4))
  const ranked = names.flatMap((name) => {
    const known = name.toLowerCase().slice(0, CHARS_MAX)
    if (Math.abs(known.length - asked.length) <= most) {
      const distance = editDistance(asked, known)
      if (distance <= most) return { name, rank: distance }
    }
    const isBeginning = asked.length > 2 && known.length > 2 && (known.startsWith(asked) || asked.startsWith(known))
    return isBeginning ? { name, rank: most + 1 } : []
  })
  const sorted = ranked.toSorted((one, other) => one.rank - other.rank)
  return sorted.slice(0, OFFERED_MAX).map(({ name }) => name)
}

/** How many letters must be put in, taken out or changed to make one text of another (Levenshtein). */
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
