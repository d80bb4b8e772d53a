import { ServiceError } from '#shared/error.ts'
import { floatRange, integerRange } from './llama-grammar-numbers.ts'

type Schema = Record<string, unknown>

/*
 * JSON Schema → GBNF, the grammar notation of llama.cpp. One rule for each schema node, so the grammar grows with the
 * schema and recursion is a rule that names itself. Values are written in one way only, "key": value, with no free
 * white space: a small model that may write blanks writes them for ever.
 */

/** Most schema nodes of one grammar, each alternative and repeated use counted. */
const NODES_MAX = 5_000
/** Longest string and array whose length a rule counts: llama.cpp unrolls repetition, and refuses about 2,000. */
const CHARACTERS_MAX = 256
const ITEMS_MAX = 1_000

const SHARED_RULES = {
  value: 'object | array | string | number | "true" | "false" | "null"',
  object: '"{" (pair (", " pair)*)? "}"',
  pair: 'string ": " value',
  array: '"[" (value (", " value)*)? "]"',
  string: '"\\"" char* "\\""',
  // No \u escapes: half a surrogate pair would be valid JSON and broken text.
  char: '[^"\\\\\\x00-\\x1F\\x7F] | "\\\\" ["\\\\/bfnrt]',
  integer: '"-"? ("0" | [1-9] [0-9]{0,14})',
  number: 'integer ("." [0-9]{1,6})?',
  digits2: '[0-9] [0-9]',
  date: '[0-9] [0-9] digits2 "-" ("0" [1-9] | "1" [0-2]) "-" ("0" [1-9] | "1" [0-9] | "2" [0-8])',
  time: '("0" [0-9] | "1" [0-9] | "2" [0-3]) ":" [0-5] [0-9] ":" [0-5] [0-9] "Z"',
  hex: '[0-9a-f]',
}

const FORMATS: Readonly<Record<string, string>> = {
  date: '"\\"" date "\\""',
  time: '"\\"" time "\\""',
  'date-time': '"\\"" date "T" time "\\""',
  uuid: '"\\"" hex{8} "-" hex{4} "-4" hex{3} "-" [89ab] hex{3} "-" hex{12} "\\""',
}

/** Grammar of any JSON object. */
export const JSON_OBJECT_GRAMMAR = print({ root: 'object' })

/** Grammar of exactly one of these words. */
export function writeWordsGrammar(words: readonly string[]): string {
  return `root ::= ${words.map((word) => JSON.stringify(word)).join(' | ')}`
}

/**
 * Writes the grammar of the JSON texts that a schema accepts.
 *
 * Enforced: type (also lists), const, enum, properties in their order, required, additionalProperties, items,
 * prefixItems, minItems, maxItems up to 1,000, bounds of numbers, lengths up to 256, the formats date, time, date-time
 * and uuid, anyOf, oneOf (as anyOf), allOf (merged), local $ref with recursion. Not enforced, while the rest of the
 * schema still is: pattern, patternProperties, minProperties, maxProperties, multipleOf, uniqueItems, contains, not,
 * if/then, other formats. An object with properties never gets others; with an empty list of them it is {}.
 *
 * @param param What the error names when the schema is at fault
 * @throws ServiceError `invalid_value` when the schema has too many nodes, asks for over 1,000 items, or has no end
 */
export function writeSchemaGrammar(schema: Schema, param: string): string {
  try {
    return new GrammarWriter(schema).write()
  } catch (cause) {
    // A schema that contains itself by way of allOf has no end, and shows as a stack overflow.
    throw new ServiceError(
      'invalid_value',
      'The JSON schema is too large for this model, or contains itself without an end.',
      { cause, param },
    )
  }
}

class GrammarWriter {
  readonly #root: Schema
  readonly #rules: Record<string, string> = {}
  readonly #references = new Map<string, string>([['#', 'root']])
  #count = 0
  #nodes = 0

  constructor(root: Schema) {
    this.#root = root
  }

  write(): string {
    this.#rules.root = this.#body(this.#root)
    return print(this.#rules)
  }

  /** What matches a schema: the name of a rule. */
  #rule(schema: unknown): string {
    if (!isSchema(schema)) return 'value'
    if (typeof schema.$ref === 'string' && Object.keys(schema).length === 1) return this.#reference(schema.$ref)
    return this.#add(this.#body(schema))
  }

  #add(body: string): string {
    // A body that is one word is a rule already.
    if (/^[a-z0-9]+$/.test(body)) return body
    const name = `r${this.#count++}`
    this.#rules[name] = body
    return name
  }

  #reference(pointer: string): string {
    const known = this.#references.get(pointer)
    if (known) return known
    const target = follow(pointer, this.#root)
    if (!isSchema(target)) return 'value'
    const name = `r${this.#count++}`
    this.#references.set(pointer, name)
    this.#rules[name] = this.#body(target)
    return name
  }

  #body(schema: Schema): string {
    if (++this.#nodes > NODES_MAX) throw new RangeError(`More than ${NODES_MAX} schema nodes`)
    if (typeof schema.$ref === 'string') {
      const { $ref, ...rest } = schema
      if (Object.keys(rest).every((key) => !ASSERTIONS.has(key))) return this.#reference($ref)
      return this.#body(merge(rest, follow($ref, this.#root)))
    }
    if ('const' in schema) return literal(schema.const)
    if (Array.isArray(schema.enum)) return choice(schema.enum.map(literal))
    const { anyOf, oneOf, allOf, ...base } = schema
    if (Array.isArray(allOf)) return this.#body(this.#mergeAll({ ...base, anyOf, oneOf }, allOf))
    const alternatives = [anyOf, oneOf].find(Array.isArray)
    if (alternatives) return choice(alternatives.map((one) => this.#alternative(base, one)))
    if (Array.isArray(schema.type)) return choice(schema.type.map((type) => this.#rule({ ...schema, type })))
    return this.#typed(schema)
  }

  #alternative(base: Schema, one: unknown): string {
    const isPlain = Object.keys(base).every((key) => !ASSERTIONS.has(key))
    return this.#rule(isPlain ? one : merge(base, this.#resolve(one)))
  }

  #mergeAll(base: Schema, parts: readonly unknown[]): Schema {
    const { anyOf, oneOf, ...rest } = parts.reduce<Schema>((all, part) => merge(all, this.#resolve(part)), base)
    return { ...rest, ...(anyOf ? { anyOf } : {}), ...(oneOf ? { oneOf } : {}) }
  }

  #resolve(schema: unknown): unknown {
    return isSchema(schema) && typeof schema.$ref === 'string' ? follow(schema.$ref, this.#root) : schema
  }

  #typed(schema: Schema): string {
    switch (schema.type ?? guessType(schema)) {
      case 'object':
        return this.#object(schema)
      case 'array':
        return this.#array(schema)
      case 'string':
        return stringOf(schema)
      case 'integer':
        return integerRange(boundsOf(schema)) ?? 'integer'
      case 'number':
        return floatRange(boundsOf(schema)) ?? 'number'
      case 'boolean':
        return '"true" | "false"'
      case 'null':
        return '"null"'
      default:
        return 'value'
    }
  }

  #object(schema: Schema): string {
    const properties = isSchema(schema.properties) ? schema.properties : {}
    const required = new Set(Array.isArray(schema.required) ? schema.required.map(String) : [])
    const names = [...new Set([...Object.keys(properties), ...required])]
    if (names.length === 0) return this.#map(schema)
    const members = names.map((name) => ({
      pair: this.#add(`${literal(name)} ": " ${this.#rule(properties[name])}`),
      isRequired: required.has(name),
    }))
    return `"{" ${this.#members(members)} "}"`
  }

  /**
   * Members in their order, optional ones left out at will: from each place two rules lead on, one for when nothing
   * stands before it and one that begins with a comma. Written from the last member to the first.
   */
  #members(members: readonly { pair: string; isRequired: boolean }[]): string {
    let [first, next] = ['""', '""']
    for (const { pair, isRequired } of members.toReversed()) {
      const [afterFirst, afterNext] = [first, next]
      first = this.#add(`${pair} ${afterNext}${isRequired ? '' : ` | ${afterFirst}`}`)
      next = this.#add(isRequired ? `", " ${pair} ${afterNext}` : `(", " ${pair})? ${afterNext}`)
    }
    return first
  }

  #map(schema: Schema): string {
    if (schema.additionalProperties === false) return '"{}"'
    if (!isSchema(schema.additionalProperties)) return isSchema(schema.properties) ? '"{}"' : 'object'
    const pair = this.#add(`string ": " ${this.#rule(schema.additionalProperties)}`)
    return `"{" (${pair} (", " ${pair})*)? "}"`
  }

  #array(schema: Schema): string {
    const prefix = Array.isArray(schema.prefixItems) ? schema.prefixItems.map((item) => this.#rule(item)) : []
    if (prefix.length > 0) return `"[" ${prefix.join(' ", " ')} "]"`
    const min = Math.max(0, Math.trunc(Number(schema.minItems ?? 0)))
    const max = Math.max(min, Math.trunc(Number(schema.maxItems ?? Number.POSITIVE_INFINITY)))
    if (min > ITEMS_MAX) throw new RangeError(`More than ${ITEMS_MAX} items`)
    if (max === 0) return '"[]"'
    const item = this.#rule(schema.items)
    const more = `(", " ${item}){${Math.max(0, min - 1)},${max > ITEMS_MAX ? '' : max - 1}}`
    return min > 0 ? `"[" ${item} ${more} "]"` : `"[" (${item} ${more})? "]"`
  }
}

/** Keywords that narrow what is accepted; the rest are notes. */
const ASSERTIONS = new Set(
  (
    'type const enum properties required additionalProperties items prefixItems minItems maxItems minimum maximum' +
    ' exclusiveMinimum exclusiveMaximum minLength maxLength format anyOf oneOf allOf'
  ).split(' '),
)

function guessType(schema: Schema): string | undefined {
  if ('properties' in schema || 'required' in schema || 'additionalProperties' in schema) return 'object'
  return 'items' in schema || 'prefixItems' in schema ? 'array' : undefined
}

function stringOf(schema: Schema): string {
  const format = FORMATS[String(schema.format)]
  if (format) return format
  const min = Math.min(Number(schema.minLength ?? 0), CHARACTERS_MAX)
  const max = Number(schema.maxLength ?? Number.POSITIVE_INFINITY)
  if (min === 0 && max > CHARACTERS_MAX) return 'string'
  return `"\\"" char{${min},${max > CHARACTERS_MAX ? '' : Math.max(min, max)}} "\\""`
}

function boundsOf(schema: Schema) {
  const bound = (key: string) => (typeof schema[key] === 'number' ? (schema[key] as number) : undefined)
  return {
    minimum: bound('minimum'),
    maximum: bound('maximum'),
    exclusiveMinimum: bound('exclusiveMinimum'),
    exclusiveMaximum: bound('exclusiveMaximum'),
  }
}

/** A JSON value as a GBNF literal: both escape in the same way. */
function literal(value: unknown): string {
  return JSON.stringify(JSON.stringify(value))
}

function choice(alternatives: readonly string[]): string {
  return alternatives.length === 0 ? 'value' : [...new Set(alternatives)].join(' | ')
}

/** `over` wins; properties and required of both are kept. */
function merge(base: Schema, over: unknown): Schema {
  if (!isSchema(over)) return base
  const merged = { ...base, ...over }
  if (isSchema(base.properties) && isSchema(over.properties)) {
    merged.properties = { ...base.properties, ...over.properties }
  }
  if (Array.isArray(base.required) && Array.isArray(over.required)) {
    merged.required = [...base.required, ...over.required]
  }
  return merged
}

/** What a local reference points at (RFC 6901). */
function follow(pointer: string, root: Schema): unknown {
  if (!pointer.startsWith('#')) return undefined
  let target: unknown = root
  for (const step of pointer.split('/').slice(1)) {
    const key = decodeURIComponent(step).replaceAll('~1', '/').replaceAll('~0', '~')
    target = typeof target === 'object' && target !== null ? (target as Schema)[key] : undefined
  }
  return target
}

function isSchema(value: unknown): value is Schema {
  return typeof value === 'object' && value !== null && !Array.isArray(value)
}

function print(rules: Readonly<Record<string, string>>): string {
  return Object.entries({ ...rules, ...SHARED_RULES })
    .map(([name, body]) => `${name} ::= ${body}`)
    .join('\n')
}
