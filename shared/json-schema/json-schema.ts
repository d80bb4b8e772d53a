/** A JSON Schema that is an object. The schemas `true` and `false` have no such form. */
export type Schema = Readonly<Record<string, unknown>>

export const SCHEMA_TYPES = ['object', 'array', 'string', 'number', 'integer', 'boolean', 'null']

/** Whether a value of the keyword `type` is a type or a list of types. */
export function areTypes(value: unknown): boolean {
  return [value].flat().every((type) => SCHEMA_TYPES.includes(type as string))
}

/** Maximum length of a chain of references. A longer chain, which may be circular, counts as a schema that accepts any value. */
const HOPS_MAX = 64
/** Maximum number of keys and list entries that merging may copy for one root schema, because a hostile schema could multiply them. */
const MERGED_ENTRIES_MAX = 20_000

export function isSchema(value: unknown): value is Schema {
  return typeof value === 'object' && value !== null && !Array.isArray(value)
}

export function numberOf(schema: Schema, keyword: string): number | undefined {
  const value = schema[keyword]
  return typeof value === 'number' ? value : undefined
}

export function listOf(schema: Schema, keyword: string): readonly unknown[] {
  const value = schema[keyword]
  return Array.isArray(value) ? value : []
}

export function requiredOf(schema: Schema): Set<string> {
  return new Set(listOf(schema, 'required').filter((name) => typeof name === 'string'))
}

/**
 * Returns the schema of a property. Undefined if the schema lists no such property. Properties that JavaScript objects inherit, such as
 * `constructor`, are ignored.
 */
export function propertyOf(schema: Schema, name: string): unknown {
  return isSchema(schema.properties) && Object.hasOwn(schema.properties, name) ? schema.properties[name] : undefined
}

/** Follows references and merges parts of one untrusted schema. The cost is bounded. */
export class SchemaReader {
  readonly #root: unknown
  readonly #targets = new Map<string, unknown>()
  #entriesLeft = MERGED_ENTRIES_MAX

  constructor(root: unknown) {
    this.#root = root
  }

  /** Returns the target of a local reference (RFC 6901). Undefined if the target is missing or in another document. */
  follow(pointer: string): unknown {
    if (!this.#targets.has(pointer)) this.#targets.set(pointer, followPointer(pointer, this.#root))
    return this.#targets.get(pointer)
  }

  resolve(schema: unknown): unknown {
    let resolved = schema
    for (let hop = 0; hop < HOPS_MAX; hop++) {
      if (!isSchema(resolved) || typeof resolved.$ref !== 'string') return resolved
      const { $ref, ...rest } = resolved
      const target = this.follow($ref as string)
      if (target === false) return false
      resolved = isSchema(target) ? this.merge(target, [rest]) : rest
    }
    return {}
  }

  /**
   * Merges schemas into one that accepts a value only if all of them accept the value. Different values of `pattern`, `format` or `multipleOf` become
   * a list. For `prefixItems`, `not`, `if`, `contains` and annotations such as `title`, only the value of the last schema is used.
   *
   * @throws RangeError if merging copies too much in total
   */
  merge(base: Schema, parts: readonly unknown[]): Schema {
    const all = [base, ...parts.filter(isSchema)]
    const merged: Record<string, unknown> = Object.create(null)
    for (const part of all) {
      this.#spend(Object.keys(part).length + 1)
      for (const [key, value] of Object.entries(part)) {
        merged[key] = Object.hasOwn(merged, key) ? this.#join(key, merged[key], value) : value
      }
    }
    const withProperties = all.filter(({ properties }) => isSchema(properties))
    const withValues = all.filter((part) => 'const' in part || Array.isArray(part.enum))
    const lists = { required: listsOf(all, 'required'), allOf: listsOf(all, 'allOf') }
    const alternatives = all.flatMap((part) => [...listsOf([part], 'anyOf'), ...listsOf([part], 'oneOf')])
    if (
      withProperties.length > 1 ||
      (withProperties.length > 0 && all.some((part) => isClosed(part) && !part.properties))
    )
      merged.properties = this.#joinProperties(all)
    if (lists.required.length > 1) merged.required = this.#joinLists(lists.required)
    if (lists.allOf.length > 1) merged.allOf = this.#joinLists(lists.allOf)
    if (withValues.length > 1) this.#joinValues(merged, withValues)
    if (alternatives.length > 1) this.#joinAlternatives(merged, alternatives)
    return merged
  }

  #join(key: string, one: unknown, other: unknown): unknown {
    if (LARGEST_WINS.has(key)) return extreme(Math.max, one, other)
    if (LEAST_WINS.has(key)) return extreme(Math.min, one, other)
    if (LISTED.has(key)) return distinct([one, other].flat())
    if (BOTH_HOLD.has(key)) return one === other ? one : bothOf(one, other)
    if (key === 'type') return commonTypes(one, other)
    if (key === 'uniqueItems') return one === true || other === true
    if (key === 'propertyNames') return isSchema(one) && isSchema(other) ? this.merge(one, [other]) : bothOf(one, other)
    if (key === 'dependentRequired' && isSchema(one) && isSchema(other))
      return { ...one, ...this.#joinMaps(one, other) }
    return other
  }

  /** Merges the properties of several schemas. If a schema does not list a property of another one, then its `additionalProperties` restricts it. */
  #joinProperties(all: readonly Schema[]): Schema {
    const joined: Record<string, unknown> = Object.create(null)
    for (const { properties } of all) {
      if (!isSchema(properties)) continue
      const entries = Object.entries(properties)
      this.#spend(entries.length)
      for (const [name, schema] of entries)
        joined[name] = Object.hasOwn(joined, name) ? bothOf(joined[name], schema) : schema
    }
    for (const part of all) {
      if (!isClosed(part)) continue
      const names = Object.keys(joined).filter((name) => propertyOf(part, name) === undefined)
      this.#spend(Object.keys(joined).length)
      for (const name of names) joined[name] = bothOf(joined[name], part.additionalProperties)
    }
    return joined
  }

  #joinMaps(one: Schema, other: Schema): Schema {
    this.#spend(Object.keys(other).length)
    const entries = Object.entries(other).map(([name, names]) => [name, [...listOf(one, name), ...[names].flat()]])
    return Object.fromEntries(entries)
  }

  #joinValues(merged: Record<string, unknown>, parts: readonly Schema[]): void {
    const [first = [], ...others] = parts.map(valuesOf)
    this.#spend(parts.reduce((total, part) => total + (valuesOf(part)?.length ?? 0), 0))
    const sets = others.map((values) => new Set(values?.map((value) => canonical(value))))
    delete merged.const
    merged.enum = first.filter((value) => sets.every((set) => set.has(canonical(value))))
  }

  /**
   * Merges several lists of alternatives, such as two `anyOf`. The value must match one alternative of each list. The result has the alternatives of
   * the first list, each with the remaining lists as further conditions.
   */
  #joinAlternatives(merged: Record<string, unknown>, lists: readonly (readonly unknown[])[]): void {
    const [first = [], ...others] = lists
    this.#spend(first.length * (others.length + 1))
    delete merged.oneOf
    merged.anyOf = first.map((one) => ({ allOf: [one, ...others.map((anyOf) => ({ anyOf }))] }))
  }

  #joinLists(lists: readonly unknown[][]): unknown[] {
    this.#spend(lists.reduce((total, list) => total + list.length, 0))
    return lists.flat()
  }

  #spend(entries: number): void {
    this.#entriesLeft -= entries
    if (this.#entriesLeft < 0) throw new RangeError(`merging would copy more than ${MERGED_ENTRIES_MAX} entries`)
  }
}

const LARGEST_WINS = new Set('minimum exclusiveMinimum minLength minItems minProperties minContains'.split(' '))
const LEAST_WINS = new Set('maximum exclusiveMaximum maxLength maxItems maxProperties maxContains'.split(' '))
const LISTED = new Set(['pattern', 'format', 'multipleOf'])
const BOTH_HOLD = new Set([
  'items',
  'additionalProperties',
  'additionalItems',
  'unevaluatedProperties',
  'unevaluatedItems',
])

export function valuesOf(schema: Schema): readonly unknown[] | undefined {
  const listed = Array.isArray(schema.enum) ? (schema.enum as unknown[]) : undefined
  if (!('const' in schema)) return listed
  const text = canonical(schema.const)
  return listed?.filter((value) => canonical(value) === text).slice(0, 1) ?? [schema.const]
}

export function canonical(value: unknown): string {
  return JSON.stringify(value, (_, inner: unknown) =>
    isSchema(inner) ? Object.fromEntries(Object.entries(inner).toSorted(([a], [b]) => (a < b ? -1 : 1))) : inner,
  )
}

/**
 * Whether `additionalProperties` restricts every property that the schema does not list. With `patternProperties`, the result is false,
 * because some of these properties are exempt.
 */
function isClosed({ additionalProperties = true, patternProperties }: Schema): boolean {
  return additionalProperties !== true && !isSchema(patternProperties)
}

function bothOf(one: unknown, other: unknown): unknown {
  if (one === other || other === true || isSameReference(one, other)) return one
  if (one === true) return other
  return one === false || other === false ? false : { allOf: [one, other] }
}

/** Whether two schemas are the same reference. Without this check, merging a recursive schema with itself would never end. */
function isSameReference(one: unknown, other: unknown): boolean {
  const [a, b] = [one, other].map((schema) =>
    isSchema(schema) && Object.keys(schema).length === 1 ? schema.$ref : undefined,
  )
  return a !== undefined && a === b
}

function listsOf(parts: readonly Schema[], keyword: string): unknown[][] {
  return parts.map((part) => part[keyword]).filter(Array.isArray)
}

function extreme(choose: (one: number, other: number) => number, one: unknown, other: unknown): unknown {
  return typeof one === 'number' && typeof other === 'number' ? choose(one, other) : (one ?? other)
}

function distinct(values: readonly unknown[]): unknown {
  const different = [...new Set(values)]
  return different.length === 1 ? different[0] : different
}

function commonTypes(one: unknown, other: unknown): unknown {
  const [first, second] = [[one].flat(), [other].flat()]
  const both = first.filter((type) => second.includes(type) || (type === 'integer' && second.includes('number')))
  const narrowed = second.filter((type) => type === 'integer' && first.includes('number'))
  const types = [...new Set([...both, ...narrowed])]
  return types.length === 1 ? types[0] : types
}

function followPointer(pointer: string, root: unknown): unknown {
  if (pointer !== '#' && !pointer.startsWith('#/')) return undefined
  let target = root
  for (const step of pointer.split('/').slice(1)) {
    const key = decodeStep(step)
    if (key === undefined || typeof target !== 'object' || target === null || !Object.hasOwn(target, key))
      return undefined
    target = (target as Record<string, unknown>)[key]
  }
  return target
}

function decodeStep(step: string): string | undefined {
  try {
    return decodeURIComponent(step).replaceAll('~1', '/').replaceAll('~0', '~')
  } catch {
    // A pointer with an invalid percent escape has no target.
    return undefined
  }
}
