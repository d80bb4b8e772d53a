import type { AuditAction } from './audit.ts'
import { type ApiKey, type KeyChange, type Project, type ProjectChange, projectIdOf } from './keys.ts'
import type { WebhookSecret } from './webhook-secrets.ts'

/* Audit actions for changes of keys, projects and webhook secrets. No action contains a secret or its hash. */

export function keyCreated(key: ApiKey): AuditAction {
  const { id, hash: _, created_at: _at, revoked: _revoked, ...change } = key
  return { action: 'key.created', subject: id, project: projectIdOf(key), change }
}

export function keyChanged(
  action: 'key.updated' | 'key.revoked' | 'key.rotated',
  key: ApiKey,
  change: KeyChange,
): AuditAction {
  return { action, subject: key.id, project: projectIdOf(key), change: withNulls(change) }
}

export function projectCreated({ id, created_at: _, ...change }: Project): AuditAction {
  return { action: 'project.created', subject: id, project: id, change }
}

export function projectChanged(id: string, change: ProjectChange): AuditAction {
  return { action: 'project.updated', subject: id, project: id, change: withNulls(change) }
}

export function secretCreated({ id, project }: WebhookSecret): AuditAction {
  return { action: 'webhook_secret.created', subject: id, project, change: {} }
}

export function secretDeleted({ id, project }: WebhookSecret): AuditAction {
  return { action: 'webhook_secret.deleted', subject: id, project, change: {} }
}

/** Returns the audit action of a rotation. The old key expires at `endsAt`, or at its own expiry if that is earlier. */
export function rotationAction(
  key: ApiKey,
  successor: ApiKey,
  endsAt: number,
): { change: KeyChange; action: AuditAction } {
  const change = { expires_at: Math.min(key.expires_at ?? endsAt, endsAt) }
  const action = keyChanged('key.rotated', key, change)
  return { change, action: { ...action, change: { ...action.change, successor: successor.id } } }
}

/** Replaces undefined by null, because the audit entry must show removed fields and JSON has no undefined. */
function withNulls(change: object): Record<string, unknown> {
  return Object.fromEntries(Object.entries(change).map(([name, value]) => [name, value ?? null]))
}
