import { createHmac, randomBytes } from 'node:crypto'
import { z } from 'zod'
import { newId } from '#shared/lib/id.ts'

const PREFIX = 'whsec_'
const SECRET_BYTES = 32

/** A secret in the format of Standard Webhooks: `whsec_` followed by the base64 of 24 to 64 bytes. */
export const SecretText = z.string().regex(/^whsec_[A-Za-z0-9+/]{32,88}={0,2}$/, 'must be a webhook secret')

/** A secret that signs the webhooks of one project. The secret itself is stored, because signing with a hash is not possible. */
export const WebhookSecret = z.strictObject({
  id: z.string().min(1),
  project: z.string().min(1),
  secret: SecretText,
  created_at: z.int().describe('Unix seconds'),
})
export type WebhookSecret = z.infer<typeof WebhookSecret>

/**
 * Maximum secrets per project. Each message is signed with all of them, because during a rotation some receivers have the old secret and other
 * receivers the new secret.
 */
export const WEBHOOK_SECRETS_MAX = 2
export const DEFAULT_SECRET_ID = 'default'

export interface WebhookSecretSource {
  /**
   * Returns the root secret, from which the default secrets of projects are derived. No caller of the API ever receives it. The first call of any
   * process creates and stores it.
   */
  webhookRoot(): Promise<string>
  listWebhookSecrets(project: string): Promise<readonly WebhookSecret[]>
}

/**
 * Returns the secrets that sign the webhooks of a project. If none is stored, then one is derived from the root secret by HMAC-SHA256 of the project
 * id. A derived secret reveals nothing about other projects' secrets.
 */
export async function webhookSecretsOf(
  source: WebhookSecretSource,
  project: string,
): Promise<readonly [WebhookSecret, ...WebhookSecret[]]> {
  const [first, ...others] = await source.listWebhookSecrets(project)
  if (first) return [first, ...others]
  const secret = textOf(
    createHmac('sha256', webhookKeyOf(await source.webhookRoot()))
      .update(project)
      .digest(),
  )
  return [{ id: DEFAULT_SECRET_ID, project, secret, created_at: 0 }]
}

export function newWebhookSecret(project: string, secret = randomSecret()): WebhookSecret {
  return { id: newId('whs_', 16), project, secret, created_at: Math.floor(Date.now() / 1_000) }
}

export function randomSecret(): string {
  return textOf(randomBytes(SECRET_BYTES))
}

export function webhookKeyOf(secret: string): Buffer {
  return Buffer.from(secret.slice(PREFIX.length), 'base64')
}

export function hintOf({ secret }: Pick<WebhookSecret, 'secret'>): string {
  return `${PREFIX}...${secret.slice(-5)}`
}

function textOf(bytes: Buffer): string {
  return `${PREFIX}${bytes.toString('base64')}`
}
