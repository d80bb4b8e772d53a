import { readFile } from 'node:fs/promises'
import { join } from 'node:path'
import { type Config, ConfigError } from '#shared/config/config.ts'
import { SecretText, type WebhookSecretSource, webhookKeyOf, webhookSecretsOf } from '#shared/keys/webhook-secrets.ts'

/** A secret that signs the webhooks of every project, and where it comes from. */
export interface SharedKey {
  /** The setting, or the path of a file. */
  readonly from: string
  readonly key: Buffer
}

/** Gives the keys that sign the webhooks of a project, at least one. @throws When they cannot be read now */
export type SigningKeys = (project: string) => Promise<readonly Buffer[]>

/**
 * The secret that receivers of every project may still verify: WEBHOOK_SECRET, else the file `webhook-secret` that versions
 * before projects made in the data directory; undefined where there is neither.
 *
 * @throws ConfigError when the file does not hold a secret
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
  throw new ConfigError([`WEBHOOK_SECRET: ${path} holds no secret; delete it`])
}

/** The keys of each project, and beside them the shared one: a receiver accepts what any key that it knows has signed. */
export function signingKeys(source: WebhookSecretSource, shared: SharedKey | undefined): SigningKeys {
  return async (project) => {
    const own = (await webhookSecretsOf(source, project)).map(({ secret }) => webhookKeyOf(secret))
    return shared ? [...own, shared.key] : own
  }
}
