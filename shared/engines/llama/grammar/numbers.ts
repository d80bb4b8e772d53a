export interface Bounds {
  readonly minimum?: number | undefined
  readonly maximum?: number | undefined
  readonly exclusiveMinimum?: number | undefined
  readonly exclusiveMaximum?: number | undefined
}

/** Default bound of the magnitude of generated numbers, which a double represents exactly. */
const LARGEST = 999_999_999_999_999
const DIGITS = 6
/** Numbers of fraction digits that are tried for a range between two integers, until the range has enough numbers. */
const NARROW_DIGITS = [1, 2, 3, 6, 9]
const NARROW_NUMBERS_MIN = 8

/** GBNF of the decimal integers within bounds; undefined if there are none. */
export function integerRange(bounds: Bounds): string | undefined {
  const range = integersWithin(bounds)
  return range && joinRange(range.low, range.high)
}

/**
 * GBNF of decimal numbers within bounds: all integers, and fractions between two such integers. If there is no integer between the bounds,
 * then fractions have as few digits as possible. Undefined if the range contains no representable number.
 *
 * @param digits Maximum digits after the point.
 */
export function floatRange(bounds: Bounds, digits = DIGITS): string | undefined {
  const range = integersWithin(bounds)
  if (!range) return narrowRange(bounds, digits)
  const { minimum, maximum, exclusiveMinimum, exclusiveMaximum } = bounds
  const low = Math.ceil(Math.max(minimum ?? -LARGEST, exclusiveMinimum ?? -LARGEST))
  const high = Math.floor(Math.min(maximum ?? LARGEST, exclusiveMaximum ?? LARGEST))
  const parts = [joinRange(range.low, range.high)]
  // The last digit is not 0, so that no fraction equals an integer bound.
  const fraction = `"." [0-9]{0,${digits - 1}} [1-9]`
  // "-3.5" is below -3 and "3.5" above 3: the integer part is the end nearer to zero.
  const [above, below] = [Math.max(low, 0), Math.max(-high, 0)]
  if (above < high) parts.push(`(${digitsBetween(above, high - 1)}) ${fraction}`)
  if (below < -low) parts.push(`"-" (${digitsBetween(below, -low - 1)}) ${fraction}`)
  const [least, most] = [
    Math.max(minimum ?? low, exclusiveMinimum ?? low),
    Math.min(maximum ?? high, exclusiveMaximum ?? high),
  ]
  if (least < low) parts.push(narrowRange({ exclusiveMinimum: least, exclusiveMaximum: low }, digits) ?? '')
  if (most > high) parts.push(narrowRange({ exclusiveMinimum: high, exclusiveMaximum: most }, digits) ?? '')
  return parts.filter((part) => part !== '').join(' | ')
}

export function integersWithin(bounds: Bounds): { low: number; high: number } | undefined {
  const { minimum, maximum, exclusiveMinimum: above, exclusiveMaximum: below } = bounds
  const low = Math.max(Math.ceil(minimum ?? -LARGEST), above === undefined ? -LARGEST : Math.floor(above) + 1)
  const high = Math.min(Math.floor(maximum ?? LARGEST), below === undefined ? LARGEST : Math.ceil(below) - 1)
  return low <= high && low >= -LARGEST && high <= LARGEST ? { low, high } : undefined
}

/** Fractions between two bounds without an integer between them, such as 0.2 and 0.8. */
function narrowRange(bounds: Bounds, digitsMax: number): string | undefined {
  const low = Math.max(bounds.minimum ?? -LARGEST, bounds.exclusiveMinimum ?? -LARGEST)
  const high = Math.min(bounds.maximum ?? LARGEST, bounds.exclusiveMaximum ?? LARGEST)
  if (!(low < high) || low < -LARGEST || high > LARGEST) return undefined
  const isNegative = high <= 0
  const [near, far] = isNegative ? [-high, -low] : [low, high]
  const whole = Math.floor(near)
  for (const digits of NARROW_DIGITS.filter((each) => each <= digitsMax)) {
    const scale = 10 ** digits
    const numberOf = (fraction: number) => Number(`${whole}.${String(fraction).padStart(digits, '0')}`)
    // The ends are omitted, since they may be excluded. Scaling rounds by less than one.
    let from = Math.floor((near - whole) * scale)
    while (numberOf(from) <= near) from++
    let to = Math.min(scale - 1, Math.ceil((far - whole) * scale))
    while (to >= 0 && numberOf(to) >= far) to--
    if (to - from + 1 < (digits === Math.min(9, digitsMax) ? 1 : NARROW_NUMBERS_MIN)) continue
    const [first, last] = [from, to].map((each) => String(each).padStart(digits, '0'))
    return `"${isNegative ? '-' : ''}${whole}." (${sameLength(first ?? '', last ?? '')})`
  }
  return undefined
}

function joinRange(low: number, high: number): string {
  const parts: string[] = []
  if (low < 0) parts.push(`"-" (${digitsBetween(Math.max(1, -high), -low)})`)
  if (high >= 0) parts.push(digitsBetween(Math.max(0, low), high))
  return parts.join(' | ')
}

/** Alternatives of the digits of low..high, both at least 0, one part per length. */
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

/** Digits of from..to, which have equal lengths: by the first digit, then by the rest. */
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
