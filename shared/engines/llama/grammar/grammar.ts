import { ServiceError } from '#shared/error.ts'
import {
  isSchema,
  listOf,
  numberOf,
  propertyOf,
  requiredOf,
  type Schema,
  SchemaReader,
} from '#shared/json-schema/json-schema.ts'
import { alike, close, literal, type Match, matchOf, openMatch, type Reference, SchemaProblem } from './match.ts'
import { FORMATS, printGrammar } from './rules.ts'
import { choiceOrValue, type Member, numberMatch, OBJECT, openingOf, STRING, VALUE } from './values.ts'

/*
 * JSON Schema → GBNF, the grammar notation of llama.cpp. One rule for each schema node, so the grammar grows with the
 * schema and recursion is a rule that names itself.
 */

/** Most schema nodes of one grammar, each alternative and repeated use counted. */
const NODES_MAX = 2_500
/** Most characters of a grammar. */
const GRAMMAR_CHARS_MAX = 250_000
/** Schemas merged into one before it counts as containing itself. */
const MERGES_MAX = 64
/** Longest string and array whose length a rule counts: llama.cpp unrolls repetition, and refuses about 2,000. */
const CHARACTERS_MAX = 256
const ITEMS_MAX = 1_000
/** Most repetitions unrolled in one grammar; they cost 3 µs each. Equal ones are written once. */
const UNROLLED_MAX = 8_000

/**
 * Writes the grammar of the JSON texts that a schema accepts.
 *
 * Enforced: type (also lists), const, enum, properties in their order, required, additionalProperties, items,
 * prefixItems, minItems, maxItems up to 1,000, bounds of numbers, lengths up to 256, the formats date, time, date-time
 * and uuid, anyOf, oneOf (as anyOf), allOf (merged), local $ref with recursion. Not enforced, while the rest of the
 * schema still is: pattern, patternProperties, minProperties, maxProperties, multipleOf, uniqueItems, contains, not,
 * if/then, other formats. An object with properties never gets others; with an empty list of them it is {}.
 *
 * It holds the event loop, and so does llama.cpp when it reads the grammar: each of them some 30 ms at the bounds.
 *
 * @param param What the error names when the schema is at fault
 * @throws ServiceError `invalid_value` when the schema has too many nodes, asks for over 1,000 items, has no end, or
 * leaves too many ways to go on
 */
export function writeSchemaGrammar(schema: Schema, param: string): string {
  try {
    return new GrammarWriter(schema).write()
  } catch (cause) {
    // Deep recursion shows as a stack overflow.
    const problem = cause instanceof SchemaProblem ? cause.message : 'is too large, or contains itself without an end'
    throw new ServiceError('invalid_value', `This model cannot follow the JSON schema: it ${problem}.`, {
      cause,
      param,
    })
  }
}

class GrammarWriter {
  readonly #root: Schema
  readonly #reader: SchemaReader
  readonly #rules = new Map<string, string>()
  /** Bodies of rules → their names: equal ones are written once. */
  readonly #names = new Map<string, string>()
  readonly #references = new Map<string, Reference>()
  #depth = 0
  #nodes = 0
  #characters = 0
  #unrolled = 0

  constructor(root: Schema) {
    this.#root = root
    this.#reader = new SchemaReader(root)
  }

  write(): string {
    this.#define('#', 'root', this.#root)
    return printGrammar(Object.fromEntries(this.#rules))
  }

  /** What matches a schema, as the name of a rule. */
  #rule(schema: unknown): Match {
    if (!isSchema(schema)) return VALUE
    return this.#add(this.#body(schema))
  }

  /** What stands in an object or an array. */
  #inner(schema: unknown): Match {
    this.#depth++
    const match = this.#rule(schema)
    this.#depth--
    return match
  }

  #add(match: Match): Match {
    const { text } = match
    // A body that is one word is a rule already.
    if (/^[a-z0-9]{1,20}$/.test(text)) return match
    let name = this.#names.get(text)
    if (name === undefined) {
      name = `r${this.#rules.size}`
      this.#names.set(text, name)
      this.#write(name, text)
    }
    return { ...match, text: name }
  }

  #write(name: string, text: string): void {
    this.#characters += text.length + 12
    if (this.#characters > GRAMMAR_CHARS_MAX) throw new SchemaProblem('makes too large a grammar')
    this.#rules.set(name, text)
  }

  #reference(pointer: string): Match {
    const known = this.#references.get(pointer)
    if (known?.match) return known.match
    if (known) {
      if (known.depth === this.#depth) throw new SchemaProblem('contains itself without an end')
      return openMatch(known)
    }
    const target = this.#reader.follow(pointer)
    return isSchema(target) ? this.#define(pointer, `r${this.#rules.size}`, target) : VALUE
  }

  #define(pointer: string, name: string, target: Schema): Match {
    const order = this.#references.size
    const reference: Reference = { name, order, depth: this.#depth, isOpen: true, isAssumed: false }
    this.#references.set(pointer, reference)
    // Takes the name before what is inside does.
    this.#rules.set(name, '')
    const match = this.#body(target)
    this.#write(name, match.text)
    close(reference, match)
    return { ...match, text: name }
  }

  #body(schema: Schema, merges = 0): Match {
    if (merges > MERGES_MAX) throw new SchemaProblem('contains itself without an end')
    if (++this.#nodes > NODES_MAX) throw new SchemaProblem(`has more than ${NODES_MAX} nodes`)
    if (typeof schema.$ref === 'string') {
      const { $ref, ...rest } = schema
      const isPlain = Object.keys(rest).every((key) => !ASSERTIONS.has(key))
      return isPlain ? this.#reference($ref as string) : this.#body(resolved(this.#reader, schema), merges + 1)
    }
    if ('const' in schema) return this.#literal(schema.const)
    if (Array.isArray(schema.enum)) return choiceOrValue(schema.enum.map((value) => this.#literal(value)))
    const { anyOf, oneOf, allOf, ...base } = schema
    if (Array.isArray(allOf)) return this.#body(this.#mergeAll({ ...base, anyOf, oneOf }, allOf), merges + 1)
    const alternatives = [anyOf, oneOf].find(Array.isArray)
    if (alternatives) return choiceOrValue(alternatives.map((one) => this.#alternative(base, one)))
    if (Array.isArray(schema.type)) return choiceOrValue(schema.type.map((type) => this.#rule({ ...schema, type })))
    return this.#typed(schema)
  }

  #literal(value: unknown): Match {
    const match = literal(JSON.stringify(value))
    this.#characters += match.text.length
    if (this.#characters > GRAMMAR_CHARS_MAX) throw new SchemaProblem('makes too large a grammar')
    return match
  }

  #alternative(base: Schema, one: unknown): Match {
    const isPlain = Object.keys(base).every((key) => !ASSERTIONS.has(key))
    return this.#rule(isPlain ? one : this.#reader.merge(base, [this.#reader.resolve(one)]))
  }

  #mergeAll(base: Schema, parts: readonly unknown[]): Schema {
    const merged = this.#reader.merge(
      base,
      parts.map((part) => this.#reader.resolve(part)),
    )
    const { anyOf, oneOf, ...rest } = merged
    return { ...rest, ...(anyOf ? { anyOf } : {}), ...(oneOf ? { oneOf } : {}) }
  }

  #typed(schema: Schema): Match {
    switch (schema.type ?? guessType(schema)) {
      case 'object':
        return this.#object(schema)
      case 'array':
        return this.#array(schema)
      case 'string':
        return this.#string(schema)
      case 'integer':
        return numberMatch(schema, true)
      case 'number':
        return numberMatch(schema, false)
      case 'boolean':
        return alike('"true" | "false"', 2)
      case 'null':
        return literal('null')
      default:
        return VALUE
    }
  }

  #object(schema: Schema): Match {
    const properties = isSchema(schema.properties) ? schema.properties : {}
    const required = requiredOf(schema)
    const names = new Set([...Object.keys(properties), ...required])
    if (names.size === 0) return this.#map(schema)
    const members: Member[] = []
    for (const name of names) {
      // A name without a schema costs as much as one with it.
      if (!isSchema(propertyOf(schema, name))) this.#nodes++
      const value = this.#inner(propertyOf(schema, name))
      const pair = this.#add(matchOf(`${this.#literal(name).text} ": " ${value.text}`, ''))
      members.push({ name, value, pair: pair.text, isRequired: required.has(name) })
    }
    const values = members.map((member) => member.value)
    const firsts = members.findIndex((member) => member.isRequired)
    // An optional member costs llama.cpp as much as two alternatives.
    const ways = 2 * (firsts < 0 ? members.length : firsts) + 1
    return { ...matchOf(`"{" ${this.#members(members)} "}"`, openingOf(members), values, ways) }
  }

  /**
   * Members in their order, optional ones left out at will: from each place a rule leads on that begins with a comma, and
   * the first one is a choice of all that may come first. Written from the last member to the first.
   */
  #members(members: readonly Member[]): string {
    let next = '""'
    let firsts = ['""']
    for (const { pair, isRequired } of members.toReversed()) {
      const first = `${pair} ${next}`
      if (isRequired) firsts = [first]
      else firsts.push(first)
      next = this.#add(matchOf(isRequired ? `", " ${pair} ${next}` : `(", " ${pair})? ${next}`, '')).text
    }
    return this.#add(matchOf(firsts.toReversed().join(' | '), '')).text
  }

  #map(schema: Schema): Match {
    const empty = literal('{}')
    if (schema.additionalProperties === false) return empty
    if (!isSchema(schema.additionalProperties)) return isSchema(schema.properties) ? empty : OBJECT
    const value = this.#inner(schema.additionalProperties)
    const pair = this.#add(matchOf(`string ": " ${value.text}`, '"')).text
    return matchOf(`"{" (${pair} (", " ${pair})*)? "}"`, '{', [value])
  }

  #array(schema: Schema): Match {
    const prefix = listOf(schema, 'prefixItems').map((item) => this.#inner(item))
    if (prefix.length > 0) {
      this.#nodes += prefix.length
      return matchOf(`"[" ${prefix.map((item) => item.text).join(' ", " ')} "]"`, '[', prefix)
    }
    const min = Math.max(0, Math.trunc(numberOf(schema, 'minItems') ?? 0))
    const max = Math.max(min, Math.trunc(numberOf(schema, 'maxItems') ?? Number.POSITIVE_INFINITY))
    if (min > ITEMS_MAX) throw new SchemaProblem(`asks for more than ${ITEMS_MAX} items`)
    if (max === 0) return literal('[]')
    const item = this.#inner(schema.items)
    const more = `(", " ${item.text}){${Math.max(0, min - 1)},${max > ITEMS_MAX ? '' : max - 1}}`
    const text = min > 0 ? `"[" ${item.text} ${more} "]"` : `"[" (${item.text} ${more})? "]"`
    return this.#unroll(matchOf(text, '[', [item]), max > ITEMS_MAX ? min : max)
  }

  #string(schema: Schema): Match {
    const format = FORMATS.get(schema.format as string)
    if (format !== undefined) return matchOf(format, '"')
    const min = Math.max(0, Math.trunc(Math.min(numberOf(schema, 'minLength') ?? 0, CHARACTERS_MAX)))
    const max = Math.max(min, Math.trunc(numberOf(schema, 'maxLength') ?? Number.POSITIVE_INFINITY))
    const isOpen = max > CHARACTERS_MAX
    if (min === 0 && isOpen) return STRING
    return this.#unroll(matchOf(`"\\"" char{${min},${isOpen ? '' : max}} "\\""`, '"'), isOpen ? min : max)
  }

  /** A rule with so many repetitions. */
  #unroll(match: Match, repetitions: number): Match {
    if (!this.#names.has(match.text)) this.#unrolled += repetitions
    if (this.#unrolled > UNROLLED_MAX) throw new SchemaProblem('has too many lengths to count')
    return this.#add(match)
  }
}

/** A reference with more beside it, as one schema. */
function resolved(reader: SchemaReader, schema: Schema): Schema {
  const target = reader.resolve(schema)
  return isSchema(target) ? target : {}
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
