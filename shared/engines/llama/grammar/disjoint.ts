import {
  canonical,
  isSchema,
  numberOf,
  propertyOf,
  requiredOf,
  type Schema,
  type SchemaReader,
  valuesOf,
} from '#shared/json-schema/json-schema.ts'
import { SchemaProblem } from './match.ts'

/*
 * `oneOf` requires that exactly one alternative accepts a value. The grammar generates values of any alternative, so the alternatives must
 * be disjoint.
 *
 * Two alternatives are disjoint if their types, listed values or number ranges do not overlap. Objects are also disjoint if a required
 * property has disjoint schemas, such as the tag of a union. Another case is a required property that the other alternative lacks.
 */

const DEPTH_MAX = 8
const COMPARED_MAX = 50_000
const PARTS_MAX = 8
const TYPES = ['object', 'array', 'string', 'number', 'boolean', 'null']

export class Comparison {
  readonly reader: SchemaReader
  #left = COMPARED_MAX

  constructor(reader: SchemaReader) {
    this.reader = reader
  }

  /** @throws SchemaProblem if the alternatives need too many comparisons */
  spend(names: number): void {
    this.#left -= names
    if (this.#left < 0) throw new SchemaProblem('has too many alternatives of oneOf to compare')
  }
}

/**
 * Whether no value generated for one alternative is accepted by another.
 *
 * @param isWhole Whether the grammar generates only the properties of `base` and of an alternative.
 */
export function areDisjoint(
  comparison: Comparison,
  base: Schema,
  alternatives: readonly unknown[],
  isWhole: boolean,
): boolean {
  const { reader } = comparison
  const resolved = alternatives.map((one) => reader.resolve(one)).filter((one) => one !== false)
  const listed = resolved.map((one) => (isSchema(one) ? valuesOf(one) : undefined))
  if (listed.every((values) => values !== undefined)) {
    const all = listed.flatMap((values) => [...new Set(values.map(canonical))])
    return new Set(all).size === all.length
  }
  comparison.spend(resolved.length ** 2)
  const whole = resolved.map((one) => reader.merge(base, [one]))
  return resolved.every((one, index) =>
    resolved.every((other, at) => {
      const [first = {}, second = {}] = [whole[index], whole[at]]
      if (at === index || areApart(comparison, one, other, 0) || areApart(comparison, first, second, 0)) return true
      return isWhole && lacksRequired(first, other) && lacksRequired(second, one)
    }),
  )
}

/** Whether an object generated for a schema never has a property that another schema requires. */
function lacksRequired(written: Schema, other: unknown): boolean {
  const names = new Set([
    ...requiredOf(written),
    ...Object.keys(isSchema(written.properties) ? written.properties : {}),
  ])
  if (!isSchema(other) || names.size === 0) return false
  if (['allOf', 'anyOf', '$ref', 'dependentRequired'].some((keyword) => keyword in written)) return false
  const isObject = written.type === undefined || written.type === 'object'
  return isObject && [...requiredOf(other)].some((name) => !names.has(name))
}

/** Whether no value is accepted by both schemas. */
function areApart(comparison: Comparison, one: unknown, other: unknown, depth: number): boolean {
  if (one === false || other === false) return true
  if (!isSchema(one) || !isSchema(other) || depth > DEPTH_MAX) return false
  comparison.spend(
    1 + [one, other].reduce((total, schema) => total + requiredOf(schema).size + (valuesOf(schema)?.length ?? 0), 0),
  )
  const [parts, otherParts] = [one, other].map(({ allOf, ...rest }) =>
    Array.isArray(allOf)
      ? [rest, ...allOf.slice(0, PARTS_MAX).map((part) => comparison.reader.resolve(part))]
      : undefined,
  )
  if (parts || otherParts) {
    return (parts ?? [one]).some((a) => (otherParts ?? [other]).some((b) => areApart(comparison, a, b, depth + 1)))
  }
  const [types, others] = [typesOf(one), typesOf(other)]
  const shared = types.filter((type) => others.includes(type))
  return shared.every((type) => isApartAs(type, comparison, one, other, depth))
}

function isApartAs(type: string, comparison: Comparison, one: Schema, other: Schema, depth: number): boolean {
  const [values, others] = [valuesOf(one), valuesOf(other)]
  if (values && others) {
    const known = new Set(others.map(canonical))
    return !values.some((value) => known.has(canonical(value)))
  }
  if (type === 'number') return isBelow(one, other) || isBelow(other, one)
  if (type !== 'object') return false
  const required = new Set([...requiredOf(one), ...requiredOf(other)])
  return [...required].some((name) => {
    const [inner, outer] = [propertyOf(one, name), propertyOf(other, name)]
    if (inner === undefined || outer === undefined) {
      const lacking = inner === undefined ? one : other
      return lacking.additionalProperties === false && lacking.patternProperties === undefined
    }
    return areApart(comparison, comparison.reader.resolve(inner), comparison.reader.resolve(outer), depth + 1)
  })
}

/** Whether all numbers of a schema are less than those of another. */
function isBelow(one: Schema, other: Schema): boolean {
  const high = Math.min(numberOf(one, 'maximum') ?? Infinity, numberOf(one, 'exclusiveMaximum') ?? Infinity)
  const low = Math.max(numberOf(other, 'minimum') ?? -Infinity, numberOf(other, 'exclusiveMinimum') ?? -Infinity)
  return (
    high < low ||
    (high === low && (numberOf(one, 'exclusiveMaximum') === high || numberOf(other, 'exclusiveMinimum') === low))
  )
}

/** The types that a schema accepts; integers are numbers. */
function typesOf(schema: Schema): string[] {
  const values = valuesOf(schema)
  const given = values ? values.map(typeOfValue) : schema.type === undefined ? TYPES : [schema.type].flat().map(String)
  return [...new Set(given.map((type) => (type === 'integer' ? 'number' : type)))]
}

function typeOfValue(value: unknown): string {
  if (value === null) return 'null'
  return Array.isArray(value) ? 'array' : typeof value
}
