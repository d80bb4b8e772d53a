import type { UpdateKey } from '#schemas/admin/keys.ts'
import type { Call, IngressContext } from '#services/ingress/call.ts'
import { modelNotFound } from '#services/ingress/endpoints/model.ts'
import { ServiceError } from '#shared/error.ts'
import { limitsAfter } from '#shared/keys/changes.ts'
import { type Rights, rightNotHeld } from '#shared/keys/delegation.ts'
import type { ApiKey, KeyChange } from '#shared/keys/keys.ts'
import { KEY_ENDPOINTS } from '#shared/keys/scopes.ts'
import { nearestOf } from '#shared/nearest.ts'

/** Paths that a refusal names: those that are most like what was asked for. */
const NAMED_MAX = 5

/**
 * The change of a key that a body asks for; null takes a bound away.
 *
 * @throws ServiceError `invalid_value` for a path that there is not, or an end that is over; `model_not_found`
 */
export function keyChangeOf(
  context: IngressContext,
  { name, scopes, endpoints, models, expires_at, limits }: UpdateKey,
  before: ApiKey['limits'] = {},
): KeyChange {
  const limitsNow = limits === undefined ? undefined : limits === null ? {} : limitsAfter(before, limits)
  return {
    ...(name !== undefined && { name: name ?? undefined }),
    ...(scopes !== undefined && { scopes: scopes ? [...new Set(scopes)] : undefined }),
    ...(endpoints !== undefined && { endpoints: endpoints?.map(requirePath) }),
    ...(models !== undefined && { models: models?.map((model) => modelIdOf(context, model)) }),
    ...(expires_at !== undefined && { expires_at: endOf(expires_at) }),
    ...(limitsNow && { limits: Object.keys(limitsNow).length > 0 ? limitsNow : undefined }),
  }
}

/** When a key ends. @throws ServiceError `invalid_value` for a time that is over */
export function endOf(expiresAt: number | null | undefined): number | undefined {
  if (expiresAt === null || expiresAt === undefined) return undefined
  if (expiresAt * 1_000 > Date.now()) return expiresAt
  const message = `'expires_at' is a time that is over. To end a key now, revoke it: POST /v1/admin/keys/{id}/revoke.`
  throw new ServiceError('invalid_value', message, { param: 'expires_at' })
}

/**
 * Refuses rights that the key of the call has not itself.
 *
 * @param before What the key has already, which may stay.
 * @throws ServiceError `permission_denied`
 */
export function requireGivable({ key }: Call, given: Rights, before?: Rights): void {
  const missing = rightNotHeld(key, given, before)
  if (!missing) return
  const { what, param } = missing
  const message = `A key may not give what it has not: this one has not ${what}. Use one that has, or make it where the service runs: sluice keys create --help.`
  throw new ServiceError('permission_denied', message, { param })
}

function requirePath(path: string): string {
  if (KEY_ENDPOINTS.includes(path)) return path
  const near = nearestOf(path, KEY_ENDPOINTS).slice(0, NAMED_MAX)
  const message = `There is no endpoint '${path}'. Near it are: ${near.map(({ name }) => name).join(', ')}.`
  throw new ServiceError('invalid_value', message, { param: 'endpoints' })
}

/** A key is held against ids, whatever name it was given. */
function modelIdOf(context: IngressContext, name: string): string {
  const model = context.models.find(name)
  if (model) return model.id
  // An operator may know of every model, whatever the key may call.
  const { message } = modelNotFound(context, { models: undefined }, name)
  throw new ServiceError('invalid_value', message, { param: 'models' })
}
