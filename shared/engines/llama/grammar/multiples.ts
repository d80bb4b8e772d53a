import { SchemaProblem } from './match.ts'
import { type Bounds, floatRange, integerRange, integersWithin } from './numbers.ts'

/*
 * GBNF of the multiples of a number. A few multiples are listed. For a step such as 5, 25 or 1,000, which divides a power of ten, the last
 * digits are listed and those before them are free. A step such as 0.01 limits the digits after the point.
 */

const LISTED_MAX = 500
const DIGITS_MAX = 9
/** Maximum magnitude of a number with a step below 1: a double cannot represent larger ones together with their fraction. */
const DECIMAL_MAX = 999_999_999
const LAST_DIGITS_MAX = 4

/** Multiples of `units / scale`, where scale is a power of ten. */
interface Step {
  readonly units: number
  readonly scale: number
}

/**
 * The multiples of all steps within bounds; undefined if there are none.
 *
 * @throws SchemaProblem if there are too many, and digits do not distinguish them from other numbers
 */
export function multiplesOf(steps: readonly number[], bounds: Bounds, isInteger: boolean): string | undefined {
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

/** All multiples within bounds; undefined if there are too many. */
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

/** The multiples from low to high, both at least 0. */
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
