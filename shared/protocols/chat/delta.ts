/*
 * Joins the fields of deltas that have no internal form into those of a whole message, as the official SDKs join deltas:
 * texts grow, lists grow, entries of one `index` are one entry, and any other value replaces the one before it.
 */

type Fields = Record<string, unknown>

/** Texts that name something: a repetition is no continuation. */
const NAMES: ReadonlySet<string> = new Set(['id', 'type', 'format', 'name', 'role', 'object', 'model', 'status'])
/** Last entries of a list that an entry is compared to. */
const COMPARED_MAX = 16

/** Adds the fields of a delta to those before it. */
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
