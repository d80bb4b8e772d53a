import type { Known } from '#shared/keys/lenient.ts'

/** Maximum ids per kind of change in a log line; beyond it, only a count is added. */
const IDS_MAX = 20

/** Kinds of change of a key. `projects` stands for any change of a project. */
type What = 'created' | 'gone' | 'revoked' | 'changed' | 'projects'

/**
 * Changes of keys and projects as fields of a log line: ids by kind of change. A generator that yields, because there
 * may be many keys.
 */
export function* keyChanges(before: Known, after: Known): Generator<undefined, Record<string, string[] | number>> {
  const found = new Map<What, string[]>()
  const note = (what: What, id: string) => {
    const ids = found.get(what)
    if (ids) ids.push(id)
    else found.set(what, [id])
  }
  for (const [old, now] of pairs(before.keys, after.keys)) {
    const id = String((now ?? old)?.id)
    if (!old) note('created', id)
    else if (!now) note('gone', id)
    else if (now.revoked && !old.revoked) note('revoked', id)
    else if (!isSame(old, now)) note('changed', id)
    yield
  }
  for (const [old, now] of pairs(before.projects, after.projects)) {
    if (!isSame(old, now)) note('projects', String((now ?? old)?.id))
    yield
  }
  return Object.fromEntries([...found].flatMap(([what, ids]) => fieldsOf(what, ids)))
}

function pairs<T extends { readonly id: string }>(
  before: readonly T[],
  after: readonly T[],
): Iterable<[old: T | undefined, now: T | undefined]> {
  const byId = new Map<string, [T | undefined, T | undefined]>()
  for (const old of before) byId.set(old.id, [old, undefined])
  for (const now of after) byId.set(now.id, [byId.get(now.id)?.[0], now])
  return byId.values()
}

function isSame(one: object | undefined, other: object | undefined): boolean {
  return JSON.stringify(one) === JSON.stringify(other)
}

function fieldsOf(what: string, ids: string[]): [string, string[] | number][] {
  if (ids.length <= IDS_MAX) return [[what, ids]]
  return [
    [what, ids.slice(0, IDS_MAX)],
    [`${what}_count`, ids.length],
  ]
}
