import type { AuditAction } from './audit.ts'
import type { ApiKey, KeyChange } from './keys.ts'
import { type Project, type ProjectChange, projectIdOf } from './project.ts'
import type { WebhookSecret } from './webhook-secrets.ts'

/** A new key. */
export function keyCreated(key: ApiKey): AuditAction {
  const { id, hash: _, created_at: _at, revoked: _revoked, ...change } = key
  return { action: 'key.created', subject: id, project: projectIdOf(key), change }
}

/** A change of a key. */
export function keyChanged(
  action: 'key.updated' | 'key.revoked' | 'key.rotated',
  key: ApiKey,
  change: KeyChange,
): AuditAction {
  return { action, subject: key.id, project: projectIdOf(key), change: said(change) }
}

/** A new project. */
export function projectCreated({ id, created_at: _, ...change }: Project): AuditAction {
  return { action: 'project.created', subject: id, project: id, change }
}

/** A change of a project. */
export function projectChanged(id: string, change: ProjectChange): AuditAction {
  return { action: 'project.updated', subject: id, project: id, change: said(change) }
}

/** A webhook secret that a project was given. */
export function secretCreated({ id, project }: WebhookSecret): AuditAction {
  return { action: 'webhook_secret.created', subject: id, project, change: {} }
}

/** A webhook secret that was taken away. */
export function secretDeleted({ id, project }: WebhookSecret): AuditAction {
  return { action: 'webhook_secret.deleted', subject: id, project, change: {} }
}

/** What a rotation does to the old key. */
export function rotation(key: ApiKey, successor: ApiKey, endsAt: number): { change: KeyChange; deed: AuditAction } {
  const change = { expires_at: Math.min(key.expires_at ?? endsAt, endsAt) }
  const deed = keyChanged('key.rotated', key, change)
  return { change, deed: { ...deed, change: { ...deed.change, successor: successor.id } } }
}

/** JSON has no undefined. */
function said(change: object): Record<string, unknown> {
  return Object.fromEntries(Object.entries(change).map(([name, value]) => [name, value ?? null]))
}
