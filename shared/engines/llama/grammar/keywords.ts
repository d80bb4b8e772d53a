import {
  canonical,
  isSchema,
  listOf,
  numberOf,
  propertyOf,
  requiredOf,
  type Schema,
  valuesOf,
} from '#shared/json-schema/json-schema.ts'
import type { Languages } from './language.ts'
import { Impossible, SchemaProblem } from './match.ts'
import type { Member } from './numbers.ts'
import { patternLanguage } from './pattern.ts'
import { hasLanguage, lengthsOf, stringLanguage } from './strings.ts'

/**
 * Keywords that apply only to values of one type, per type. If a schema specifies no type, then the first type in this list with one of the schema's
 * keywords is assumed.
 */
export const TYPE_KEYWORDS: readonly (readonly [string, readonly string[]])[] = [
  [
    'object',
    (
      'properties required additionalProperties patternProperties propertyNames minProperties maxProperties' +
      ' dependentRequired unevaluatedProperties'
    ).split(' '),
  ],
  ['array', 'items prefixItems additionalItems minItems maxItems uniqueItems unevaluatedItems'.split(' ')],
  ['string', 'pattern minLength maxLength format'.split(' ')],
  ['number', 'minimum maximum exclusiveMinimum exclusiveMaximum multipleOf'.split(' ')],
]

const ASSERTIONS: ReadonlySet<string> = new Set([
  ...TYPE_KEYWORDS.flatMap(([, keywords]) => keywords),
  ...['type', 'const', 'enum', 'anyOf', 'oneOf', 'allOf', '$ref'],
])

export function isPlain(schema: Schema): boolean {
  return Object.keys(schema).every((key) => !ASSERTIONS.has(key))
}

export const NAMES = ['patternProperties', 'propertyNames']
export const COUNTS = ['minProperties', 'maxProperties', 'dependentRequired']

export function countsOf(schema: Schema, of: 'Items' | 'Properties'): { min: number; max: number } {
  const min = Math.max(0, Math.ceil(numberOf(schema, `min${of}`) ?? 0))
  return { min, max: Math.floor(numberOf(schema, `max${of}`) ?? Number.POSITIVE_INFINITY) }
}

/** Returns the schemas of the first items, and the schema of all other items. In draft 7, `items` may be the list of the first items. */
export function itemsOf(schema: Schema): { tuple: readonly unknown[]; rest: unknown } {
  if (Array.isArray(schema.items)) return { tuple: schema.items, rest: schema.additionalItems }
  return { tuple: listOf(schema, 'prefixItems'), rest: schema.items ?? schema.unevaluatedItems }
}

interface Property {
  readonly name: string
  readonly value: unknown
  readonly isRequired: boolean
}

export function namedProperties(languages: Languages, schema: Schema): Property[] {
  const required = requiredOf(schema)
  const dependents = isSchema(schema.dependentRequired) ? schema.dependentRequired : {}
  for (const name of required) {
    if (Object.hasOwn(dependents, name)) for (const other of listOf(dependents, name)) required.add(String(other))
  }
  const names = new Set([...Object.keys(isSchema(schema.properties) ? schema.properties : {}), ...required])
  const { propertyNames = true } = schema
  return [...names].map((name) => {
    const isNameAccepted = isSchema(propertyNames)
      ? admits(languages, { type: 'string', ...propertyNames }, name)
      : propertyNames
    return { name, value: isNameAccepted && valueSchema(languages, schema, name), isRequired: required.has(name) }
  })
}

function valueSchema(languages: Languages, schema: Schema, name: string): unknown {
  const own = propertyOf(schema, name)
  const patterns = Object.entries(isSchema(schema.patternProperties) ? schema.patternProperties : {})
  const matching = patterns.filter(([pattern]) => languages.accepts(patternLanguage(languages, pattern), name))
  const all = [...(own === undefined ? [] : [own]), ...matching.map(([, value]) => value)]
  if (all.length > 1) return { allOf: all }
  return all.length === 1 ? all[0] : (schema.additionalProperties ?? schema.unevaluatedProperties ?? true)
}

/**
 * Selects the members of the object to generate. Each optional member becomes required or is omitted, so that the number of properties is always
 * within `minProperties` and `maxProperties`.
 *
 * @throws SchemaProblem if there are too few members, or if an optional member requires other optional members
 */
export function withinCounts(schema: Schema, members: readonly Member[], path: string): Member[] {
  const { min, max } = countsOf(schema, 'Properties')
  const required = members.filter(({ isRequired }) => isRequired).length
  if (min > max || required > max) throw new Impossible(path)
  let optional = max - required
  const kept = members.filter(({ isRequired }) => isRequired || optional-- > 0)
  if (kept.length < min) throw tooFew(path)
  let missing = min - required
  const counted = kept.map((member) => (member.isRequired || missing-- <= 0 ? member : { ...member, isRequired: true }))
  const always = new Set(counted.flatMap(({ name, isRequired }) => (isRequired ? [name] : [])))
  const dependents = isSchema(schema.dependentRequired) ? schema.dependentRequired : {}
  for (const { name } of counted) {
    if (Object.hasOwn(dependents, name) && !listOf(dependents, name).every((other) => always.has(String(other)))) {
      const message = 'makes other properties depend on an optional one, which is not supported'
      throw new SchemaProblem(message, `${path}.dependentRequired.${name}`)
    }
  }
  return counted
}

export function tooFew(path: string): SchemaProblem {
  return new SchemaProblem('requires more properties than it names', `${path}.minProperties`)
}

export function freeProperties(schema: Schema, path: string): { keys: unknown; value: unknown } {
  const { propertyNames: keys = true } = schema
  const patterns = Object.entries(isSchema(schema.patternProperties) ? schema.patternProperties : {})
  if (patterns.length > 1) throw new SchemaProblem('has more than one pattern', `${path}.patternProperties`)
  const [pattern] = patterns
  if (pattern) return { keys: { allOf: [keys, { pattern: pattern[0] }] }, value: pattern[1] }
  // If the schema has `properties` but does not describe additional properties, then no other properties are generated.
  const value = schema.additionalProperties ?? schema.unevaluatedProperties ?? !isSchema(schema.properties)
  return { keys, value }
}

/**
 * Whether a schema of one type accepts a value of `enum` or `const`.
 *
 * @throws SchemaProblem if the value is an object or array and the schema also has keywords of objects or arrays
 */
export function admits(languages: Languages, schema: Schema, value: unknown): boolean {
  const values = valuesOf(schema)
  if (values && !values.some((each) => canonical(each) === canonical(value))) return false
  const types = schema.type === undefined ? undefined : [schema.type].flat()
  if (types && !typesOf(value).some((type) => types.includes(type))) return false
  if (typeof value === 'string') return admitsText(languages, schema, value)
  if (typeof value === 'number') return admitsNumber(schema, value)
  if (typeof value !== 'object' || value === null) return true
  const [, keywords = []] = TYPE_KEYWORDS.find(([type]) => type === (Array.isArray(value) ? 'array' : 'object')) ?? []
  if (!keywords.some((keyword) => keyword in schema)) return true
  throw new SchemaProblem(
    'has enum or const with objects or arrays, and keywords about objects or arrays, which is not supported together',
  )
}

function typesOf(value: unknown): string[] {
  if (value === null) return ['null']
  if (Array.isArray(value)) return ['array']
  return Number.isInteger(value) ? ['integer', 'number'] : [typeof value]
}

function admitsText(languages: Languages, schema: Schema, text: string): boolean {
  const { min, max } = lengthsOf(schema)
  const { length } = [...text]
  return (
    length >= min &&
    length <= max &&
    (!hasLanguage(schema) || languages.accepts(stringLanguage(languages, schema), text))
  )
}

function admitsNumber(schema: Schema, value: number): boolean {
  const steps = [schema.multipleOf].flat().filter((step) => typeof step === 'number' && step > 0) as number[]
  return (
    value >= (numberOf(schema, 'minimum') ?? -Infinity) &&
    value <= (numberOf(schema, 'maximum') ?? Infinity) &&
    value > (numberOf(schema, 'exclusiveMinimum') ?? -Infinity) &&
    value < (numberOf(schema, 'exclusiveMaximum') ?? Infinity) &&
    steps.every((step) => Math.abs(value / step - Math.round(value / step)) < 1e-9)
  )
}
