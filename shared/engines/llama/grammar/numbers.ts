import { numberOf, type Schema } from '#shared/json-schema/json-schema.ts'
import { alike, Impossible, type Match, matchOf, SchemaProblem } from './match.ts'

export interface Member {
  readonly name: string
  readonly value: Match
  readonly pair: string
  readonly isRequired: boolean
}

export function openingOf(members: readonly Member[]): string {
  let opening = '{'
  for (const { name, value, isRequired } of members) {
    if (!isRequired) break
    opening += `${opening === '{' ? '' : ', '}${JSON.stringify(name)}: ${value.opening}`
    if (!value.isWhole) break
  }
  return opening
}

export const VALUE = alike('value', 8)
export const OBJECT = matchOf('object', '{', [VALUE])
export const STRING = matchOf('string', '"')

/**
 * Writes the grammar of a number or integer that is within the bounds of a schema and a multiple of its `multipleOf`.
 *
 * @throws SchemaProblem, Impossible
 */
export function numberMatch(schema: Schema, isInteger: boolean, path: string): Match {
  const bounds = boundsOf(schema)
  const steps = [schema.multipleOf].flat().filter((step) => typeof step === 'number' && step > 0) as number[]
  const text = steps.length > 0 ? multiplesOf(steps, bounds, isInteger) : plainNumber(bounds, isInteger)
  if (text === undefined) throw new Impossible(path)
  return alike(text, text.split(' | ').length + 1)
}

function plainNumber(bounds: Bounds, isInteger: boolean): string | undefined {
  const isOpen = Object.values(bounds).every((bound) => bound === undefined)
  if (isOpen) return isInteger ? 'integer' : 'number'
  return isInteger ? integerRange(bounds) : floatRange(bounds)
}

function boundsOf(schema: Schema): Bounds {
  return {
    minimum: numberOf(schema, 'minimum'),
    maximum: numberOf(schema, 'maximum'),
    exclusiveMinimum: numberOf(schema, 'exclusiveMinimum'),
    exclusiveMaximum: numberOf(schema, 'exclusiveMaximum'),
  }
}

/*
 * GBNF of the multiples of a number. If there are only a few multiples, then they are listed. A step such as 5, 25 or 1,000 divides a power of ten.
 * In this case the last digits are listed, and the digits before them are free. A step such as 0.01 limits the digits after the point.
 */

const LISTED_MAX = 500
const DIGITS_MAX = 9
/** Maximum magnitude of a number whose `multipleOf` is below 1. Beyond this magnitude, a double cannot represent the fraction exactly. */
const DECIMAL_MAX = 999_999_999
const LAST_DIGITS_MAX = 4

interface Step {
  readonly units: number
  readonly scale: number
}

/**
 * Writes the grammar of numbers within bounds that are multiples of all steps. Undefined if there are none.
 *
 * @throws SchemaProblem if there are too many multiples to list, and the last digits of a number do not show whether the number is a
 * multiple
 */
function multiplesOf(steps: readonly number[], bounds: Bounds, isInteger: boolean): string | undefined {
  const step = commonStep(steps, isInteger)
  const listed = listMultiples(step, bounds)
  if (listed) return listed.length > 0 ? listed.map((text) => `"${text}"`).join(' | ') : undefined
  const { units, scale } = step
  if (units === scale) return integerRange(bounds)
  const digits = Math.log10(scale / units)
  if (digits > 0 && Number.isInteger(digits)) {
    const { minimum = -DECIMAL_MAX, maximum = DECIMAL_MAX, ...exclusive } = bounds
    return floatRange({ minimum, maximum, ...exclusive }, digits)
  }
  const multiple = units / scale
  const lastDigits = [1, 2, 3, LAST_DIGITS_MAX].find(
    (count) => Number.isInteger(multiple) && 10 ** count % multiple === 0,
  )
  if (lastDigits === undefined) {
    throw new SchemaProblem(`has a multipleOf with more than ${LISTED_MAX} multiples, which is not supported`)
  }
  const range = integersWithin(bounds)
  if (!range) return undefined
  const parts = [...byLastDigits(multiple, lastDigits, Math.max(0, range.low), range.high)]
  const negative = byLastDigits(multiple, lastDigits, Math.max(1, -range.high), -range.low)
  if (negative.length > 0) parts.push(`"-" (${negative.join(' | ')})`)
  return parts.length > 0 ? parts.join(' | ') : undefined
}

function commonStep(steps: readonly number[], isInteger: boolean): Step {
  const digits = Math.max(...steps.map(digitsAfterPoint))
  const scale = 10 ** digits
  const all = [...steps.map((step) => Math.round(step * scale)), ...(isInteger ? [scale] : [])]
  const units = all.reduce((one, other) => (one / greatestDivisor(one, other)) * other)
  if (digits <= DIGITS_MAX && Number.isSafeInteger(units)) return { units, scale }
  throw new SchemaProblem(`has a multipleOf with more than ${DIGITS_MAX} digits`)
}

function listMultiples({ units, scale }: Step, bounds: Bounds): string[] | undefined {
  const {
    minimum = -Infinity,
    maximum = Infinity,
    exclusiveMinimum: above = -Infinity,
    exclusiveMaximum: below = Infinity,
  } = bounds
  const first = Math.floor((Math.max(minimum, above) * scale) / units) - 1
  const last = Math.ceil((Math.min(maximum, below) * scale) / units) + 1
  if (!(last - first <= LISTED_MAX) || !Number.isSafeInteger(first * units) || !Number.isSafeInteger(last * units)) {
    return undefined
  }
  const values = Array.from({ length: Math.max(0, last - first + 1) }, (_, index) => ((first + index) * units) / scale)
  const within = values.filter((value) => value >= minimum && value <= maximum && value > above && value < below)
  return within.map((value) => (Number.isInteger(value) ? String(value) : value.toFixed(Math.round(Math.log10(scale)))))
}

function byLastDigits(multiple: number, digits: number, low: number, high: number): string[] {
  if (low > high) return []
  const block = 10 ** digits
  const first = Math.max(1, Math.ceil(low / block))
  const last = Math.floor((high + 1) / block) - 1
  const parts = [...listed(multiple, low, Math.min(high, first * block - 1))]
  if (first > last) return [...parts, ...listed(multiple, Math.max(low, first * block), high)]
  const ends = Array.from(
    { length: block / multiple },
    (_, index) => `"${String(index * multiple).padStart(digits, '0')}"`,
  )
  parts.push(`(${integerRange({ minimum: first, maximum: last })}) (${ends.join(' | ')})`)
  return [...parts, ...listed(multiple, (last + 1) * block, high)]
}

function listed(multiple: number, low: number, high: number): string[] {
  const first = Math.ceil(low / multiple)
  const count = Math.max(0, Math.floor(high / multiple) - first + 1)
  return Array.from({ length: count }, (_, index) => `"${(first + index) * multiple}"`)
}

function digitsAfterPoint(step: number): number {
  const [mantissa = '', exponent = '0'] = String(step).split('e')
  return Math.max(0, (mantissa.split('.')[1] ?? '').length - Number(exponent))
}

function greatestDivisor(one: number, other: number): number {
  return other === 0 ? one : greatestDivisor(other, one % other)
}

interface Bounds {
  readonly minimum?: number | undefined
  readonly maximum?: number | undefined
  readonly exclusiveMinimum?: number | undefined
  readonly exclusiveMaximum?: number | undefined
}

/** Default maximum magnitude of generated numbers. A double represents all such integers exactly. */
const LARGEST = 999_999_999_999_999
const DIGITS = 6
/**
 * Numbers of fraction digits that are tried, in order, for a range without an integer. The first number that permits at least
 * {@link NARROW_NUMBERS_MIN} numbers is used.
 */
const NARROW_DIGITS = [1, 2, 3, 6, 9]
const NARROW_NUMBERS_MIN = 8

export function integerRange(bounds: Bounds): string | undefined {
  const range = integersWithin(bounds)
  return range && joinRange(range.low, range.high)
}

/**
 * GBNF of decimal numbers within bounds. The grammar generates all integers within the bounds, and fractions between adjacent integers of the range.
 * If the bounds contain no integer, then fractions have as few digits as possible. Undefined if the bounds contain no number that can be written.
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
  // The last digit of a fraction is never 0, so that a fraction never equals the integer at the excluded bound.
  const fraction = `"." [0-9]{0,${digits - 1}} [1-9]`
  // The integer part of a fraction is the adjacent integer nearer to zero: -3 in "-3.5", and 3 in "3.5".
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

function integersWithin(bounds: Bounds): { low: number; high: number } | undefined {
  const { minimum, maximum, exclusiveMinimum: above, exclusiveMaximum: below } = bounds
  const low = Math.max(Math.ceil(minimum ?? -LARGEST), above === undefined ? -LARGEST : Math.floor(above) + 1)
  const high = Math.min(Math.floor(maximum ?? LARGEST), below === undefined ? LARGEST : Math.ceil(below) - 1)
  return low <= high && low >= -LARGEST && high <= LARGEST ? { low, high } : undefined
}

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
    // Both bounds are treated as excluded. The product above may be rounded, so each loop moves its end of the range until the fraction is
    // inside the bounds.
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
