/*
 * Merges the fields of deltas that have no internal form into the fields of a whole message, as the official SDKs merge deltas. Texts are
 * concatenated, lists are appended, list entries with equal `index` are merged, and any other value replaces the previous one.
 */

type Fields = Record<string, unknown>

/** Fields whose text is an identifier: a repetition replaces it instead of extending it. */
const NAMES: ReadonlySet<string> = new Set(['id', 'type', 'format', 'name', 'role', 'object', 'model', 'status'])
/** Number of last list entries that are searched for an equal `index`. */
const COMPARED_MAX = 16

export function joinDelta(fields: Fields, delta: Readonly<Fields>): Fields {
  for (const [name, value] of Object.entries(delta)) {
    if (value === null || name === '__proto__') continue
    const before = Object.hasOwn(fields, name) ? fields[name] : undefined
    fields[name] = joined(name, before, value)
  }
  return fields
}

function joined(name: string, before: unknown, value: unknown): unknown {
  if (typeof before === 'string' && typeof value === 'string') return NAMES.has(name) ? value : before + value
  if (Array.isArray(before) && Array.isArray(value)) return joinList(before, value)
  if (isObject(before) && isObject(value)) return joinDelta(before, value)
  return value
}

function joinList(list: unknown[], added: readonly unknown[]): unknown[] {
  for (const entry of added) {
    const index = isObject(entry) ? entry.index : undefined
    const isSame = (other: unknown) => isObject(other) && other.index === index
    const known = typeof index === 'number' ? list.slice(-COMPARED_MAX).findLast(isSame) : undefined
    if (known && isObject(entry)) joinDelta(known as Fields, entry)
    else list.push(entry)
  }
  return list
}

function isObject(value: unknown): value is Fields {
  return typeof value === 'object' && value !== null && !Array.isArray(value)
}
