import { ListAudit, ListKeys, ListProjects } from '#schemas/admin/keys.ts'
import type { Operations } from '#services/ingress/openapi/operation.ts'
import { ok } from './shared.ts'

const tag = 'Admin'
const guide = 'keys'

export const ADMIN_KEYS: Operations = {
  'GET /v1/admin/keys': {
    ...{ id: 'listKeys', tag, guide, summary: 'List API keys' },
    description: 'Includes revoked and expired keys, newest first. Secrets are not included.',
    query: ListKeys,
    answers: ok('A page of keys.', 'KeyList'),
  },
  'POST /v1/admin/keys': {
    ...{ id: 'createKey', tag, guide, summary: 'Create an API key' },
    description:
      'The response is the only one with the secret. A key cannot grant scopes, endpoints or models that it does not have, nor a later expiry.',
    body: 'CreateKeyRequest',
    answers: { 201: { description: 'The key, with its secret.', json: ['KeyCreated'], headers: ['location'] } },
  },
  'GET /v1/admin/keys/:id': {
    ...{ id: 'getKey', tag, guide, summary: 'Retrieve an API key' },
    answers: ok('The key, without its secret.', 'Key'),
  },
  'POST /v1/admin/keys/:id': {
    ...{ id: 'updateKey', tag, guide, summary: 'Update an API key' },
    description: 'Changes the name, permissions, expiry or limits. Omitted fields are unchanged.',
    body: 'UpdateKeyRequest',
    answers: ok('The updated key.', 'Key'),
  },
  'POST /v1/admin/keys/:id/rotate': {
    ...{ id: 'rotateKey', tag, guide, summary: 'Rotate an API key' },
    description: 'Creates a key with the same permissions. The old key stays valid for `grace_period_seconds`.',
    body: 'RotateKeyRequest',
    answers: { 201: { description: 'The new key, with its secret.', json: ['KeyRotated'], headers: ['location'] } },
  },
  'POST /v1/admin/keys/:id/revoke': {
    ...{ id: 'revokeKey', tag, guide, summary: 'Revoke an API key' },
    description: 'Takes effect immediately and cannot be undone.',
    answers: ok('The revoked key.', 'Key'),
  },
  'GET /v1/admin/projects': {
    ...{ id: 'listProjects', tag, guide, summary: 'List projects' },
    description: 'Newest first.',
    query: ListProjects,
    answers: ok('A page of projects.', 'ProjectList'),
  },
  'POST /v1/admin/projects': {
    ...{ id: 'createProject', tag, guide, summary: 'Create a project' },
    body: 'ProjectRequest',
    answers: { 201: { description: 'The project.', json: ['Project'], headers: ['location'] } },
  },
  'GET /v1/admin/projects/:id': {
    ...{ id: 'getProject', tag, guide, summary: 'Retrieve a project' },
    answers: ok('The project.', 'Project'),
  },
  'POST /v1/admin/projects/:id': {
    ...{ id: 'updateProject', tag, guide, summary: 'Update a project' },
    description: 'Changes the name or limits. Omitted fields are unchanged.',
    body: 'ProjectRequest',
    answers: ok('The updated project.', 'Project'),
  },
  'GET /v1/admin/audit': {
    ...{ id: 'listAudit', tag, guide, summary: 'List audit events' },
    description: 'Changes of API keys, projects and webhook secrets, newest first.',
    query: ListAudit,
    answers: ok('The audit events.', 'AuditList'),
  },
}
