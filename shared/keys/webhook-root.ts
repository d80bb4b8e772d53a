import { link, readFile, rm, writeFile } from 'node:fs/promises'
import { join } from 'node:path'
import { giveToOwnerOf, makeDirectory } from '#shared/directory.ts'
import { newId } from '#shared/id.ts'
import { randomSecret, SecretText } from './webhook-secrets.ts'

/**
 * The secret in the file `webhook-root` of the data directory, created once and readable by its owner only. A separate file is needed: the existence
 * of `keys.json` means that a key was once created.
 *
 * @throws Error if the file does not hold a secret
 */
export async function webhookRootIn(directory: string): Promise<string> {
  const path = join(directory, 'webhook-root')
  const secret = await readSecret(path).catch(async (error: NodeJS.ErrnoException) => {
    if (error.code !== 'ENOENT') throw error
    await createSecret(directory, path)
    return await readSecret(path)
  })
  if (SecretText.safeParse(secret).success) return secret
  throw new Error(
    `${path} contains no secret. Delete the file to create a new one; this changes all default webhook secrets.`,
  )
}

async function readSecret(path: string): Promise<string> {
  return (await readFile(path, 'utf8')).trim()
}

/** Writes a draft, then links it to its path. If several processes start together, then one link succeeds and all read the same secret. */
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
