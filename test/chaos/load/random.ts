/** Seeded random choices: equal seeds give equal sequences (Mulberry32). */
export interface Random {
  next(): number
  /** An integer from `min` to `max`, both inclusive. */
  between(min: number, max: number): number
  /** True with the probability `share`. */
  chance(share: number): boolean
  pick<T>(items: readonly [T, ...T[]]): T
}

export function openRandom(seed: number): Random {
  let state = seed >>> 0
  const next = () => {
    state = (state + 0x6d2b79f5) >>> 0
    let value = Math.imul(state ^ (state >>> 15), state | 1)
    value ^= value + Math.imul(value ^ (value >>> 7), value | 61)
    return ((value ^ (value >>> 14)) >>> 0) / 2 ** 32
  }
  return {
    next,
    between: (min, max) => min + Math.floor(next() * (max - min + 1)),
    chance: (share) => next() < share,
    pick: (items) => items[Math.floor(next() * items.length)] ?? items[0],
  }
}
