import type { Params, Row } from '#shared/store/sql/sql.ts'
import type { Statement } from '#shared/store/sql/statements.ts'
import { AuditEntry } from './audit.ts'
import { type ApiKey, KEYS_MAX, PROJECTS_MAX, type Project } from './keys.ts'
import { StoredKey, StoredProject } from './lenient.ts'

const KEY_COLUMNS = 'id, hash, hint, name, created_at, revoked, endpoints, models, project, expires_at, scopes, limits'
const KEY_VALUES =
  ':id, :hash, :hint, :name, :created_at, :revoked, :endpoints, :models, :project, :expires_at, :scopes, :limits'
const JSON_COLUMNS = ['endpoints', 'models', 'scopes', 'limits', 'change'] as const

const hashOf = (table: string) =>
  `(SELECT concat(count(*), ' ', sum(hashtextextended(${table}::text, 0)::numeric)) FROM ${table})`

/**
 * Computes a checksum over all keys and projects. Reading the checksum each second is far cheaper than reading the
 * rows.
 */
export const STATE: Statement = {
  name: 'keys_state',
  sql: `SELECT concat(${hashOf('api_keys')}, ' ', ${hashOf('projects')}) AS state`,
}
export const LIST_KEYS: Statement = {
  name: 'keys_list',
  sql: `SELECT ${KEY_COLUMNS} FROM api_keys ORDER BY created_at, id`,
}
export const LIST_PROJECTS: Statement = {
  name: 'projects_list',
  sql: 'SELECT id, name, created_at, limits FROM projects ORDER BY created_at, id',
}
export const CREATE_KEY: Statement = {
  name: 'keys_create',
  sql: `INSERT INTO api_keys (${KEY_COLUMNS}) SELECT ${KEY_VALUES}
    WHERE (SELECT count(*) FROM api_keys) < ${KEYS_MAX} RETURNING id`,
}
/** Inserts the first key, which always has the same id. If two processes insert it at the same time, then the second insert has no effect. */
export const CREATE_FIRST_KEY: Statement = {
  name: 'keys_create_first',
  sql: `INSERT INTO api_keys (${KEY_COLUMNS}) SELECT ${KEY_VALUES}
    WHERE NOT EXISTS (SELECT FROM api_keys) AND NOT EXISTS (SELECT FROM projects)
    ON CONFLICT (id) DO NOTHING RETURNING id`,
}
export const LOCK_KEY: Statement = {
  name: 'keys_lock',
  sql: `SELECT ${KEY_COLUMNS} FROM api_keys WHERE id = :id FOR UPDATE`,
}
export const UPDATE_KEY: Statement = {
  name: 'keys_update',
  sql: `UPDATE api_keys SET name = :name, revoked = :revoked, endpoints = :endpoints, models = :models,
      expires_at = :expires_at, scopes = :scopes, limits = :limits WHERE id = :id`,
}
export const CREATE_PROJECT: Statement = {
  name: 'projects_create',
  sql: `INSERT INTO projects (id, name, created_at, limits) SELECT :id, :name, :created_at, :limits
    WHERE (SELECT count(*) FROM projects) < ${PROJECTS_MAX} RETURNING id`,
}
export const LOCK_PROJECT: Statement = {
  name: 'projects_lock',
  sql: 'SELECT id, name, created_at, limits FROM projects WHERE id = :id FOR UPDATE',
}
export const UPDATE_PROJECT: Statement = {
  name: 'projects_update',
  sql: 'UPDATE projects SET name = :name, limits = :limits WHERE id = :id',
}
export const CREATE_ROOT: Statement = {
  name: 'webhook_root_create',
  sql: `INSERT INTO webhook_secrets (id, secret, created_at) VALUES ('root', :secret, :created_at) ON CONFLICT (id) DO NOTHING`,
}
export const FIND_ROOT: Statement = {
  name: 'webhook_root_find',
  sql: "SELECT secret FROM webhook_secrets WHERE id = 'root'",
}
export const LIST_SECRETS: Statement = {
  name: 'webhook_secrets_list',
  sql: 'SELECT id, project, secret, created_at FROM webhook_secrets WHERE project = :project ORDER BY created_at, id',
}
/** Locks the secrets of a project until this transaction ends, so that no other transaction can add or delete one. */
export const LOCK_SECRETS: Statement = {
  name: 'webhook_secrets_lock',
  sql: "SELECT pg_advisory_xact_lock(hashtext('webhook_secrets'), hashtext(:project))",
}
export const CREATE_SECRET: Statement = {
  name: 'webhook_secrets_create',
  sql: `INSERT INTO webhook_secrets (id, project, secret, created_at) VALUES (:id, :project, :secret, :created_at)`,
}
export const DELETE_SECRET: Statement = {
  name: 'webhook_secrets_delete',
  sql: 'DELETE FROM webhook_secrets WHERE project = :project AND id = :id',
}
export const ADD_AUDIT_ENTRY: Statement = {
  name: 'audit_note',
  sql: `INSERT INTO audit (at, author, action, subject, project, change)
    VALUES (:at, :author, :action, :subject, :project, :change)`,
}
export const LIST_AUDIT: Statement = {
  name: 'audit_list',
  sql: 'SELECT at, author, action, subject, project, change FROM audit ORDER BY number DESC LIMIT :limit',
}

export function keyParams(key: ApiKey): Params {
  const { id, hash, hint, name, created_at, revoked, project, expires_at } = key
  const json = { endpoints: textOf(key.endpoints), models: textOf(key.models), scopes: textOf(key.scopes) }
  const may = { name: name ?? null, project: project ?? null, expires_at: expires_at ?? null }
  return { id, hash, hint, created_at, revoked, ...json, ...may, limits: textOf(key.limits) }
}

export function projectParams({ id, name, created_at, limits }: Project): Params {
  return { id, name: name ?? null, created_at, limits: JSON.stringify(limits) }
}

export function keyOfRow(row: Row): StoredKey {
  return StoredKey.parse(fieldsOf(row))
}

export function projectOfRow(row: Row): StoredProject {
  return StoredProject.parse(fieldsOf(row))
}

export function entryOfRow(row: Row): AuditEntry {
  return AuditEntry.parse({ ...fieldsOf(row), project: row.project })
}

function fieldsOf(row: Row): Row {
  const fields = Object.entries(row).filter(([, value]) => value !== null)
  const isJson = (name: string) => JSON_COLUMNS.some((column) => column === name)
  return Object.fromEntries(fields.map(([name, value]) => [name, isJson(name) ? JSON.parse(String(value)) : value]))
}

function textOf(value: object | undefined): string | null {
  return value === undefined ? null : JSON.stringify(value)
}
