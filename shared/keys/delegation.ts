import { type ApiKey, coversPath, hasScope } from './keys.ts'

/**
 * The rights that a key grants. Limits are not compared: a key that may create keys may also change the limits of every project, so comparing them
 * would prevent nothing.
 */
export type Permissions = Pick<ApiKey, 'scopes' | 'endpoints' | 'models' | 'expires_at'>

/**
 * Prevents privilege escalation. Returns the first right in `given` that the key `giver` lacks, or undefined if it has all of them.
 *
 * @param before Current rights of the key that is changed. The changed key may keep them, even if `giver` lacks them
 * @returns `param`: the field of the missing right. `what`: its name for an error message, such as `the scope calls`
 */
export function missingPermission(
  giver: Permissions,
  given: Permissions,
  before?: Permissions,
): { readonly what: string; readonly param: keyof Permissions } | undefined {
  const holders = before ? [giver, before] : [giver]
  const scope = (given.scopes ?? ['calls']).find((one) => !holders.some((holder) => hasScope(holder, one)))
  if (scope) return { what: `the scope ${scope}`, param: 'scopes' }
  const path = missingOf(
    given.endpoints,
    holders.map(({ endpoints }) => endpoints),
    coversPath,
  )
  if (path) return { what: path === ALL ? 'every endpoint' : `the endpoint ${path}`, param: 'endpoints' }
  const model = missingOf(
    given.models,
    holders.map(({ models }) => models),
    (models, one) => models.includes(one),
  )
  if (model) return { what: model === ALL ? 'every model' : `the model ${model}`, param: 'models' }
  const end = given.expires_at ?? Number.POSITIVE_INFINITY
  if (holders.some(({ expires_at = Number.POSITIVE_INFINITY }) => end <= expires_at)) return undefined
  return { what: 'a life as long', param: 'expires_at' }
}

const ALL = Symbol('all')

function missingOf(
  given: readonly string[] | undefined,
  lists: readonly (readonly string[] | undefined)[],
  covers: (list: readonly string[], name: string) => boolean,
): string | typeof ALL | undefined {
  if (lists.some((list) => list === undefined)) return undefined
  if (given === undefined) return ALL
  return given.find((name) => !lists.some((list) => list && covers(list, name)))
}
