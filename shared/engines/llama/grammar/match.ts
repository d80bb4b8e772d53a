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

/*
 * Runtime cost of a grammar.
 *
 * llama.cpp maintains a stack for each possible continuation of the text so far, and checks each stack against each token of the
 * vocabulary. Alternatives with the same beginning continue in parallel.
 *
 * If two alternatives with the same beginning are recursive, then the number of continuations doubles at each level. A few dozen tokens
 * would then take minutes of uninterruptible CPU time.
 *
 * While the grammar is written, two numbers of each piece are therefore counted and bounded: its possible beginnings and its parallel
 * continuations.
 */

/**
 * Maximum parallel continuations at one place of the grammar. At this maximum, setting up the stacks takes 20 ms, and each token takes 0.3 s. Both
 * times grow with the square of the number of continuations.
 */
const WAYS_MAX = 1_000
/** Number of beginnings that is assumed for a rule that refers to itself. The assumption is checked when the rule is complete. */
const STARTS_ASSUMED = 50
const OPENING_CHARS_MAX = 200

/**
 * The reason why no grammar can enforce a schema. The message is the end of a sentence that begins with "The JSON
 * schema".
 */
export class SchemaProblem extends Error {
  /** Path of the faulty part, such as `.properties.a`. Empty for the whole schema. */
  readonly path: string

  constructor(message: string, path = '') {
    super(message)
    this.path = path
  }
}

/** Thrown for a schema that accepts no value. Alternatives, optional properties and optional items with such a schema are omitted. */
export class Impossible extends SchemaProblem {
  constructor(path: string) {
    super('accepts no value', path)
  }
}

/**
 * A rule of the grammar that other rules refer to by name. A rule is open until its body is complete. A reference to an open rule is therefore a
 * cycle.
 */
export interface Reference {
  readonly name: string
  readonly order: number
  readonly depth: number
  isOpen: boolean
  isAssumed: boolean
  match?: Match
}

export interface Match {
  readonly text: string
  readonly opening: string
  readonly isWhole: boolean
  readonly starts: number
  readonly ways: number
  /** The outermost unfinished rule to which this piece of the grammar refers. Undefined if there is none. */
  readonly cycle: Reference | undefined
}

export function matchOf(text: string, opening: string, inner: readonly Match[] = [], ways = 1): Match {
  return {
    text,
    opening: opening.slice(0, OPENING_CHARS_MAX),
    isWhole: false,
    starts: 1,
    ways: bounded(inner.reduce((most, match) => Math.max(most, match.ways), ways)),
    cycle: firstCycle(inner),
  }
}

/** Makes a piece of grammar that matches exactly one JSON text. JSON and GBNF use the same escapes. */
export function literal(json: string): Match {
  const text = JSON.stringify(json)
  return { ...matchOf(text, json), isWhole: json.length <= OPENING_CHARS_MAX }
}

export function alike(text: string, ways: number): Match {
  return { ...matchOf(text, '', [], ways), starts: ways }
}

export function choice(alternatives: readonly Match[]): Match {
  const distinct = [...new Map(alternatives.map((match) => [match.text, match])).values()]
  const [only] = distinct
  if (only !== undefined && distinct.length === 1) return only
  const starts = bounded(distinct.reduce((total, match) => total + match.starts, 0))
  return {
    text: distinct.map((match) => match.text).join(' | '),
    opening: '',
    isWhole: false,
    starts,
    ways: Math.max(starts, countSideBySide(distinct)),
    cycle: firstCycle(distinct),
  }
}

export function openMatch(reference: Reference): Match {
  reference.isAssumed = true
  return { ...alike(reference.name, STARTS_ASSUMED), ways: 1, cycle: reference }
}

export function close(reference: Reference, match: Match): void {
  reference.isOpen = false
  reference.match = { ...match, text: reference.name }
  if (reference.isAssumed && match.starts > STARTS_ASSUMED) throw tooManyWays()
}

function countSideBySide(alternatives: readonly Match[]): number {
  const sorted = alternatives.toSorted((a, b) => (a.opening < b.opening ? -1 : 1))
  const path: { opening: string; ways: number; cycles: number }[] = []
  let most = 0
  for (const { opening, ways, cycle } of sorted) {
    while (path.length > 0 && !opening.startsWith(path.at(-1)?.opening ?? '')) path.pop()
    const { ways: before = 0, cycles = 0 } = path.at(-1) ?? {}
    const here = { opening, ways: before + ways, cycles: cycles + (cycle?.isOpen ? 1 : 0) }
    if (here.cycles > 1) throw new SchemaProblem('has recursive alternatives with the same beginning')
    path.push(here)
    most = Math.max(most, here.ways)
  }
  return bounded(most)
}

function firstCycle(matches: readonly Match[]): Reference | undefined {
  const open = matches.flatMap(({ cycle }) => (cycle?.isOpen ? [cycle] : []))
  return open.reduce<Reference | undefined>((first, one) => (first && first.order < one.order ? first : one), undefined)
}

function bounded(ways: number): number {
  if (ways > WAYS_MAX) throw tooManyWays()
  return ways
}

function tooManyWays(): SchemaProblem {
  return new SchemaProblem(`allows more than ${WAYS_MAX} values or alternatives at the same position of the answer`)
}

/*
 * `oneOf` requires that exactly one alternative accepts a value. The grammar generates values of any alternative, so the alternatives must be
 * disjoint.
 *
 * Two alternatives are disjoint if their types, listed values or number ranges do not overlap. Objects are also disjoint if a required property has
 * disjoint schemas, such as the tag of a union. Finally, objects are disjoint if one alternative requires a property that the other never has.
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

  spend(names: number): void {
    this.#left -= names
    if (this.#left < 0) throw new SchemaProblem('has too many alternatives of oneOf to compare')
  }
}

/**
 * Whether the alternatives are disjoint: each value that the grammar generates for one alternative is rejected by all other alternatives.
 *
 * @param isWhole Whether the generated objects have only the properties that `base` and the alternative list.
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
      if (
        at === index ||
        areDisjointSchemas(comparison, one, other, 0) ||
        areDisjointSchemas(comparison, first, second, 0)
      )
        return true
      return isWhole && lacksRequired(first, other) && lacksRequired(second, one)
    }),
  )
}

/** Whether `other` requires a property that no object generated for `written` has. */
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

function areDisjointSchemas(comparison: Comparison, one: unknown, other: unknown, depth: number): boolean {
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
    return (parts ?? [one]).some((a) =>
      (otherParts ?? [other]).some((b) => areDisjointSchemas(comparison, a, b, depth + 1)),
    )
  }
  const [types, others] = [typesOf(one), typesOf(other)]
  const shared = types.filter((type) => others.includes(type))
  return shared.every((type) => areDisjointAs(type, comparison, one, other, depth))
}

function areDisjointAs(type: string, comparison: Comparison, one: Schema, other: Schema, depth: number): boolean {
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
    return areDisjointSchemas(comparison, comparison.reader.resolve(inner), comparison.reader.resolve(outer), depth + 1)
  })
}

function isBelow(one: Schema, other: Schema): boolean {
  const high = Math.min(numberOf(one, 'maximum') ?? Infinity, numberOf(one, 'exclusiveMaximum') ?? Infinity)
  const low = Math.max(numberOf(other, 'minimum') ?? -Infinity, numberOf(other, 'exclusiveMinimum') ?? -Infinity)
  return (
    high < low ||
    (high === low && (numberOf(one, 'exclusiveMaximum') === high || numberOf(other, 'exclusiveMinimum') === low))
  )
}

function typesOf(schema: Schema): string[] {
  const values = valuesOf(schema)
  const given = values ? values.map(typeOfValue) : schema.type === undefined ? TYPES : [schema.type].flat().map(String)
  return [...new Set(given.map((type) => (type === 'integer' ? 'number' : type)))]
}

function typeOfValue(value: unknown): string {
  if (value === null) return 'null'
  return Array.isArray(value) ? 'array' : typeof value
}
