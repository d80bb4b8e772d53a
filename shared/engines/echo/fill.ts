import {
  areTypes,
  isSchema,
  listOf,
  numberOf,
  propertyOf,
  requiredOf,
  SCHEMA_TYPES,
  type Schema,
  SchemaReader,
} from '#shared/json-schema/json-schema.ts'
import { ServiceError } from '#shared/lib/error.ts'

/** Minimum nesting depth at which optional properties and items are omitted. At twice this depth, a reference becomes null. */
const DEPTH_MAX = 4
/** Nesting depth beyond which every value is null. The bound is needed for schemas that contain themselves. */
const DEPTH_END = 200

export class FillBudget {
  /** Maximum number of values in one answer. The bound is needed for schemas that contain themselves. */
  values = 10_000
  characters = 1_000_000
}

/**
 * Generates a small value that a JSON Schema accepts. Equal schemas always get equal values.
 *
 * Supported are const, enum, default, examples, type (also a list), properties, required, items, prefixItems and minItems. Also supported are length
 * and number bounds, multipleOf, common formats, anyOf, oneOf, allOf, and $ref into the schema itself.
 *
 * Not supported are pattern, not, if/then, patternProperties and uniqueItems. If the budget is exhausted, or if the schema contains itself without an
 * end, then the rest is null.
 *
 * @param root The schema, and the target of `#/…` references
 * @throws ServiceError `invalid_value` for a schema that is too large to merge, or that has an unknown type
 */
export function fillSchema(root: Schema, options: FillOptions = {}): unknown {
  const { name = 'value', param, budget = new FillBudget() } = options
  try {
    return new Filler(root, budget).fill(root, name, 0)
  } catch (cause) {
    if (cause instanceof UnknownType) throw new ServiceError('invalid_value', cause.message, { cause, param })
    if (!(cause instanceof RangeError)) throw cause
    throw new ServiceError('invalid_value', 'The JSON schema is too large for this model.', { cause, param })
  }
}

interface FillOptions {
  readonly name?: string | undefined
  readonly param?: string
  readonly budget?: FillBudget
}

class UnknownType extends Error {
  constructor(type: unknown) {
    const shown = JSON.stringify(type).slice(0, 64)
    super(`Unknown type ${shown} in the JSON schema. Types are: ${SCHEMA_TYPES.join(', ')}.`)
  }
}

class Filler {
  readonly #reader: SchemaReader
  readonly #budget: FillBudget
  readonly #sizes = new Map<unknown, number>()

  constructor(root: Schema, budget: FillBudget) {
    this.#reader = new SchemaReader(root)
    this.#budget = budget
  }

  fill(schema: unknown, name: string, depth: number): unknown {
    if (this.#budget.values-- <= 0 || depth > DEPTH_END) return null
    if (!isSchema(schema)) return this.#text(name)
    if (schema.type !== undefined && !areTypes(schema.type)) throw new UnknownType(schema.type)
    if (typeof schema.$ref === 'string') {
      return depth > 2 * DEPTH_MAX ? null : this.fill(this.#reader.resolve(schema), name, depth + 1)
    }
    const given = givenValue(schema)
    if (given) return this.#given(given.value)
    const alternatives = [schema.anyOf, schema.oneOf].find(Array.isArray)
    if (alternatives) return this.#alternative(schema, alternatives, name, depth)
    if (Array.isArray(schema.allOf)) {
      const { allOf, ...base } = schema
      const parts = (allOf as unknown[]).map((part) => this.#reader.resolve(part))
      return this.fill(this.#reader.merge(base, parts), name, depth + 1)
    }
    return this.#typed(schema, name, depth)
  }

  #alternative(schema: Schema, alternatives: readonly unknown[], name: string, depth: number): unknown {
    const { anyOf: _anyOf, oneOf: _oneOf, ...base } = schema
    // Beyond this depth, the last alternative is chosen. Schemas usually list `null` and types without children last,
    // so the value ends here.
    const chosen = alternatives.at(depth < DEPTH_MAX ? 0 : -1)
    return this.fill(this.#reader.merge(base, [this.#reader.resolve(chosen)]), name, depth + 1)
  }

  #typed(schema: Schema, name: string, depth: number): unknown {
    switch (typeOf(schema)) {
      case 'object':
        return this.#object(schema, depth)
      case 'array':
        return this.#array(schema, name, depth)
      case 'integer':
        return fillNumber(schema, true)
      case 'number':
        return fillNumber(schema, false)
      case 'boolean':
        return true
      case 'null':
        return null
      default:
        return this.#string(schema, name)
    }
  }

  #object(schema: Schema, depth: number): Record<string, unknown> {
    const properties = isSchema(schema.properties) ? Object.keys(schema.properties) : []
    const names = requiredOf(schema)
    const all = depth < DEPTH_MAX ? new Set([...properties, ...names]) : names
    const wanted = Math.min(numberOf(schema, 'minProperties') ?? 0, this.#budget.values)
    for (let i = 1; all.size < wanted; i++) all.add(`key${i}`)
    const additional = isSchema(schema.additionalProperties) ? schema.additionalProperties : {}
    const entries: [string, unknown][] = []
    for (const name of all) {
      if (this.#budget.values <= 0 || !this.#spend(name.length)) break
      entries.push([name, this.fill(propertyOf(schema, name) ?? additional, name, depth + 1)])
    }
    return Object.fromEntries(entries)
  }

  #array(schema: Schema, name: string, depth: number): unknown[] {
    const prefix = listOf(schema, 'prefixItems')
    const usual = depth < DEPTH_MAX && prefix.length === 0 ? 1 : prefix.length
    const most = numberOf(schema, 'maxItems') ?? Infinity
    const count = Math.min(Math.max(usual, numberOf(schema, 'minItems') ?? 0), most)
    const items: unknown[] = []
    while (items.length < count && this.#budget.values > 0) {
      items.push(this.fill(prefix[items.length] ?? schema.items ?? {}, name, depth + 1))
    }
    return items
  }

  #string(schema: Schema, name: string): string {
    const format = FORMATS.get(schema.format as string)
    if (format !== undefined) return format
    const length = Math.min(numberOf(schema, 'minLength') ?? 0, this.#budget.characters)
    return this.#text(name.padEnd(length, 'x').slice(0, numberOf(schema, 'maxLength')))
  }

  #text(text: string): string {
    const left = Math.max(0, this.#budget.characters)
    this.#spend(text.length)
    return text.slice(0, left)
  }

  #given(value: unknown): unknown {
    const size = this.#sizes.get(value) ?? sizeOf(value)
    this.#sizes.set(value, size)
    return this.#spend(size) ? value : null
  }

  #spend(characters: number): boolean {
    if (characters > this.#budget.characters) return false
    this.#budget.characters -= characters
    return true
  }
}

function givenValue(schema: Schema): { value: unknown } | undefined {
  if ('const' in schema) return { value: schema.const }
  const [first] = listOf(schema, 'enum')
  if (first !== undefined) return { value: first }
  if ('default' in schema) return { value: schema.default }
  const [example] = listOf(schema, 'examples')
  return example === undefined ? undefined : { value: example }
}

function sizeOf(value: unknown): number {
  if (typeof value === 'string') return value.length + 2
  if (typeof value !== 'object' || value === null) return 8
  let size = 2
  for (const [key, inner] of Object.entries(value)) size += key.length + 4 + sizeOf(inner)
  return size
}

function typeOf(schema: Schema): unknown {
  if (Array.isArray(schema.type)) return schema.type[0]
  if (schema.type !== undefined) return schema.type
  if (schema.properties !== undefined) return 'object'
  return schema.items === undefined && schema.prefixItems === undefined ? 'string' : 'array'
}

function fillNumber(schema: Schema, isInteger: boolean): number {
  const step = numberOf(schema, 'multipleOf') ?? (isInteger ? 1 : 0)
  const above = numberOf(schema, 'exclusiveMinimum') ?? -Infinity
  const below = numberOf(schema, 'exclusiveMaximum') ?? Infinity
  const low = Math.max(numberOf(schema, 'minimum') ?? -Infinity, above)
  const high = Math.min(numberOf(schema, 'maximum') ?? Infinity, below)
  if (step === 0) {
    if (low > -Infinity && high < Infinity) return (low + high) / 2
    return low > -Infinity ? low + 1 : Math.min(1, high - 1)
  }
  let value = low > -Infinity ? Math.ceil(low / step) * step : Math.min(step, Math.floor(high / step) * step)
  if (value <= above) value += step
  if (value >= below) value -= step
  return value
}

const FORMATS: ReadonlyMap<string, string> = new Map([
  ['date', '2026-01-02'],
  ['time', '03:04:05Z'],
  ['date-time', '2026-01-02T03:04:05Z'],
  ['email', 'user@example.com'],
  ['uri', 'https://example.com/'],
  ['uuid', '00000000-0000-4000-8000-000000000000'],
  ['ipv4', '192.0.2.1'],
  ['ipv6', '2001:db8::1'],
  ['hostname', 'example.com'],
])
