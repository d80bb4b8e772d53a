import { ServiceError } from '#shared/lib/error.ts'
import { isSchema, type Schema, SchemaReader } from './json-schema.ts'

const WRITTEN_MAX = 20_000
/**
 * Maximum schema objects per request after expansion: each reference is replaced by its target, and each item schema is repeated `minItems` times.
 */
const EXPANDED_MAX = 1_000_000
const CHARACTERS_MAX = 16_000_000
const LISTED_MAX = 100_000
const PARTS_MAX = 2_000
const DEPTH_MAX = 500
const REFERENCE_CHARS_MAX = 1_000
const PARAM_CHARS_MAX = 256

const LEAST_MAX: ReadonlyMap<string, number> = new Map([
  ['minItems', 10_000],
  ['minContains', 10_000],
  ['minProperties', 10_000],
  ['minLength', 100_000],
])

/** Keywords whose value is one schema, which applies to parts of the described value, such as array items. */
const INNER_SCHEMA = ['additionalItems', 'contains', 'unevaluatedItems', 'unevaluatedProperties', 'propertyNames']
/** Keywords whose value is one schema, which applies to the described value itself. */
const SAME_VALUE_SCHEMA = ['not', 'if', 'then', 'else']
/** Keywords whose value is a list of schemas, which apply to the described value itself. */
const SAME_VALUE_SCHEMAS = ['anyOf', 'oneOf', 'allOf']
const NAMED_SCHEMAS = ['properties', 'patternProperties', 'dependentSchemas', 'dependencies']

interface Cost {
  nodes: number
  characters: number
}

/** A schema object that the walk has reached. While its parts are being visited, `cost` is undefined. */
interface Visit {
  /** Nesting depth of the values that the schema describes. References and keywords such as `anyOf` do not increase this depth. */
  readonly level: number
  cost?: Cost
}

interface Place {
  readonly path: string
  readonly depth: number
  readonly level: number
}

/**
 * Limits the size of the JSON Schemas of one request. The limit applies to the expanded size. This size is computed from the sizes of the parts, so
 * each schema object is visited only once. Patterns are not checked, because Sluice neither runs nor translates them.
 */
export class SchemaBounds {
  #written = 0
  #listed = 0
  readonly #total: Cost = { nodes: 0, characters: 0 }

  /**
   * Checks one schema.
   *
   * @param param Path of the schema in the request
   * @throws ServiceError `invalid_value` with the path that exceeds a bound
   */
  check(schema: Schema, param: string): void {
    const walk = new Walk(schema, param, this.#count)
    add(this.#total, walk.costOf(schema, { path: param, depth: 0, level: 0 }))
    requireWithin(this.#total, param)
  }

  readonly #count = (listed: number, path: string): void => {
    this.#written++
    this.#listed += listed
    if (this.#written > WRITTEN_MAX) refuse(path, `the schemas of a request may have at most ${WRITTEN_MAX} nodes.`)
    if (this.#listed > LISTED_MAX)
      refuse(
        path,
        `the schemas of a request may have at most ${LISTED_MAX} values in enum, required, examples and type together.`,
      )
  }
}

class Walk {
  readonly #root: string
  readonly #reader: SchemaReader
  readonly #count: (listed: number, path: string) => void
  readonly #visits = new Map<Schema, Visit>()

  constructor(schema: Schema, root: string, count: (listed: number, path: string) => void) {
    this.#root = root
    this.#reader = new SchemaReader(schema)
    this.#count = count
  }

  costOf(schema: unknown, place: Place): Cost {
    if (!isSchema(schema)) return { nodes: 1, characters: 0 }
    const known = this.#visits.get(schema)
    if (known) return known.cost ?? this.#costOfCycle(known, place)
    if (place.depth > DEPTH_MAX) refuse(place.path, `schemas may be nested at most ${DEPTH_MAX} deep.`)
    const visit: Visit = { level: place.level }
    this.#visits.set(schema, visit)
    const cost = this.#walk(schema, place)
    visit.cost = cost
    return cost
  }

  /**
   * Returns the cost of a reference to a schema whose walk is not complete, as in a recursive schema. The reference must describe an item or a
   * property of the value that the schema describes. If both describe the same value, then the recursion would never end, so the schema is refused.
   */
  #costOfCycle(visit: Visit, place: Place): Cost {
    if (visit.level === place.level) refuse(place.path, 'the schema has endless recursion.')
    return { nodes: 1, characters: 0 }
  }

  #walk(schema: Schema, place: Place): Cost {
    const cost: Cost = { nodes: 1, characters: givenCharacters(schema) + least(schema, 'minLength', place) }
    this.#count(listedValues(schema), place.path)
    add(cost, this.#reference(schema, place))
    for (const keyword of SAME_VALUE_SCHEMAS) add(cost, this.#list(schema, keyword, place, 0))
    for (const keyword of SAME_VALUE_SCHEMA) if (keyword in schema) add(cost, this.#one(schema, keyword, place, 0))
    for (const keyword of INNER_SCHEMA) if (keyword in schema) add(cost, this.#one(schema, keyword, place, 1))
    for (const keyword of NAMED_SCHEMAS) add(cost, this.#named(schema, keyword, place))
    add(cost, this.#list(schema, 'prefixItems', place, 1))
    add(cost, this.#items(schema, place))
    const properties = least(schema, 'minProperties', place)
    if ('additionalProperties' in schema) add(cost, this.#one(schema, 'additionalProperties', place, 1), properties)
    least(schema, 'minContains', place)
    requireWithin(cost, place.path)
    return cost
  }

  #reference({ $ref }: Schema, place: Place): Cost | undefined {
    if (typeof $ref !== 'string') return undefined
    if ($ref.length > REFERENCE_CHARS_MAX) {
      refuse(`${place.path}.$ref`, `a reference may have at most ${REFERENCE_CHARS_MAX} characters.`)
    }
    const target = this.#reader.follow($ref)
    if (target === undefined) return undefined
    const path = this.#root + $ref.slice(1).replaceAll('/', '.')
    return this.costOf(target, { path, depth: place.depth + 1, level: place.level })
  }

  #list(schema: Schema, keyword: string, place: Place, step: 0 | 1): Cost | undefined {
    const parts = schema[keyword]
    if (!Array.isArray(parts)) return undefined
    const path = `${place.path}.${keyword}`
    if (parts.length > PARTS_MAX) refuse(path, `expected at most ${PARTS_MAX} schemas, but got ${parts.length}.`)
    const cost: Cost = { nodes: 0, characters: 0 }
    for (const [index, part] of parts.entries()) add(cost, this.#inner(part, `${path}[${index}]`, place, step))
    return cost
  }

  #items(schema: Schema, place: Place): Cost | undefined {
    const items = least(schema, 'minItems', place)
    if (Array.isArray(schema.items)) return this.#list(schema, 'items', place, 1)
    const cost: Cost = { nodes: 0, characters: 0 }
    add(cost, this.#one(schema, 'items', place, 1), items)
    return cost
  }

  #one(schema: Schema, keyword: string, place: Place, step: 0 | 1): Cost {
    return this.#inner(schema[keyword], `${place.path}.${keyword}`, place, step)
  }

  #named(schema: Schema, keyword: string, place: Place): Cost | undefined {
    const named = schema[keyword]
    if (!isSchema(named)) return undefined
    const cost: Cost = { nodes: 0, characters: 0 }
    for (const [name, inner] of Object.entries(named)) {
      cost.characters += name.length
      add(cost, this.#inner(inner, `${place.path}.${keyword}.${name}`, place, keyword.startsWith('d') ? 0 : 1))
    }
    return cost
  }

  #inner(schema: unknown, path: string, place: Place, step: 0 | 1): Cost {
    return this.costOf(schema, { path, depth: place.depth + 1, level: place.level + step })
  }
}

function add(to: Cost, cost: Cost | undefined, times = 1): void {
  if (!cost) return
  to.nodes += cost.nodes * Math.max(1, times)
  to.characters += cost.characters * Math.max(1, times)
}

function requireWithin({ nodes, characters }: Cost, path: string): void {
  if (nodes > EXPANDED_MAX) {
    refuse(
      path,
      `the schema has more than ${EXPANDED_MAX} nodes after its references are resolved and its items are repeated.`,
    )
  }
  if (characters > CHARACTERS_MAX) {
    refuse(
      path,
      `the schema has more than ${CHARACTERS_MAX} characters after its references are resolved and its items are repeated.`,
    )
  }
}

function least(schema: Schema, keyword: string, place: Place): number {
  const value = schema[keyword]
  if (typeof value !== 'number') return 0
  const most = LEAST_MAX.get(keyword) ?? 0
  if (value > most) refuse(`${place.path}.${keyword}`, `expected a value <= ${most}, but got ${value} instead.`)
  return Math.max(0, value)
}

function listedValues(schema: Schema): number {
  const lists = [schema.enum, schema.required, schema.examples, schema.type]
  return lists.reduce<number>((total, list) => total + (Array.isArray(list) ? list.length : 0), 0)
}

function givenCharacters(schema: Schema): number {
  let characters = 0
  for (const keyword of ['const', 'enum', 'default', 'examples', 'required']) {
    if (keyword in schema) characters += charactersOf(schema[keyword])
  }
  return characters
}

function charactersOf(value: unknown): number {
  if (typeof value === 'string') return value.length
  if (typeof value !== 'object' || value === null) return 4
  if (Array.isArray(value)) return value.reduce<number>((total, inner) => total + charactersOf(inner), 0)
  let characters = 0
  for (const key of Object.keys(value)) characters += key.length + charactersOf((value as Schema)[key])
  return characters
}

function refuse(path: string, problem: string): never {
  const param = path.slice(0, PARAM_CHARS_MAX).toWellFormed()
  throw new ServiceError('invalid_value', `Invalid JSON schema: ${problem}`, { param })
}
