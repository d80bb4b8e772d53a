import { ageOf } from '#services/cli/text/job-text.ts'
import { tableOf } from '#services/cli/text/output.ts'
import type { AuditEntry } from '#shared/keys/audit.ts'
import { stateOf } from '#shared/keys/changes.ts'
import type { ApiKey } from '#shared/keys/keys.ts'
import { type Project, projectIdOf } from '#shared/keys/project.ts'
import { limitText } from './limits.ts'

const SECOND_MS = 1_000

/** A time in UTC, to the minute. */
export function timeText(seconds: number): string {
  const ms = seconds * SECOND_MS
  return Math.abs(ms) < 8.64e15 ? `${new Date(ms).toISOString().slice(0, 16).replace('T', ' ')}Z` : String(seconds)
}

export function keyTable(keys: readonly ApiKey[], columnsMax: number): string {
  const nowMs = Date.now()
  const head = ['id', 'secret', 'project', 'age', 'state', 'expires', 'scopes', 'name', 'endpoints', 'models', 'limits']
  const rows = keys.map((key) => {
    const expires = key.expires_at === undefined ? 'never' : timeText(key.expires_at)
    const details = [projectIdOf(key), ageOf(key.created_at, nowMs), stateOf(key, nowMs), expires]
    const permissions = [key.endpoints?.join(',') ?? 'all', key.models?.join(',') ?? 'all', limitText(key.limits)]
    return [key.id, key.hint, ...details, key.scopes?.join(',') ?? 'calls', key.name ?? '', ...permissions]
  })
  return tableOf({ head, rows, spare: ['limits', 'models', 'endpoints', 'age'] }, columnsMax)
}

export function projectTable(projects: readonly Project[], keys: readonly ApiKey[], columnsMax: number): string {
  const nowMs = Date.now()
  const rows = projects.map(({ id, name, created_at, limits }) => {
    const own = keys.filter((key) => projectIdOf(key) === id && stateOf(key, nowMs) === 'valid')
    return [id, name ?? '', ageOf(created_at, nowMs), String(own.length), limitText(limits)]
  })
  return tableOf({ head: ['id', 'name', 'age', 'keys', 'limits'], rows, spare: ['age'] }, columnsMax)
}

export function auditTable(entries: readonly AuditEntry[], columnsMax: number): string {
  const rows = entries.map(({ at, author, action, subject, project, change }) => {
    return [timeText(at), action, subject, project ?? '', author, JSON.stringify(change)]
  })
  return tableOf(
    { head: ['time', 'action', 'subject', 'project', 'author', 'change'], rows, spare: ['project'] },
    columnsMax,
  )
}
