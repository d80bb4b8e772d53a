import { ListModels } from '#schemas/models.ts'
import { ReadUsage } from '#schemas/usage.ts'
import type { Operations } from '#services/ingress/openapi/operation.ts'
import { ok } from './shared.ts'

const tag = 'Account'
const TWO_FORMATS = 'The response has the Anthropic format if the request has an `anthropic-version` header.'

export const ACCOUNT: Operations = {
  'GET /v1/models': {
    ...{ id: 'listModels', tag, guide: 'models', summary: 'List models' },
    description: `Models that the API key may use. ${TWO_FORMATS} Only the Anthropic format has pages.`,
    headers: ['anthropic-version'],
    query: ListModels,
    answers: ok('The models.', 'ModelList', 'ModelInfoList'),
  },
  'GET /v1/models/*': {
    ...{ id: 'getModel', tag, guide: 'models', summary: 'Retrieve a model' },
    description: `\`id\` is a model id or an alias. ${TWO_FORMATS}`,
    headers: ['anthropic-version'],
    answers: ok('The model.', 'Model', 'ModelInfo'),
  },
  'GET /v1/key': {
    ...{ id: 'getOwnKey', tag, guide: 'keys', summary: 'Retrieve the calling API key' },
    description: 'Permissions, expiry and effective limits of the key that authenticates the request.',
    answers: ok('The key, without its secret.', 'OwnKey'),
  },
  'GET /v1/usage': {
    ...{ id: 'getUsage', tag, guide: 'usage', summary: 'Retrieve usage and cost' },
    description: 'Calls, tokens and cost per project, API key, model or day.',
    query: ReadUsage.omit({ beta: true }),
    answers: ok('The usage report.', 'UsageReport'),
  },
  'GET /v1/webhook-secrets': {
    ...{ id: 'listWebhookSecrets', tag, guide: 'webhooks', summary: 'List webhook signing secrets' },
    description: 'Secrets that sign the webhook messages of the project.',
    answers: ok('The secrets.', 'WebhookSecretList'),
  },
}
