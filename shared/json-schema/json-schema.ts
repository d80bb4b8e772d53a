/** A JSON Schema that is an object; `true` and `false` are not read as ones. */
export type Schema = Readonly<Record<string, unknown>>

/** References followed one after the other before they count as pointing nowhere: some point in a circle. */
const HOPS_MAX = 64
/** Keys and list entries that merging may copy for one root. */
const MERGED_ENTRIES_MAX = 20_000

export function isSchema(value: unknown): value is Schema {
  return typeof value === 'object' && value !== null && !Array.isArray(value)
}

/** The number of a keyword; undefined where it is none. A hostile schema puts anything anywhere. */
export function numberOf(schema: Schema, keyword: string): number | undefined {
  const value = schema[keyword]
  return typeof value === 'number' ? value : undefined
}

/** The list of a keyword; empty where it is none. */
export function listOf(schema: Schema, keyword: string): readonly unknown[] {
  const value = schema[keyword]
  return Array.isArray(value) ? value : []
}

/** The property names that a schema requires, without repetition. */
export function requiredOf(schema: Schema): Set<string> {
  return new Set(listOf(schema, 'required').filter((name) => typeof name === 'string'))
}

/** The schema of a property; undefined where it has none. Names such as `constructor` are no exception. */
export function propertyOf(schema: Schema, name: string): unknown {
  return isSchema(schema.properties) && Object.hasOwn(schema.properties, name) ? schema.properties[name] : undefined
}

/**
 * Reads one schema whose author is not trusted: follows its references and merges its parts, at a cost that grows with
 * what is written, and that ends.
 */
export class SchemaReader {
  readonly #root: unknown
  readonly #targets = new Map<string, unknown>()
  #entriesLeft = MERGED_ENTRIES_MAX

  /** @param root Where references of the form `#/…` begin */
  constructor(root: unknown) {
    this.#root = root
  }

  /** What a local reference points at (RFC 6901); undefined when nowhere, or out of the schema. */
  follow(pointer: string): unknown {
    if (!this.#targets.has(pointer)) this.#targets.set(pointer, followPointer(pointer, this.#root))
    return this.#targets.get(pointer)
  }

  /** A schema without `$ref`: what it points at, with what stands beside the reference on top. */
  resolve(schema: unknown): unknown {
    let resolved = schema
    for (let hop = 0; hop < HOPS_MAX; hop++) {
      if (!isSchema(resolved) || typeof resolved.$ref !== 'string') return resolved
      const { $ref, ...rest } = resolved
      const target = this.follow($ref as string)
      resolved = isSchema(target) ? this.merge(target, [rest]) : rest
    }
    return {}
  }

  /**
   * One schema for all that must hold at once. A later part wins; `properties`, `required` and `allOf` of all are kept.
   *
   * @throws RangeError when all merging together copies too much
   */
  merge(base: Schema, parts: readonly unknown[]): Schema {
    const merged: Record<string, unknown> = Object.create(null)
    const lists = { properties: [] as Schema[], required: [] as unknown[][], allOf: [] as unknown[][] }
    for (const part of [base, ...parts]) {
      if (!isSchema(part)) continue
      this.#spend(Object.keys(part).length + 1)
      for (const [key, value] of Object.entries(part)) {
        merged[key] = value
        if (key === 'properties' && isSchema(value)) lists.properties.push(value)
        if ((key === 'required' || key === 'allOf') && Array.isArray(value)) lists[key].push(value)
      }
    }
    if (lists.properties.length > 1) merged.properties = this.#joinProperties(lists.properties)
    if (lists.required.length > 1) merged.required = this.#joinLists(lists.required)
    if (lists.allOf.length > 1) merged.allOf = this.#joinLists(lists.allOf)
    return merged
  }

  #joinProperties(all: readonly Schema[]): Schema {
    // Without a prototype `__proto__` is a name like any other.
    const joined: Record<string, unknown> = Object.create(null)
    for (const properties of all) {
      const entries = Object.entries(properties)
      this.#spend(entries.length)
      for (const [name, schema] of entries) joined[name] = schema
    }
    return joined
  }

  #joinLists(lists: readonly unknown[][]): unknown[] {
    this.#spend(lists.reduce((total, list) => total + list.length, 0))
    return lists.flat()
  }

  #spend(entries: number): void {
    this.#entriesLeft -= entries
    if (this.#entriesLeft < 0) throw new RangeError('Too much to merge')
  }
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
    // A lone percent sign, which stands for nothing: such a pointer leads nowhere.
    return undefined
  }
}
