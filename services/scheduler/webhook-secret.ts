import { readFile } from 'node:fs/promises'
import { join } from 'node:path'
import { type Config, ConfigError } from '#shared/config/config.ts'
import { SecretText, type WebhookSecretSource, webhookKeyOf, webhookSecretsOf } from '#shared/keys/webhook-secrets.ts'

export interface SharedKey {
  /** Source of the secret: the name of the setting, or the path of a file. */
  readonly from: string
  readonly key: Buffer
}

/**
 * Returns the keys that sign the webhooks of a project, at least one.
 *
 * @throws Error if the keys cannot be read at the moment
 */
export type SigningKeys = (project: string) => Promise<readonly Buffer[]>

/**
 * Returns the shared secret, for receivers that do not yet use the secret of their project.
 *
 * The secret is WEBHOOK_SECRET, or else the content of the file `webhook-secret` in the data directory. Early versions, which had no projects,
 * created this file. Undefined if neither exists.
 *
 * @throws ConfigError if the file does not contain a secret
 */
export async function sharedKeyOf(config: Pick<Config, 'webhookSecret' | 'dataDir'>): Promise<SharedKey | undefined> {
  if (config.webhookSecret !== undefined) return { from: 'WEBHOOK_SECRET', key: webhookKeyOf(config.webhookSecret) }
  const path = join(config.dataDir, 'webhook-secret')
  const secret = await readFile(path, 'utf8').catch((error: NodeJS.ErrnoException) => {
    if (error.code === 'ENOENT') return undefined
    throw error
  })
  if (secret === undefined) return undefined
  if (SecretText.safeParse(secret.trim()).success) return { from: path, key: webhookKeyOf(secret.trim()) }
  throw new ConfigError([`WEBHOOK_SECRET: ${path} contains no secret; delete it`])
}

/** Returns the keys of each project, plus the shared key. A receiver accepts a message if one signature matches one of its keys. */
export function signingKeys(source: WebhookSecretSource, shared: SharedKey | undefined): SigningKeys {
  return async (project) => {
    const own = (await webhookSecretsOf(source, project)).map(({ secret }) => webhookKeyOf(secret))
    return shared ? [...own, shared.key] : own
  }
}
