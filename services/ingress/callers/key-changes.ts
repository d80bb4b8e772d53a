import type { Known } from '#shared/keys/understood.ts'

/** Ids of one kind that a log line names; more are counted alone. */
const IDS_MAX = 20

/** What is different about keys and projects, as fields of a log line: ids by what happened to them. */
export function keyChanges(before: Known, after: Known): Record<string, readonly string[] | number> {
  const [oldKeys, newKeys] = [byId(before.keys), byId(after.keys)]
  const [oldProjects, newProjects] = [byId(before.projects), byId(after.projects)]
  const lasting = after.keys.filter(({ id }) => oldKeys.has(id))
  const isRevokedNow = (id: string) => newKeys.get(id)?.revoked === true && oldKeys.get(id)?.revoked === false
  return {
    ...named('created', idsBeside(newKeys, oldKeys)),
    ...named('gone', idsBeside(oldKeys, newKeys)),
    ...named('revoked', idsOf(lasting).filter(isRevokedNow)),
    ...named(
      'changed',
      idsOf(lasting).filter((id) => !isRevokedNow(id) && !isSame(oldKeys.get(id), newKeys.get(id))),
    ),
    ...named(
      'projects',
      [...new Set([...oldProjects.keys(), ...newProjects.keys()])].filter(
        (id) => !isSame(oldProjects.get(id), newProjects.get(id)),
      ),
    ),
  }
}

function byId<T extends { readonly id: string }>(records: readonly T[]): Map<string, T> {
  return new Map(records.map((record) => [record.id, record]))
}

function idsOf(records: readonly { readonly id: string }[]): string[] {
  return records.map(({ id }) => id)
}

function idsBeside(some: ReadonlyMap<string, unknown>, others: ReadonlyMap<string, unknown>): string[] {
  return [...some.keys()].filter((id) => !others.has(id))
}

function isSame(one: object | undefined, other: object | undefined): boolean {
  return JSON.stringify(one) === JSON.stringify(other)
}

function named(what: string, ids: string[]): Record<string, string[] | number> {
  if (ids.length === 0) return {}
  return ids.length > IDS_MAX ? { [what]: ids.slice(0, IDS_MAX), [`${what}_count`]: ids.length } : { [what]: ids }
}
