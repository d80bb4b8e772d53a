import { areTypes, isSchema, listOf, SCHEMA_TYPES, type Schema, SchemaReader } from '#shared/json-schema/json-schema.ts'
import { isPlain } from './keywords.ts'
import { Languages } from './language.ts'
import { areDisjoint, Comparison, SchemaProblem } from './match.ts'
import { patternLanguage } from './pattern.ts'

/**
 * Keywords that no grammar enforces, each with a function that tests whether the keyword has an effect in its schema.
 */
const REFUSED: ReadonlyMap<string, (schema: Schema) => boolean> = new Map<string, (schema: Schema) => boolean>([
  ['not', () => true],
  ['if', (schema) => 'then' in schema || 'else' in schema],
  ['contains', () => true],
  ['uniqueItems', ({ uniqueItems, maxItems }) => uniqueItems !== false && !(Number(maxItems) <= 1)],
  ['dependentSchemas', ({ dependentSchemas }) => !isEmpty(dependentSchemas)],
  ['dependencies', ({ dependencies }) => !isEmpty(dependencies)],
  ['$dynamicRef', () => true],
  ['$recursiveRef', () => true],
])

/** Keywords that refer to the other keywords of their own schema. Merging that schema with another schema would change their meaning. */
const ALONE = ['patternProperties', 'prefixItems', 'unevaluatedProperties', 'unevaluatedItems']

const COUNTS = 'minLength maxLength minItems maxItems minProperties maxProperties minContains maxContains'.split(' ')
const NUMBERS = 'minimum maximum exclusiveMinimum exclusiveMaximum multipleOf'.split(' ')
const TEXTS = ['pattern', 'format', '$ref']
const LISTS = 'enum required anyOf oneOf allOf prefixItems'.split(' ')
const MAPS = 'properties patternProperties dependentRequired'.split(' ')

const INNER = 'additionalProperties additionalItems unevaluatedProperties unevaluatedItems items propertyNames'.split(
  ' ',
)
const NAMES = new Set('type const enum pattern format minLength maxLength'.split(' '))

/**
 * Rejects a schema with an unsupported keyword, or a value that is no JSON Schema. All schemas that apply to a value are visited, including the
 * targets of references. Unused definitions are not visited.
 *
 * @throws SchemaProblem with the path of the keyword
 */
export function requireSupported(root: Schema): void {
  new Support(root).visit(root, '', false)
}

class Support {
  readonly #reader: SchemaReader
  readonly #comparison: Comparison
  readonly #languages = new Languages()
  readonly #visited = new Map<Schema, Set<boolean>>()

  constructor(root: Schema) {
    this.#reader = new SchemaReader(root)
    this.#comparison = new Comparison(this.#reader)
  }

  visit(schema: unknown, path: string, isJoined: boolean): void {
    if (typeof schema === 'boolean') return
    if (!isSchema(schema)) throw new SchemaProblem('is no schema', path)
    const visited = this.#visited.get(schema) ?? new Set()
    if (visited.has(isJoined)) return
    this.#visited.set(schema, visited.add(isJoined))
    requireForm(schema, path)
    for (const [keyword, hasEffect] of REFUSED) {
      if (keyword in schema && hasEffect(schema)) throw new SchemaProblem('is not supported', `${path}.${keyword}`)
    }
    this.#requireAlone(schema, path, isJoined)
    this.#patterns(schema, path)
    this.#reference(schema, path, isJoined)
    this.#parts(schema, path, isJoined)
    this.#inner(schema, path)
  }

  #requireAlone(schema: Schema, path: string, isJoined: boolean): void {
    const hasParts = ['allOf', 'anyOf', 'oneOf', '$ref'].some((keyword) => keyword in schema)
    for (const keyword of ALONE) {
      const isOutermost = keyword.startsWith('unevaluated') && !isJoined
      if (keyword in schema && (isJoined || hasParts) && !isOutermost && schema[keyword] !== true) {
        throw new SchemaProblem('is not supported where schemas are combined', `${path}.${keyword}`)
      }
    }
  }

  #patterns(schema: Schema, path: string): void {
    const named = isSchema(schema.patternProperties) ? Object.keys(schema.patternProperties) : []
    const patterns = named.map((pattern) => [pattern, `${path}.patternProperties.${pattern}`])
    if (typeof schema.pattern === 'string') patterns.push([schema.pattern, `${path}.pattern`])
    for (const [pattern = '', place] of patterns) {
      try {
        patternLanguage(this.#languages, pattern)
      } catch (error) {
        throw error instanceof SchemaProblem ? new SchemaProblem(error.message, place) : error
      }
    }
  }

  #reference(schema: Schema, path: string, isJoined: boolean): void {
    const { $ref, ...rest } = schema
    if (typeof $ref !== 'string') return
    const target = this.#reader.follow($ref)
    if (target === undefined) throw new SchemaProblem('refers to a definition that does not exist', `${path}.$ref`)
    this.visit(target, $ref.slice(1).replaceAll('/', '.'), isJoined || !isPlain(rest))
  }

  #parts(schema: Schema, path: string, isJoined: boolean): void {
    for (const [index, part] of listOf(schema, 'allOf').entries()) this.visit(part, `${path}.allOf[${index}]`, true)
    for (const keyword of ['anyOf', 'oneOf']) {
      const { [keyword]: alternatives, ...base } = schema
      for (const [index, one] of listOf(schema, keyword).entries()) {
        this.visit(one, `${path}.${keyword}[${index}]`, isJoined || !isPlain(base))
      }
      if (keyword === 'oneOf' && Array.isArray(alternatives)) this.#requireDisjoint(base, alternatives, path, isJoined)
    }
  }

  #requireDisjoint(base: Schema, alternatives: readonly unknown[], path: string, isJoined: boolean): void {
    const place = `${path}.oneOf`
    if (!areDisjoint(this.#comparison, base, alternatives, !isJoined)) {
      throw new SchemaProblem('has alternatives of which more than one may accept a value', place)
    }
  }

  #inner(schema: Schema, path: string): void {
    for (const keyword of INNER) {
      const place = `${path}.${keyword}`
      if (!(keyword in schema)) continue
      if (keyword === 'items' && Array.isArray(schema.items)) this.#list(schema.items, place)
      else this.visit(schema[keyword], place, false)
      if (keyword === 'propertyNames') requireNames(schema.propertyNames, place)
    }
    this.#list(listOf(schema, 'prefixItems'), `${path}.prefixItems`)
    for (const keyword of ['properties', 'patternProperties']) {
      const named = schema[keyword]
      for (const [name, inner] of isSchema(named) ? Object.entries(named) : []) {
        this.visit(inner, `${path}.${keyword}.${name}`, false)
      }
    }
  }

  #list(schemas: readonly unknown[], path: string): void {
    for (const [index, inner] of schemas.entries()) this.visit(inner, `${path}[${index}]`, false)
  }
}

function requireNames(names: unknown, path: string): void {
  if (!isSchema(names)) return
  const other = Object.keys(names).find((keyword) => !NAMES.has(keyword) && !isPlain({ [keyword]: names[keyword] }))
  if (other !== undefined) throw new SchemaProblem('is not supported for property names', `${path}.${other}`)
}

function requireForm(schema: Schema, path: string): void {
  const isCount = (value: unknown) => typeof value === 'number' && value >= 0
  const checks: [readonly string[], (value: unknown) => boolean, string][] = [
    [COUNTS, isCount, 'must be a number of at least 0'],
    [NUMBERS, (value) => typeof value === 'number', 'must be a number'],
    [['multipleOf'], (value) => Number(value) > 0, 'must be above 0'],
    [TEXTS, (value) => typeof value === 'string', 'must be a string'],
    [LISTS, Array.isArray, 'must be a list'],
    [MAPS, isSchema, 'must be an object'],
    [['type'], areTypes, `must be one of ${SCHEMA_TYPES.join(', ')}, or a list of them`],
  ]
  for (const [keywords, isFormed, problem] of checks) {
    const broken = keywords.find((keyword) => keyword in schema && !isFormed(schema[keyword]))
    if (broken !== undefined) throw new SchemaProblem(problem, `${path}.${broken}`)
  }
}

function isEmpty(value: unknown): boolean {
  return isSchema(value) && Object.keys(value).length === 0
}
