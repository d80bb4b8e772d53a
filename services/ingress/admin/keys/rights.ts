import type { UpdateKey } from '#schemas/admin/keys.ts'
import type { Call, IngressContext } from '#services/ingress/call.ts'
import { modelNotFound } from '#services/ingress/endpoints/model.ts'
import { ServiceError } from '#shared/error.ts'
import { limitsAfter } from '#shared/keys/changes.ts'
import { type Rights, rightNotHeld } from '#shared/keys/delegation.ts'
import type { ApiKey, KeyChange } from '#shared/keys/keys.ts'
import { KEY_ENDPOINTS } from '#shared/keys/scopes.ts'
import { nearestOf } from '#shared/nearest.ts'

/** Maximum paths that an error suggests: the most similar ones. */
const NAMED_MAX = 5

/**
 * Change of a key that a body requests; null removes a restriction.
 *
 * @throws ServiceError `invalid_value` for an unknown path or an expiry in the past; `model_not_found`
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

/**
 * Expiry of a key in Unix seconds; undefined for none.
 *
 * @throws ServiceError `invalid_value` for a time in the past
 */
export function endOf(expiresAt: number | null | undefined): number | undefined {
  if (expiresAt === null || expiresAt === undefined) return undefined
  if (expiresAt * 1_000 > Date.now()) return expiresAt
  const message = `'expires_at' is in the past. To end a key now, revoke it: POST /v1/admin/keys/{id}/revoke.`
  throw new ServiceError('invalid_value', message, { param: 'expires_at' })
}

/**
 * Prevents privilege escalation: refuses rights that the key of the call lacks itself.
 *
 * @param before Rights that the key has already and may keep.
 * @throws ServiceError `permission_denied`
 */
export function requireGivable({ key }: Call, given: Rights, before?: Rights): void {
  const missing = rightNotHeld(key, given, before)
  if (!missing) return
  const { what, param } = missing
  const message = `A key cannot grant a right that it lacks. This key lacks ${what}. Use a key that has it, or create one where the service runs: sluice keys create --help.`
  throw new ServiceError('permission_denied', message, { param })
}

function requirePath(path: string): string {
  if (KEY_ENDPOINTS.includes(path)) return path
  const near = nearestOf(path, KEY_ENDPOINTS).slice(0, NAMED_MAX)
  const message = `No endpoint '${path}' exists. Similar ones: ${near.map(({ name }) => name).join(', ')}.`
  throw new ServiceError('invalid_value', message, { param: 'endpoints' })
}

/** Aliases become model ids, because restrictions are stored by id. */
function modelIdOf(context: IngressContext, name: string): string {
  const model = context.models.find(name)
  if (model) return model.id
  // Operators may see every model, whatever their key may call.
  const { message } = modelNotFound(context, { models: undefined }, name)
  throw new ServiceError('invalid_value', message, { param: 'models' })
}
