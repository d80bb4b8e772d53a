/*
 * Endpoints for keys, for operators (docs/operate/keys.md, Over HTTP). Changes are made by `shared/keys/changes.ts`,
 * which the command `sluice keys` also uses.
 */

import type { z } from 'zod'
import { ChangeLimits, CreateKey, ListKeys, RotateKey, UpdateKey } from '#schemas/admin/admin.ts'
import type { KeyAnswer, ProjectAnswer } from '#schemas/answers/keys.ts'
import { beginningOf } from '#services/ingress/body/problem.ts'
import { parseBody, refuseUnknown } from '#services/ingress/body/validate.ts'
import { FIXED_KEY_ID, projectIdNamed } from '#services/ingress/callers/keys.ts'
import type { Call, IngressContext } from '#services/ingress/calls/call.ts'
import { modelNotFound } from '#services/ingress/calls/endpoint.ts'
import { budgetStateOf } from '#shared/capacity/budgets.ts'
import {
  createKey,
  GRACE_PERIOD_SECONDS,
  limitsAfter,
  rotateKey,
  rotationError,
  stateOf,
} from '#shared/keys/changes.ts'
import { missingPermission, type Permissions } from '#shared/keys/delegation.ts'
import {
  type ApiKey,
  KEYS_MAX,
  type KeyChange,
  keyEndpointsWith,
  type Project,
  projectIdOf,
} from '#shared/keys/keys.ts'
import type { ValidKeys } from '#shared/keys/lenient.ts'
import { ServiceError } from '#shared/lib/error.ts'
import { similarNameOf } from '#shared/lib/similar-name.ts'
import type { Activity, Spender } from '#shared/store/records.ts'
import { dayOf, type Month, monthOf, NANOS_PER_USD } from '#shared/usage/usage.ts'
import { audit } from './audit.ts'

const NAMED_MAX = 5

export async function listKeys(context: IngressContext, call: Call): Promise<void> {
  refuseUnknown(ListKeys, call.query)
  const { project: asked, state, limit, after } = parseBody(ListKeys, { ...call.query }, 'openai')
  const known = await context.keys.fresh()
  const project = asked === undefined ? undefined : projectIdNamed(known, asked)
  const nowMs = Date.now()
  const found = known.keys.filter((key) => {
    return (project === undefined || projectIdOf(key) === project) && (!state || stateOf(key, nowMs) === state)
  })
  const { page, hasMore } = pageOf(found, limit, after)
  const data = await keyObjects(context, page)
  const ends = { first_id: data[0]?.id ?? null, last_id: data.at(-1)?.id ?? null }
  await call.reply.whole({ object: 'list', data, ...ends, has_more: hasMore })
}

export async function getKey(context: IngressContext, call: Call): Promise<void> {
  await sendKey(context, call, await findKey(context, call))
}

/** POST /v1/admin/keys: creates a key. The answer contains the secret, which is not stored. */
export async function createAnyKey(context: IngressContext, call: Call, body: unknown): Promise<void> {
  checkFields(CreateKey, body)
  const { project: asked, ...fields } = parseBody(CreateKey, body, 'openai')
  const known = await context.keys.fresh()
  const rights = keyChangeOf(context, fields)
  requireDelegable(call, rights)
  const project = typeof asked === 'string' ? requireProject(known, asked) : undefined
  requireQuota(known.keys.length, KEYS_MAX, 'keys')
  const options = { ...rights, project }
  const { key, secret } = await context.keys.change((store) => createKey(store, options, authorOf(call)))
  audit(context, call, 'create_key', { of_key: key.id, of_project: projectIdOf(key) })
  await sendSecret(context, call, key, { secret })
}

export async function updateKey(context: IngressContext, call: Call, body: unknown): Promise<void> {
  checkFields(UpdateKey, body)
  const fields = parseBody(UpdateKey, body, 'openai')
  const before = await findStoredKey(context, call)
  const change = keyChangeOf(context, fields, before.limits)
  if (Object.keys(change).length === 0) throw nothingAsked()
  requireDelegable(call, { ...before, ...change }, before)
  const key = await context.keys.change((store) => store.update(before.id, change, authorOf(call)))
  if (!key) throw noSuchKey(before.id)
  audit(context, call, 'update_key', { of_key: key.id, of_project: projectIdOf(key) })
  await sendKey(context, call, key)
}

/** POST /v1/admin/keys/{id}/rotate: creates a key with the rights of the old key, which expires after `grace_period_seconds`. */
export async function rotateAnyKey(context: IngressContext, call: Call, body: unknown): Promise<void> {
  checkFields(RotateKey, body)
  const { grace_period_seconds: gracePeriodSeconds = GRACE_PERIOD_SECONDS, expires_at } = parseBody(
    RotateKey,
    body,
    'openai',
  )
  const old = await findStoredKey(context, call)
  requireRotatable(old, expires_at !== undefined)
  const expiresAt = endOf(expires_at)
  requireDelegable(call, { ...old, expires_at: expiresAt })
  requireQuota(context.keys.known.keys.length, KEYS_MAX, 'keys')
  const rotated = await context.keys.change((store) => {
    return rotateKey(store, old, { expiresAt, gracePeriodSeconds: gracePeriodSeconds }, authorOf(call))
  })
  if (!rotated) throw noSuchKey(old.id)
  const { key, secret, ending } = rotated
  audit(context, call, 'rotate_key', { of_key: old.id, new_key: key.id, of_project: projectIdOf(key) })
  const [replaces] = await keyObjects(context, [ending])
  await sendSecret(context, call, key, { secret, replaces })
}

export async function revokeKey(context: IngressContext, call: Call): Promise<void> {
  const { id } = await findStoredKey(context, call)
  const key = await context.keys.change((store) => store.revoke(id, authorOf(call)))
  if (!key) throw noSuchKey(id)
  audit(context, call, 'revoke_key', { of_key: id, of_project: projectIdOf(key) })
  await sendKey(context, call, key)
}

async function sendKey(context: IngressContext, call: Call, key: ApiKey): Promise<void> {
  await call.reply.whole((await keyObjects(context, [key]))[0])
}

async function sendSecret(context: IngressContext, call: Call, key: ApiKey, more: object): Promise<void> {
  const [object] = await keyObjects(context, [key])
  call.reply.setHeader('cache-control', 'no-store')
  call.reply.setHeader('location', `/v1/admin/keys/${key.id}`)
  await call.reply.whole({ ...object, ...more }, 201)
}

async function findKey({ keys }: IngressContext, call: Call): Promise<ApiKey> {
  const id = String(call.params.id)
  const key = (await keys.fresh()).keys.find((one) => one.id === id)
  if (!key) throw noSuchKey(id)
  return key
}

async function findStoredKey(context: IngressContext, call: Call): Promise<ApiKey> {
  const key = await findKey(context, call)
  if (key.id !== FIXED_KEY_ID) return key
  const message = `${FIXED_KEY_ID} is the key in the setting SLUICE_API_KEY. To change the key, change this setting.`
  throw new ServiceError('invalid_request', message)
}

function requireRotatable(old: ApiKey, isEndSaid: boolean): void {
  const why = rotationError(old, isEndSaid)
  if (why === undefined) return
  if (why === 'ends') {
    const message = `${old.id} has an expiry, so 'expires_at' is required for the new key. null: the new key never expires.`
    throw new ServiceError('missing_required_parameter', message, { param: 'expires_at' })
  }
  const next = `Create a new key for the same project, ${projectIdOf(old)}: POST /v1/admin/keys.`
  throw new ServiceError('invalid_request', `${old.id} is ${why}, so it cannot be rotated. ${next}`)
}

function noSuchKey(id: string): ServiceError {
  return new ServiceError('not_found', `No key '${beginningOf(id, 100)}' exists. GET /v1/admin/keys lists all keys.`)
}

/**
 * Converts a request body to the change of a key. A field with null removes the restriction.
 *
 * @throws ServiceError `invalid_value` for an unknown path or an expiry in the past; `model_not_found`
 */
function keyChangeOf(
  context: IngressContext,
  { name, scopes, endpoints, models, expires_at, limits }: UpdateKey,
  before: ApiKey['limits'] = {},
): KeyChange {
  const limitsNow = limits === undefined ? undefined : limits === null ? {} : limitsAfter(before, limits)
  return {
    ...(name !== undefined && { name: name ?? undefined }),
    ...(scopes !== undefined && { scopes: scopes ? [...new Set(scopes)] : undefined }),
    ...(endpoints !== undefined && { endpoints: endpoints?.map((path) => requirePath(context, path)) }),
    ...(models !== undefined && { models: models?.map((model) => modelIdOf(context, model)) }),
    ...(expires_at !== undefined && { expires_at: endOf(expires_at) }),
    ...(limitsNow && { limits: Object.keys(limitsNow).length > 0 ? limitsNow : undefined }),
  }
}

function endOf(expiresAt: number | null | undefined): number | undefined {
  if (expiresAt === null || expiresAt === undefined) return undefined
  if (expiresAt * 1_000 > Date.now()) return expiresAt
  const message = `'expires_at' is in the past. To end a key now, revoke it: POST /v1/admin/keys/{id}/revoke.`
  throw new ServiceError('invalid_value', message, { param: 'expires_at' })
}

/**
 * Prevents privilege escalation: refuses rights that the key of the call does not have.
 *
 * @param before Rights that the changed key already has and may keep
 * @throws ServiceError `permission_denied` with the missing right
 */
function requireDelegable({ key }: Call, given: Permissions, before?: Permissions): void {
  const missing = missingPermission(key, given, before)
  if (!missing) return
  const { what, param } = missing
  const message = `A key cannot grant a right that it lacks. This key lacks ${what}. Use a key that has it, or create one where the service runs: npx sluice keys create --help.`
  throw new ServiceError('permission_denied', message, { param })
}

function requirePath({ endpoints }: IngressContext, path: string): string {
  const known = keyEndpointsWith(endpoints.map((endpoint) => endpoint.path))
  if (known.includes(path)) return path
  const near = similarNameOf(path, known).slice(0, NAMED_MAX)
  const message = `No endpoint '${path}' exists. Similar ones: ${near.map(({ name }) => name).join(', ')}.`
  throw new ServiceError('invalid_value', message, { param: 'endpoints' })
}

/** Returns the model id for an id or alias, because keys store the ids of the models that they may use. */
function modelIdOf(context: IngressContext, name: string): string {
  const model = context.models.find(name)
  if (model) return model.id
  // The error lists all models, because operators may see models that their key may not call.
  const { message } = modelNotFound(context, { models: undefined }, name)
  throw new ServiceError('invalid_value', message, { param: 'models' })
}

export function authorOf({ key }: Call): string {
  return `key:${key.id}`
}

/**
 * Refuses unknown fields, also in `limits`. Otherwise a misspelt limit would be ignored without an error.
 *
 * @throws ServiceError `unsupported_parameter` with the name of the unknown field
 */
export function checkFields(schema: z.ZodObject, body: unknown): void {
  refuseUnknown(schema, body)
  refuseUnknown(ChangeLimits, (body as { limits?: unknown } | null)?.limits, 'limits.')
}

export function nothingAsked(): ServiceError {
  return new ServiceError(
    'invalid_request',
    'The request changes nothing. Send at least one field, such as name or limits.',
  )
}

export function pageOf<T extends { readonly id: string }>(oldestFirst: readonly T[], limit: number, after?: string) {
  const all = oldestFirst.toReversed()
  const at = after === undefined ? -1 : all.findIndex(({ id }) => id === after)
  if (after !== undefined && at < 0) {
    throw new ServiceError('invalid_value', `No entry of this list has the id '${after}'.`, { param: 'after' })
  }
  return { page: all.slice(at + 1, at + 1 + limit), hasMore: all.length > at + 1 + limit }
}

function requireProject(known: ValidKeys, text: string): string {
  const id = projectIdNamed(known, text)
  if (known.projects.some((project) => project.id === id) || known.keys.some((key) => projectIdOf(key) === id))
    return id
  const message = `No project '${text}' exists. GET /v1/admin/projects lists all projects; POST creates a project.`
  throw new ServiceError('invalid_value', message, { param: 'project' })
}

export function requireQuota(count: number, most: number, what: string): void {
  if (count < most) return
  throw new ServiceError('invalid_request', `${count} ${what} exist, the maximum per service.`)
}

const LAST_USE_MS = 90 * 86_400_000

async function keyObjects(context: IngressContext, keys: readonly ApiKey[]): Promise<KeyAnswer[]> {
  const nowMs = Date.now()
  const used = await activityOf(
    context,
    keys.map(({ id }) => ({ owner: 'key', id })),
    nowMs,
  )
  return keys.map((key, i) => keyObject(key, used?.[i], nowMs))
}

export async function projectObjects(context: IngressContext, projects: readonly Project[]): Promise<ProjectAnswer[]> {
  const nowMs = Date.now()
  const counts = validKeys(context.keys.known.keys, nowMs)
  const used = await activityOf(
    context,
    projects.map(({ id }) => ({ owner: 'project', id })),
    nowMs,
  )
  return projects.map((project, i) => {
    const { id, name = null, limits, created_at } = project
    const head = {
      id,
      object: 'project',
      name,
      limits,
      keys: counts.get(id) ?? 0,
      created_at: created_at || null,
    } as const
    return { ...head, ...shownUse(used?.[i]), budget: budgetOf(project, used?.[i], monthOf(nowMs)) }
  })
}

function keyObject(key: ApiKey, used: Activity | undefined, nowMs: number): KeyAnswer {
  const { id, hint, name = null, scopes = ['calls'], endpoints = null, models = null, limits = {} } = key
  const isSetting = id === FIXED_KEY_ID
  return {
    ...{ id, object: 'api_key', hint, name, project: projectIdOf(key), state: stateOf(key, nowMs) },
    ...{ is_setting: isSetting, scopes, endpoints, models, limits },
    ...{ created_at: isSetting ? null : key.created_at, expires_at: key.expires_at ?? null },
    ...shownUse(used),
  }
}

function shownUse(used: Activity | undefined) {
  const month = used ? { calls: used.calls, cost_usd: used.costNanos / NANOS_PER_USD } : null
  return { last_used_on: used?.lastDay ?? null, month }
}

function budgetOf(project: Project, used: Activity | undefined, month: Month): ProjectAnswer['budget'] {
  const { id, limits } = project
  const usd = limits.budget_usd_per_month
  if (usd === undefined || !used) return null
  return { ...budgetStateOf({ owner: 'project', id, usd }, used.costNanos, month), name: project.name ?? null }
}

async function activityOf({ usage }: IngressContext, of: readonly Spender[], nowMs: number) {
  return await usage?.ledger.activity(of, dayOf(nowMs - LAST_USE_MS), monthOf(nowMs).from)
}

function validKeys(keys: readonly ApiKey[], nowMs: number): Map<string, number> {
  const counts = new Map<string, number>()
  for (const key of keys) {
    const id = projectIdOf(key)
    if (stateOf(key, nowMs) === 'valid') counts.set(id, (counts.get(id) ?? 0) + 1)
  }
  return counts
}
