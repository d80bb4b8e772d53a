/** A set of code points: sorted ranges that neither overlap nor touch, both ends included. */
export type Ranges = readonly (readonly [number, number])[]

export const CODE_POINT_MAX = 0x10_ffff
export const EVERY_CODE_POINT: Ranges = [[0, CODE_POINT_MAX]]

export function union(...sets: readonly Ranges[]): Ranges {
  const sorted = sets.flat().toSorted((a, b) => a[0] - b[0])
  const joined: [number, number][] = []
  for (const [low, high] of sorted) {
    const last = joined.at(-1)
    if (last && low <= last[1] + 1) last[1] = Math.max(last[1], high)
    else joined.push([low, high])
  }
  return joined
}

export function complement(set: Ranges): Ranges {
  const gaps: [number, number][] = []
  let next = 0
  for (const [low, high] of set) {
    if (low > next) gaps.push([next, low - 1])
    next = high + 1
  }
  if (next <= CODE_POINT_MAX) gaps.push([next, CODE_POINT_MAX])
  return gaps
}

export function without(set: Ranges, other: Ranges): Ranges {
  return complement(union(complement(set), other))
}

export function contains(set: Ranges, codePoint: number): boolean {
  return set.some(([low, high]) => low <= codePoint && codePoint <= high)
}

export function setOf(...characters: readonly string[]): Ranges {
  return union(characters.map((character) => [character.codePointAt(0) ?? 0, character.codePointAt(0) ?? 0] as const))
}
