import { createHmac, randomBytes } from 'node:crypto'
import { z } from 'zod'
import { newId } from '#shared/id.ts'

const PREFIX = 'whsec_'
const SECRET_BYTES = 32

/** A secret as Standard Webhooks writes it: `whsec_` and the base64 of 24 to 64 bytes. */
export const SecretText = z.string().regex(/^whsec_[A-Za-z0-9+/]{32,88}={0,2}$/, 'must be a webhook secret')

/** A secret that signs the webhooks of one project. It is kept as it is: a hash signs nothing. */
export const WebhookSecret = z.strictObject({
  id: z.string().min(1),
  project: z.string().min(1),
  secret: SecretText,
  created_at: z.int().describe('Unix seconds'),
})
export type WebhookSecret = z.infer<typeof WebhookSecret>

/** Secrets of one project that sign at once: the one that receivers have, and the one that they are given next. */
export const WEBHOOK_SECRETS_MAX = 2
/** The id of the secret of a project that was given none. */
export const DEFAULT_SECRET_ID = 'default'

/** Where webhook secrets are read; part of the key store. */
export interface WebhookSecretSource {
  /** The secret that defaults are derived from, which nobody else is given. Made and kept by the first call of any process. */
  webhookRoot(): Promise<string>
  /** The secrets a project was given, oldest first, at most {@link WEBHOOK_SECRETS_MAX}. */
  listWebhookSecrets(project: string): Promise<readonly WebhookSecret[]>
}

/**
 * The secrets that sign the webhooks of a project: those that it was given, else one that is derived from the root, so that
 * knowing that of one project tells nothing of another's.
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

/** Makes a secret of 256 bits for a project. */
export function newWebhookSecret(project: string, secret = randomSecret()): WebhookSecret {
  return { id: newId('whs_', 16), project, secret, created_at: Math.floor(Date.now() / 1_000) }
}

/** A secret of 256 random bits. */
export function randomSecret(): string {
  return textOf(randomBytes(SECRET_BYTES))
}

/** The bytes of a secret, as the signature wants them. */
export function webhookKeyOf(secret: string): Buffer {
  return Buffer.from(secret.slice(PREFIX.length), 'base64')
}

/** A secret as it may be shown: enough to recognise it. */
export function hintOf({ secret }: Pick<WebhookSecret, 'secret'>): string {
  return `${PREFIX}...${secret.slice(-5)}`
}

function textOf(bytes: Buffer): string {
  return `${PREFIX}${bytes.toString('base64')}`
}
