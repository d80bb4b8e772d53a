import { ListAudit, ListKeys, ListProjects } from '#schemas/admin/keys.ts'
import type { Operations } from '#services/ingress/openapi/operation.ts'
import { one } from './answers.ts'

/** Keys and projects through the operator's door (docs/keys.md, Over HTTP). */
export const KEYS: Operations = {
  'GET /v1/admin/keys': {
    id: 'listKeys',
    tag: 'Operators',
    summary: 'Every key, revoked ones too, newest first; never a secret',
    query: ListKeys,
    answers: one('A page of keys.', 'KeyList'),
  },
  'POST /v1/admin/keys': {
    id: 'createKey',
    tag: 'Operators',
    summary: 'Makes a key, and tells its secret this one time',
    description: 'A key may not give what it has not: scopes, endpoints, models, or a longer life.',
    body: 'CreateKeyRequest',
    answers: { 201: { description: 'The key, with its secret.', json: ['KeyCreated'], headers: ['location'] } },
  },
  'GET /v1/admin/keys/:id': {
    id: 'getKey',
    tag: 'Operators',
    summary: 'One key',
    answers: one('The key.', 'Key'),
  },
  'POST /v1/admin/keys/:id': {
    id: 'updateKey',
    tag: 'Operators',
    summary: 'Changes the name, rights, end and limits of a key; what is not named stays',
    body: 'UpdateKeyRequest',
    answers: one('The key as it is now.', 'Key'),
  },
  'POST /v1/admin/keys/:id/rotate': {
    id: 'rotateKey',
    tag: 'Operators',
    summary: 'Makes a new key with the same rights; the old one ends after the overlap',
    body: 'RotateKeyRequest',
    answers: { 201: { description: 'The new key, with its secret.', json: ['KeyRotated'], headers: ['location'] } },
  },
  'POST /v1/admin/keys/:id/revoke': {
    id: 'revokeKey',
    tag: 'Operators',
    summary: 'Ends a key now and for good',
    answers: one('The key as it is now.', 'Key'),
  },
  'GET /v1/admin/projects': {
    id: 'listProjects',
    tag: 'Operators',
    summary: 'The projects that were made, newest first',
    query: ListProjects,
    answers: one('A page of projects.', 'ProjectList'),
  },
  'POST /v1/admin/projects': {
    id: 'createProject',
    tag: 'Operators',
    summary: 'Makes a project',
    body: 'ProjectRequest',
    answers: { 201: { description: 'The project.', json: ['Project'], headers: ['location'] } },
  },
  'GET /v1/admin/projects/:id': {
    id: 'getProject',
    tag: 'Operators',
    summary: 'One project',
    answers: one('The project.', 'Project'),
  },
  'POST /v1/admin/projects/:id': {
    id: 'updateProject',
    tag: 'Operators',
    summary: 'Changes the name and limits of a project; what is not named stays',
    body: 'ProjectRequest',
    answers: one('The project as it is now.', 'Project'),
  },
  'GET /v1/admin/audit': {
    id: 'listAudit',
    tag: 'Operators',
    summary: 'Who changed which key, project or webhook secret, the last first',
    query: ListAudit,
    answers: one('The last changes.', 'AuditList'),
  },
}
