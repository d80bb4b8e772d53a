import { link, readFile, rm, writeFile } from 'node:fs/promises'
import { join } from 'node:path'
import { giveToOwnerOf, makeDirectory } from '#shared/directory.ts'
import { newId } from '#shared/id.ts'
import { randomSecret, SecretText } from './webhook-secrets.ts'

/**
 * The secret in the file `webhook-root` of the data directory, which is made once and only its owner may read. It is no part
 * of `keys.json`: whether that file is there says whether there was ever a key.
 *
 * @throws Error when the file does not hold a secret
 */
export async function webhookRootIn(directory: string): Promise<string> {
  const path = join(directory, 'webhook-root')
  const secret = await readSecret(path).catch(async (error: NodeJS.ErrnoException) => {
    if (error.code !== 'ENOENT') throw error
    await createSecret(directory, path)
    return await readSecret(path)
  })
  if (SecretText.safeParse(secret).success) return secret
  throw new Error(`${path} holds no secret. Delete it to make a new one: default webhook secrets change with it.`)
}

async function readSecret(path: string): Promise<string> {
  return (await readFile(path, 'utf8')).trim()
}

/** Linked into place whole: of several processes that start together one wins, and all read the same. */
async function createSecret(directory: string, path: string): Promise<void> {
  const partial = join(directory, newId('.partial-'))
  makeDirectory(directory)
  await writeFile(partial, `${randomSecret()}\n`, { mode: 0o600 })
  giveToOwnerOf(directory, partial)
  try {
    await link(partial, path)
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code !== 'EEXIST') throw error
  } finally {
    await rm(partial)
  }
}
