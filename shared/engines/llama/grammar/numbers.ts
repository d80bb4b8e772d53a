/** Bounds as JSON Schema names them. */
export interface Bounds {
  readonly minimum?: number | undefined
  readonly maximum?: number | undefined
  readonly exclusiveMinimum?: number | undefined
  readonly exclusiveMaximum?: number | undefined
}

/** Largest magnitude that open ends reach: every such integer is exact in a double. */
const LARGEST = 999_999_999_999_999
/** Digits after the point; the last is not 0, so that no fraction equals an integer bound. */
const FRACTION = '"." [0-9]{0,5} [1-9]'

/** GBNF of the decimal integers within bounds; undefined when there are no bounds, or nothing lies within. */
export function integerRange(bounds: Bounds): string | undefined {
  const range = integersWithin(bounds)
  return range && joinRange(range.low, range.high)
}

/**
 * GBNF of decimal numbers within bounds: all integers, and fractions between two integers within. Undefined when there
 * are no bounds or no integer lies within (0.2 to 0.8): then the bounds are not enforced.
 */
export function floatRange(bounds: Bounds): string | undefined {
  const range = integersWithin(bounds)
  if (!range) return undefined
  const { minimum, maximum, exclusiveMinimum, exclusiveMaximum } = bounds
  const low = Math.ceil(Math.max(minimum ?? -LARGEST, exclusiveMinimum ?? -LARGEST))
  const high = Math.floor(Math.min(maximum ?? LARGEST, exclusiveMaximum ?? LARGEST))
  const parts = [joinRange(range.low, range.high)]
  // "-3.5" lies below -3 and "3.5" above 3: the integer before the point is the end nearer to zero.
  const [above, below] = [Math.max(low, 0), Math.max(-high, 0)]
  if (above < high) parts.push(`(${digitsBetween(above, high - 1)}) ${FRACTION}`)
  if (below < -low) parts.push(`"-" (${digitsBetween(below, -low - 1)}) ${FRACTION}`)
  return parts.join(' | ')
}

function integersWithin(bounds: Bounds): { low: number; high: number } | undefined {
  const { minimum, maximum, exclusiveMinimum: above, exclusiveMaximum: below } = bounds
  if ([minimum, maximum, above, below].every((bound) => bound === undefined)) return undefined
  const low = Math.max(Math.ceil(minimum ?? -LARGEST), above === undefined ? -LARGEST : Math.floor(above) + 1)
  const high = Math.min(Math.floor(maximum ?? LARGEST), below === undefined ? LARGEST : Math.ceil(below) - 1)
  return low <= high && low >= -LARGEST && high <= LARGEST ? { low, high } : undefined
}

function joinRange(low: number, high: number): string {
  const parts: string[] = []
  if (low < 0) parts.push(`"-" (${digitsBetween(Math.max(1, -high), -low)})`)
  if (high >= 0) parts.push(digitsBetween(Math.max(0, low), high))
  return parts.join(' | ')
}

/** Alternatives of the digits of low..high, both at least 0, one part for each length. */
function digitsBetween(low: number, high: number): string {
  const parts: string[] = []
  for (let length = String(low).length; length <= String(high).length; length++) {
    const smallest = length === 1 ? 0 : 10 ** (length - 1)
    const from = Math.max(low, smallest)
    const to = Math.min(high, 10 ** length - 1)
    parts.push(sameLength(String(from), String(to)))
  }
  return parts.join(' | ')
}

/** Digits of from..to, which are equally long: by the first digit, then by the rest. */
function sameLength(from: string, to: string): string {
  const [a = '', b = ''] = [from[0], to[0]]
  const rest = from.length - 1
  const isWhole = /^0*$/.test(from.slice(1)) && /^9*$/.test(to.slice(1))
  if (rest === 0 || isWhole) return `${a === b ? `"${a}"` : `[${a}-${b}]`}${rest > 0 ? ` [0-9]{${rest}}` : ''}`
  if (a === b) return `"${a}" (${sameLength(from.slice(1), to.slice(1))})`
  const parts = [`"${a}" (${sameLength(from.slice(1), '9'.repeat(rest))})`]
  if (Number(b) - Number(a) > 1) parts.push(`[${Number(a) + 1}-${Number(b) - 1}] [0-9]{${rest}}`)
  parts.push(`"${b}" (${sameLength('0'.repeat(rest), to.slice(1))})`)
  return parts.join(' | ')
}
