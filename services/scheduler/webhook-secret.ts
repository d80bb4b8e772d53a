import { randomBytes } from 'node:crypto'
import { link, readFile, rm, writeFile } from 'node:fs/promises'
import { join } from 'node:path'
import { type Config, ConfigError } from '#shared/config/config.ts'
import { makeDirectory } from '#shared/directory.ts'
import { newId } from '#shared/id.ts'

const PREFIX = 'whsec_'
const SECRET = /^whsec_[A-Za-z0-9+/]{32,88}={0,2}$/
const SECRET_BYTES = 32

/**
 * The key that signs webhooks: that of WEBHOOK_SECRET, else of the file `webhook-secret` in the data directory, which is
 * made once and only its owner may read.
 *
 * @returns The decoded bytes, as the signature wants them
 * @throws ConfigError when the file does not hold a secret
 */
export async function webhookKey(config: Pick<Config, 'webhookSecret' | 'dataDir'>): Promise<Buffer> {
  const secret = config.webhookSecret ?? (await storedSecret(config.dataDir))
  return Buffer.from(secret.slice(PREFIX.length), 'base64')
}

async function storedSecret(dataDir: string): Promise<string> {
  const path = join(dataDir, 'webhook-secret')
  const secret = await readSecret(path).catch(async (error: NodeJS.ErrnoException) => {
    if (error.code !== 'ENOENT') throw error
    await createSecret(dataDir, path)
    return await readSecret(path)
  })
  if (!SECRET.test(secret))
    throw new ConfigError([`WEBHOOK_SECRET: ${path} holds no secret; delete it to make a new one`])
  return secret
}

async function readSecret(path: string): Promise<string> {
  return (await readFile(path, 'utf8')).trim()
}

/** Linked into place whole: of several processes that start together one wins, and all read the same. */
async function createSecret(dataDir: string, path: string): Promise<void> {
  const partial = join(dataDir, newId('.partial-'))
  makeDirectory(dataDir)
  await writeFile(partial, `${PREFIX}${randomBytes(SECRET_BYTES).toString('base64')}\n`, { mode: 0o600 })
  try {
    await link(partial, path)
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code !== 'EEXIST') throw error
  } finally {
    await rm(partial)
  }
}
