/**
 * What is done to keys and projects, for whoever asks: the command line (`services/cli/commands/keys.ts`) and the operator's
 * door (`services/ingress/admin/keys/`). Each of these checks what was asked in words of its own first.
 */
import { type ApiKey, type KeyOptions, type KeyStore, newKey } from './keys.ts'
import { type Limits, newProject, type Project, type ProjectChange, projectIdOf } from './project.ts'

const SECOND_MS = 1_000

/** How long a key goes on beside its successor where nobody says otherwise, in seconds: a day. */
export const OVERLAP_SECONDS = 86_400

/** A key as it may be shown: everything but its hash. */
export type ShownKey = Omit<ApiKey, 'hash'>

/** What may be shown of a key. */
export function shownKey({ hash: _, ...rest }: ApiKey): ShownKey {
  return rest
}

/** Whether a key is valid, and else why not. */
export function stateOf({ revoked, expires_at }: ApiKey, nowMs: number): 'valid' | 'revoked' | 'expired' {
  if (revoked) return 'revoked'
  return expires_at !== undefined && expires_at * SECOND_MS <= nowMs ? 'expired' : 'valid'
}

/** Makes and keeps a key. @returns With its secret, which nobody can tell later @throws What the store says */
export async function createKey(store: KeyStore, options: KeyOptions, by: string) {
  const made = newKey(options)
  await store.create(made.key, by)
  return made
}

/** Why a key cannot be rotated: it is not valid, or it ends by itself and nobody said when its successor does. */
export function whyNotRotated(old: ApiKey, isEndSaid: boolean): 'revoked' | 'expired' | 'ends' | undefined {
  const state = stateOf(old, Date.now())
  if (state !== 'valid') return state
  return old.expires_at !== undefined && !isEndSaid ? 'ends' : undefined
}

/** How a key is followed by another. */
export interface Rotation {
  /** Of the new key, in unix seconds; undefined: never. */
  readonly expiresAt: number | undefined
  /** How long the old key goes on. */
  readonly overlapSeconds: number
}

/**
 * Makes a new key of the same project with the same rights; the old one ends after the overlap, or earlier where it would have.
 *
 * @returns Undefined where there is no such key any more
 * @throws What the store says
 */
export async function rotateKey(store: KeyStore, old: ApiKey, { expiresAt, overlapSeconds }: Rotation, by: string) {
  const { name, endpoints, models, scopes, limits } = old
  const rights = { name, endpoints, models, scopes, limits, project: projectIdOf(old) }
  const { key, secret } = newKey({ ...rights, expires_at: expiresAt })
  const endsAt = Math.floor(Date.now() / SECOND_MS) + overlapSeconds
  const ending = await store.rotate(old.id, key, endsAt, by)
  return ending && { key, secret, ending }
}

/** Changes a project; one that only keys tell of is made with its first change. */
export async function changeProject(store: KeyStore, id: string, change: ProjectChange, by: string): Promise<Project> {
  const changed = await store.updateProject(id, change, by)
  if (changed) return changed
  return await createProject(store, { id, ...change }, by)
}

/** Makes and keeps a project. @param wishes Default: an id of its own, and no limits */
export async function createProject(
  store: KeyStore,
  { id, name, limits = {} }: ProjectChange & { readonly id?: string },
  by: string,
): Promise<Project> {
  const project = newProject({ ...(id !== undefined && { id }), ...(name !== undefined && { name }), limits })
  await store.createProject(project, by)
  return project
}

/** Limits with a change made to them: null takes one away, so that the setting holds. */
export function limitsAfter(
  before: Limits,
  change: { readonly [name in keyof Limits]?: number | null | undefined },
): Limits {
  return Object.fromEntries(
    Object.entries({ ...before, ...change }).filter(([, value]) => value !== null && value !== undefined),
  )
}
