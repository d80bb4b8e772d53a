import type { Call, IngressContext } from '#services/ingress/calls/call.ts'
import { requireJobs } from '#services/ingress/calls/job-object.ts'
import { projectIdOf } from '#shared/keys/project.ts'
import { DEFAULT_SECRET_ID, type WebhookSecret } from '#shared/keys/webhook-secrets.ts'

/** GET /v1/webhook-secrets (docs/guides/webhooks.md, Verify it): secrets that sign the webhooks of the caller's project. */
export async function listWebhookSecrets(context: IngressContext, call: Call): Promise<void> {
  requireJobs(context)
  const secrets = await context.keys.webhookSecretsOf(projectIdOf(call.key))
  call.reply.setHeader('cache-control', 'no-store')
  await call.reply.whole({ object: 'list', data: secrets.map(secretObject) })
}

function secretObject({ id, secret, created_at }: WebhookSecret) {
  const isDefault = id === DEFAULT_SECRET_ID
  return { id, object: 'webhook_secret', secret, created_at: isDefault ? null : created_at, is_default: isDefault }
}
