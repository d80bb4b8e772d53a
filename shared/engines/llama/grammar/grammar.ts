import { isSchema, type Schema, SchemaReader, valuesOf } from '#shared/json-schema/json-schema.ts'
import { ServiceError } from '#shared/lib/error.ts'
import {
  admits,
  COUNTS,
  countsOf,
  freeProperties,
  isPlain,
  itemsOf,
  NAMES,
  namedProperties,
  TYPE_KEYWORDS,
  tooFew,
  withinCounts,
} from './keywords.ts'
import { Languages } from './language.ts'
import {
  alike,
  choice,
  close,
  Impossible,
  literal,
  type Match,
  matchOf,
  openMatch,
  type Reference,
  SchemaProblem,
} from './match.ts'
import { type Member, numberMatch, OBJECT, openingOf, STRING, VALUE } from './numbers.ts'
import { JSON_OBJECT_GRAMMAR, RuleBook, repeated } from './rules.ts'
import { charactersOf, hasLanguage, lengthsOf, stringAutomaton, stringLanguage } from './strings.ts'
import { requireSupported } from './supported.ts'

/*
 * Converts JSON Schema to GBNF, the grammar notation of llama.cpp. Each schema node becomes one rule, so the grammar grows in proportion to the
 * schema. A recursive schema becomes a rule that refers to itself.
 */

/** Maximum schema nodes of one grammar. Each alternative and each repeated use of a node counts. */
const NODES_MAX = 2_500
/** Maximum number of schemas that are merged into one. A schema that needs more merges is treated as endlessly recursive. */
const MERGES_MAX = 64
const CHARACTERS_MAX = 100_000
const ITEMS_MAX = 1_000
const PATH_CHARS_MAX = 256

export interface GrammarOptions {
  /** If true, then a schema with an unsupported keyword is rejected. If false, then the keyword is ignored. Default: true. */
  readonly isStrict?: boolean
}

/**
 * Creates a grammar of JSON texts that a schema accepts. The grammar generates only accepted texts, but not all of
 * them. For example, objects have only the named properties, in the order of the schema.
 *
 * All keywords of draft 2020-12 that {@link requireSupported} accepts are enforced. Not supported are mainly `not`,
 * `if`, `contains`, `uniqueItems` of more than one item, `dependentSchemas`, `$dynamicRef`, and `oneOf` with
 * overlapping alternatives.
 *
 * Schemas at the size limits take up to 0.5 s, so engines convert them in a thread (`converter.ts`). The parser of
 * llama.cpp then blocks the event loop for less than 15 ms.
 *
 * @param param Path of the schema in the request. Errors append the path of the faulty part.
 * @throws ServiceError `invalid_value` for an unsupported keyword or too many nodes. Other reasons are over 1,000
 * required items, a schema that accepts nothing, endless recursion, or too many alternatives at one place.
 */
export function writeSchemaGrammar(schema: Schema, param: string, { isStrict = true }: GrammarOptions = {}): string {
  try {
    if (isStrict) requireSupported(schema)
    return new GrammarWriter(schema, isStrict).write()
  } catch (cause) {
    if (!isStrict && cause instanceof Impossible) return JSON_OBJECT_GRAMMAR
    // Any other cause may be a stack overflow, because the schema is nested too deeply or recursive.
    const isProblem = cause instanceof SchemaProblem
    const problem = isProblem ? cause.message : 'is too large, or has endless recursion'
    const path = isProblem ? cause.path : ''
    const subject = path === '' ? 'it' : `'${path.replace(/^\./, '')}'`
    throw new ServiceError('invalid_value', `This model cannot follow the JSON schema: ${subject} ${problem}.`, {
      cause,
      param: `${param}${path}`.slice(0, PATH_CHARS_MAX).toWellFormed(),
    })
  }
}

class GrammarWriter {
  readonly #root: Schema
  readonly #isStrict: boolean
  readonly #reader: SchemaReader
  readonly #languages = new Languages()
  readonly #book = new RuleBook()
  readonly #references = new Map<string, Reference | Impossible>()
  readonly #strings = new Map<string, Match>()
  #depth = 0
  #nodes = 0

  constructor(root: Schema, isStrict: boolean) {
    this.#root = root
    this.#isStrict = isStrict
    this.#reader = new SchemaReader(root)
  }

  write(): string {
    this.#define('#', 'root', this.#root, '')
    return this.#book.print()
  }

  #rule(schema: unknown, path: string): Match {
    if (schema === false) throw new Impossible(path)
    if (!isSchema(schema)) return VALUE
    return this.#book.add(this.#body(schema, path))
  }

  #inner(schema: unknown, path: string): Match {
    this.#depth++
    try {
      return this.#rule(schema, path)
    } finally {
      this.#depth--
    }
  }

  #innerIfPossible(schema: unknown, path: string): Match | undefined {
    try {
      return this.#inner(schema, path)
    } catch (error) {
      if (error instanceof Impossible) return undefined
      throw error
    }
  }

  #reference(pointer: string, path: string): Match {
    const known = this.#references.get(pointer)
    if (known instanceof Impossible) throw known
    if (known?.match) return known.match
    if (known) {
      if (known.depth === this.#depth) throw new SchemaProblem('contains itself without an end')
      return openMatch(known)
    }
    const target = this.#reader.follow(pointer)
    if (target === false) throw new Impossible(path)
    return isSchema(target) ? this.#define(pointer, this.#book.reserve(), target, pathOf(pointer)) : VALUE
  }

  #define(pointer: string, name: string, target: Schema, path: string): Match {
    const order = this.#references.size
    const reference: Reference = { name, order, depth: this.#depth, isOpen: true, isAssumed: false }
    this.#references.set(pointer, reference)
    this.#book.open(name)
    try {
      const match = this.#body(target, path)
      this.#book.write(name, match.text)
      close(reference, match)
      return { ...match, text: name }
    } catch (error) {
      if (error instanceof Impossible) this.#references.set(pointer, error)
      throw error
    }
  }

  #body(schema: Schema, path: string, merges = 0): Match {
    if (merges > MERGES_MAX) throw new SchemaProblem('contains itself without an end')
    if (++this.#nodes > NODES_MAX) throw new SchemaProblem(`has more than ${NODES_MAX} nodes`)
    if (typeof schema.$ref === 'string') {
      const { $ref, ...rest } = schema
      if (isPlain(rest)) return this.#reference($ref as string, path)
      const target = this.#reader.resolve(schema)
      if (target === false) throw new Impossible(path)
      return this.#body(isSchema(target) ? target : {}, path, merges + 1)
    }
    if (Array.isArray(schema.allOf)) return this.#body(this.#mergeAll(schema, path), path, merges + 1)
    for (const keyword of ['anyOf', 'oneOf']) {
      const { [keyword]: alternatives, ...base } = schema
      if (Array.isArray(alternatives)) {
        return this.#choice(path, alternatives, (one, index) =>
          this.#alternative(base, one, `${path}.${keyword}[${index}]`),
        )
      }
    }
    const values = valuesOf(schema)
    if (values) return this.#values(schema, values, path)
    if (Array.isArray(schema.type))
      return this.#choice(path, schema.type, (type) => this.#rule({ ...schema, type }, path))
    return this.#typed(schema, path)
  }

  #choice<T>(path: string, alternatives: readonly T[], write: (one: T, index: number) => Match): Match {
    const matches: Match[] = []
    for (const [index, one] of alternatives.entries()) {
      try {
        matches.push(write(one, index))
      } catch (error) {
        if (!(error instanceof Impossible)) throw error
      }
    }
    if (matches.length === 0) throw new Impossible(path)
    return choice(matches)
  }

  #alternative(base: Schema, one: unknown, path: string): Match {
    const resolved = isPlain(base) ? one : this.#reader.resolve(one)
    if (resolved === false) throw new Impossible(path)
    return this.#rule(isPlain(base) ? one : this.#reader.merge(base, [resolved]), path)
  }

  #mergeAll({ allOf, ...base }: Schema, path: string): Schema {
    const parts = (allOf as unknown[]).map((part) => this.#reader.resolve(part))
    if (parts.includes(false)) throw new Impossible(path)
    return this.#reader.merge(base, parts)
  }

  #values(schema: Schema, values: readonly unknown[], path: string): Match {
    const { const: _const, enum: _enum, ...rest } = schema
    const accepted = this.#located(path, rest, Object.keys(rest), (kept) =>
      isPlain(kept) ? values : values.filter((value) => admits(this.#languages, kept, value)),
    )
    return this.#choice(path, accepted, (value) => this.#book.literal(value))
  }

  #typed(schema: Schema, path: string): Match {
    switch (schema.type ?? guessType(schema)) {
      case 'object':
        return this.#object(schema, path)
      case 'array':
        return this.#array(schema, path)
      case 'string':
        return this.#string(schema, path)
      case 'integer':
        return this.#number(schema, true, path)
      case 'number':
        return this.#number(schema, false, path)
      case 'boolean':
        return alike('"true" | "false"', 2)
      case 'null':
        return literal('null')
      default:
        return VALUE
    }
  }

  #number(schema: Schema, isInteger: boolean, path: string): Match {
    return this.#located(path, schema, ['multipleOf'], (kept) => numberMatch(kept, isInteger, path))
  }

  /**
   * Writes a part of the schema. If an error is thrown, then the path of the part is added to it. In a grammar that is not strict, the part is
   * written again without the unsupported keywords.
   */
  #located<T>(path: string, schema: Schema, keywords: readonly string[], write: (schema: Schema) => T): T {
    try {
      return write(schema)
    } catch (error) {
      if (!(error instanceof SchemaProblem) || error instanceof Impossible) throw error
      if (this.#isStrict) throw error.path === '' ? new SchemaProblem(error.message, path) : error
      return write(Object.fromEntries(Object.entries(schema).filter(([keyword]) => !keywords.includes(keyword))))
    }
  }

  #object(schema: Schema, path: string): Match {
    const properties = this.#located(path, schema, NAMES, (kept) => namedProperties(this.#languages, kept))
    if (properties.length === 0) return this.#map(schema, path)
    const members: Member[] = []
    for (const { name, value: inner, isRequired } of properties) {
      if (!isSchema(inner)) this.#nodes++
      const place = `${path}.properties.${name}`
      const value = isRequired ? this.#inner(inner, place) : this.#innerIfPossible(inner, place)
      if (!value) continue
      const pair = this.#book.add(matchOf(`${this.#book.literal(name).text} ": " ${value.text}`, ''))
      members.push({ name, value, pair: pair.text, isRequired })
    }
    return this.#membersMatch(this.#located(path, schema, COUNTS, (kept) => withinCounts(kept, members, path)))
  }

  #membersMatch(members: readonly Member[]): Match {
    const values = members.map((member) => member.value)
    const firsts = members.findIndex((member) => member.isRequired)
    // In llama.cpp, an optional member costs as much time as two alternatives. Each optional member that may come first
    // therefore counts twice.
    const ways = 2 * (firsts < 0 ? members.length : firsts) + 1
    return { ...matchOf(`"{" ${this.#members(members)} "}"`, openingOf(members), values, ways) }
  }

  /**
   * Writes the members of an object in order. Optional members may be omitted, so several members may come first. A comma precedes each later member.
   * Each rule refers to the next member's rule, so the last member is written first.
   */
  #members(members: readonly Member[]): string {
    let next = '""'
    let firsts = ['""']
    for (const { pair, isRequired } of members.toReversed()) {
      const first = `${pair} ${next}`
      if (isRequired) firsts = [first]
      else firsts.push(first)
      next = this.#book.add(matchOf(isRequired ? `", " ${pair} ${next}` : `(", " ${pair})? ${next}`, '')).text
    }
    return this.#book.add(matchOf(firsts.toReversed().join(' | '), '')).text
  }

  /**
   * Writes an object with arbitrary property names. The generated object may contain the same name several times, so at most one property can be
   * required.
   */
  #map(schema: Schema, path: string): Match {
    const { min, max } = countsOf(schema, 'Properties')
    if (min > max) throw new Impossible(path)
    const hasDependents = isSchema(schema.dependentRequired) && Object.keys(schema.dependentRequired).length > 0
    const { keys, value } = this.#located(path, schema, NAMES, (kept) => freeProperties(kept, path))
    if (keys === true && value === true && min === 0 && max === Number.POSITIVE_INFINITY && !hasDependents)
      return OBJECT
    const content = max > 0 ? this.#innerIfPossible(value, `${path}.additionalProperties`) : undefined
    const key =
      content &&
      this.#innerIfPossible(
        keys === true ? { type: 'string' } : { allOf: [{ type: 'string' }, keys] },
        `${path}.propertyNames`,
      )
    if (!key) {
      if (min > 0) throw new Impossible(path)
      return literal('{}')
    }
    if (this.#isStrict && min > 1) throw tooFew(path)
    if (this.#isStrict && hasDependents)
      throw new SchemaProblem('is not supported for properties that are not named', `${path}.dependentRequired`)
    const pair = this.#book.add(matchOf(`${key.text} ": " ${content.text}`, '"', [key, content]))
    const more = repeated(`(", " ${pair.text})`, 0, max - 1, this.#book.addText)
    const text = min > 0 ? `"{" ${pair.text} ${more.text} "}"` : `"{" (${pair.text} ${more.text})? "}"`
    return this.#book.unroll(matchOf(text, '{', [pair], pair.ways * more.ways), more.unrolled)
  }

  #array(schema: Schema, path: string): Match {
    const { tuple, rest } = itemsOf(schema)
    const { min, max } = countsOf(schema, 'Items')
    if (min > max) throw new Impossible(path)
    if (min > ITEMS_MAX) throw new SchemaProblem(`requires more than ${ITEMS_MAX} items`, `${path}.minItems`)
    if (max === 0) return literal('[]')
    if (tuple.length > 0) return this.#tuple(tuple.slice(0, max), rest, min, path)
    const item = min > 0 ? this.#inner(rest, `${path}.items`) : this.#innerIfPossible(rest, `${path}.items`)
    if (!item) return literal('[]')
    const more = repeated(`(", " ${item.text})`, Math.max(0, min - 1), max - 1, this.#book.addText)
    const text = min > 0 ? `"[" ${item.text} ${more.text} "]"` : `"[" (${item.text} ${more.text})? "]"`
    return this.#book.unroll(matchOf(text, '[', [item], item.ways * more.ways), more.unrolled)
  }

  #tuple(tuple: readonly unknown[], rest: unknown, min: number, path: string): Match {
    const items: Match[] = []
    for (const [index, schema] of tuple.entries()) {
      const item = this.#innerIfPossible(schema, `${path}.prefixItems[${index}]`)
      if (!item) break
      items.push(item)
    }
    if (items.length < min) {
      if (items.length < tuple.length) throw new Impossible(path)
      const item = this.#inner(rest, `${path}.items`)
      while (items.length < min) items.push(item)
    }
    this.#nodes += items.length
    return matchOf(`"[" ${items.map((item) => item.text).join(' ", " ')} "]"`, '[', items)
  }

  #string(schema: Schema, path: string): Match {
    const { min, max } = lengthsOf(schema)
    if (min > max) throw new Impossible(path)
    if (min > CHARACTERS_MAX) {
      throw new SchemaProblem(`requires more than ${CHARACTERS_MAX} characters`, `${path}.minLength`)
    }
    if (hasLanguage(schema)) {
      return this.#located(path, schema, ['pattern', 'format'], (kept) =>
        hasLanguage(kept) ? this.#text(kept, path) : this.#string(kept, path),
      )
    }
    if (max === 0) return literal('""')
    if (min === 0 && max === Number.POSITIVE_INFINITY) return STRING
    const characters = repeated('char', min, max, this.#book.addText)
    return this.#book.unroll(matchOf(`"\\"" ${characters.text} "\\""`, '"', [], characters.ways), characters.unrolled)
  }

  /**
   * Writes the grammar rules of a JSON string whose values form a regular language (`pattern`, `format`). Each state of the automaton of the
   * language becomes one rule. The rule of an accepting state may end the string with a quotation mark.
   */
  #text(schema: Schema, path: string): Match {
    const { min, max } = lengthsOf(schema)
    const key = `${stringLanguage(this.#languages, schema).id},${min},${max}`
    const known = this.#strings.get(key)
    if (known) return known
    const states = stringAutomaton(this.#languages, schema)
    if (states.length === 0) throw new Impossible(path)
    const names = states.map(() => this.#book.reserve())
    let ways = 1
    for (const [index, { isAccepting, edges }] of states.entries()) {
      const parts = edges.flatMap(({ set, to }) => charactersOf(set).map((characters) => `${characters} ${names[to]}`))
      if (isAccepting) parts.push('"\\""')
      ways = Math.max(ways, parts.length)
      this.#book.write(names[index] ?? '', parts.join(' | '))
    }
    const match = this.#book.add(matchOf(`"\\"" ${names[0]}`, '"', [], ways))
    this.#strings.set(key, match)
    return match
  }
}

function pathOf(pointer: string): string {
  return pointer.slice(1).replaceAll('/', '.')
}

function guessType(schema: Schema): string | undefined {
  return TYPE_KEYWORDS.find(([, keywords]) => keywords.some((keyword) => keyword in schema))?.[0]
}
