import { ListModels } from '#schemas/models.ts'
import { ReadUsage } from '#schemas/usage.ts'
import type { Operations } from '#services/ingress/openapi/operation.ts'
import { one } from './answers.ts'

const TWO_FORMATS = 'Callers who send `anthropic-version` get the messages format, in pages.'

/** What a key may call, and what was used. */
export const ACCOUNT: Operations = {
  'GET /v1/models': {
    id: 'listModels',
    tag: 'Account',
    summary: 'The models that this key may call',
    description: TWO_FORMATS,
    headers: ['anthropic-version'],
    query: ListModels,
    answers: one('The models.', 'ModelList', 'ModelInfoList'),
  },
  'GET /v1/models/*': {
    id: 'getModel',
    tag: 'Account',
    summary: 'A model, by its id or an alias',
    description: TWO_FORMATS,
    headers: ['anthropic-version'],
    answers: one('The model.', 'Model', 'ModelInfo'),
  },
  'GET /v1/key': {
    id: 'getOwnKey',
    tag: 'Account',
    summary: 'What the key that asks is, and what it may do',
    answers: one('The key, without its secret.', 'OwnKey'),
  },
  'GET /v1/usage': {
    id: 'getUsage',
    tag: 'Account',
    summary: 'What was used, by project, key, model or day, and what it cost',
    query: ReadUsage.omit({ beta: true }),
    answers: one('The sums.', 'UsageReport'),
  },
  'GET /v1/webhook-secrets': {
    id: 'listWebhookSecrets',
    tag: 'Account',
    summary: 'What signs the webhooks of your project',
    answers: one('The secrets.', 'WebhookSecretList'),
  },
  'GET /v1/ws': {
    id: 'openWebSocket',
    tag: 'Jobs',
    summary: 'Many requests and subscriptions over one WebSocket',
    description: 'The protocol `inference.v1` and its frames: docs/websocket.md.',
    answers: { 101: { description: 'The connection is a WebSocket now.' } },
  },
}
