const CHARS_MAX = 64
const NAMES_MAX = 500

/**
 * Returns existing names, most similar to `wanted` first.
 *
 * @returns Each name with its edit distance (Damerau-Levenshtein: a swap of neighbours is one edit)
 */
export function similarNameOf(wanted: string, names: readonly string[]): { name: string; distance: number }[] {
  const text = wanted.slice(0, CHARS_MAX).toLowerCase()
  return names
    .slice(0, NAMES_MAX)
    .map((name) => ({ name, distance: distanceOf(text, name.slice(0, CHARS_MAX).toLowerCase()) }))
    .sort((a, b) => a.distance - b.distance)
}

function distanceOf(a: string, b: string): number {
  let above = Array.from({ length: b.length + 1 }, (_, column) => column)
  let twoAbove = above
  for (let row = 1; row <= a.length; row++) {
    const current = [row]
    for (let column = 1; column <= b.length; column++) {
      const change = (above[column - 1] ?? 0) + (a[row - 1] === b[column - 1] ? 0 : 1)
      const isSwap = row > 1 && column > 1 && a[row - 1] === b[column - 2] && a[row - 2] === b[column - 1]
      const swap = isSwap ? (twoAbove[column - 2] ?? 0) + 1 : Number.POSITIVE_INFINITY
      current.push(Math.min(change, swap, (above[column] ?? 0) + 1, (current[column - 1] ?? 0) + 1))
    }
    twoAbove = above
    above = current
  }
  return above[b.length] ?? 0
}
