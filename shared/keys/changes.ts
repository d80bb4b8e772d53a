/**
 * Operations on keys and projects, shared by the command line (`services/cli/commands/keys.ts`) and the admin API
 * (`services/ingress/admin/keys/`). The callers validate the input.
 */
import {
  type ApiKey,
  type KeyOptions,
  type KeyStore,
  type Limits,
  newKey,
  newProject,
  type Project,
  type ProjectChange,
  projectIdOf,
} from './keys.ts'

const SECOND_MS = 1_000

/** Default time in seconds for which a rotated key stays valid after its successor was created. */
export const GRACE_PERIOD_SECONDS = 86_400

export type KeyView = Omit<ApiKey, 'hash'>

export function keyView({ hash: _, ...rest }: ApiKey): KeyView {
  return rest
}

export function stateOf({ revoked, expires_at }: ApiKey, nowMs: number): 'valid' | 'revoked' | 'expired' {
  if (revoked) return 'revoked'
  return expires_at !== undefined && expires_at * SECOND_MS <= nowMs ? 'expired' : 'valid'
}

export async function createKey(store: KeyStore, options: KeyOptions, by: string) {
  const made = newKey(options)
  await store.create(made.key, by)
  return made
}

/**
 * Returns the reason why a key cannot be rotated. Undefined if it can. The reason `ends` means that the key has an expiry date, so the caller must
 * state one for the successor.
 */
export function rotationError(old: ApiKey, isEndGiven: boolean): 'revoked' | 'expired' | 'ends' | undefined {
  const state = stateOf(old, Date.now())
  if (state !== 'valid') return state
  return old.expires_at !== undefined && !isEndGiven ? 'ends' : undefined
}

export interface Rotation {
  readonly expiresAt: number | undefined
  readonly gracePeriodSeconds: number
}

/**
 * Creates a key with the project and the rights of the old key. The old key expires after the grace period, or at its own expiry if
 * that is earlier.
 *
 * @returns Undefined if the old key does not exist
 * @throws Errors of {@link KeyStore.rotate}
 */
export async function rotateKey(store: KeyStore, old: ApiKey, { expiresAt, gracePeriodSeconds }: Rotation, by: string) {
  const { name, endpoints, models, scopes, limits } = old
  const rights = { name, endpoints, models, scopes, limits, project: projectIdOf(old) }
  const { key, secret } = newKey({ ...rights, expires_at: expiresAt })
  const endsAt = Math.floor(Date.now() / SECOND_MS) + gracePeriodSeconds
  const ending = await store.rotate(old.id, key, endsAt, by)
  return ending && { key, secret, ending }
}

/** Changes a project. If keys name a project that has no record yet, then this call creates the record. */
export async function changeProject(store: KeyStore, id: string, change: ProjectChange, by: string): Promise<Project> {
  const changed = await store.updateProject(id, change, by)
  if (changed) return changed
  return await createProject(store, { id, ...change }, by)
}

export async function createProject(
  store: KeyStore,
  { id, name, limits = {} }: ProjectChange & { readonly id?: string },
  by: string,
): Promise<Project> {
  const project = newProject({ ...(id !== undefined && { id }), ...(name !== undefined && { name }), limits })
  await store.createProject(project, by)
  return project
}

export function limitsAfter(
  before: Limits,
  change: { readonly [name in keyof Limits]?: number | null | undefined },
): Limits {
  return Object.fromEntries(
    Object.entries({ ...before, ...change }).filter(([, value]) => value !== null && value !== undefined),
  )
}
