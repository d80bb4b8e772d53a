import { copyFile, open, readdir, readFile, rename, rm, stat, writeFile } from 'node:fs/promises'
import { join } from 'node:path'
import { makeDirectory } from '#shared/directory.ts'
import { ServiceError } from '#shared/error.ts'
import { newId } from '#shared/id.ts'
import type { Blobs } from './blobs.ts'

const KEY = /^[A-Za-z0-9_-]{1,200}$/

/**
 * Blobs as files of one directory. Several processes may share it, also over a network file system with atomic rename.
 *
 * @param directory Made, for its owner alone, when it is not there: it holds what users sent.
 */
export async function openDiskBlobs(directory: string): Promise<Blobs> {
  makeDirectory(directory)
  const pathOf = (key: string) => {
    if (!KEY.test(key)) throw new Error('malformed blob key')
    return join(directory, key)
  }
  /** A reader sees all of a blob or nothing. */
  const place = async (path: string, write: (partial: string) => Promise<void>) => {
    const partial = join(directory, newId('.partial-'))
    try {
      await write(partial)
      await rename(partial, path)
    } catch (error) {
      // A full disk must not be kept full by halves of what did not fit.
      await rm(partial, { force: true }).catch(() => {})
      throw error
    }
  }
  return {
    async put(key, value) {
      await place(pathOf(key), (partial) => writeFile(partial, value, { mode: 0o600 }))
    },
    async copy(from, to) {
      const source = pathOf(from)
      await place(pathOf(to), (partial) => copyFile(source, partial)).catch(throwGone)
    },
    async open(key) {
      const file = await open(pathOf(key)).catch(throwGone)
      return file.createReadStream()
    },
    async size(key) {
      return (await stat(pathOf(key)).catch(throwGone)).size
    },
    async get(key) {
      return await readFile(pathOf(key)).catch(throwGone)
    },
    async delete(key) {
      await rm(pathOf(key), { force: true })
    },
    async sweep(ageMs) {
      const oldest = Date.now() - ageMs
      let count = 0
      for (const name of await readdir(directory)) {
        const path = join(directory, name)
        // Another process may have deleted it meanwhile.
        const info = await stat(path).catch(() => undefined)
        if (!info || info.mtimeMs > oldest) continue
        await rm(path, { force: true })
        count++
      }
      return count
    },
  }
}

function throwGone(error: unknown): never {
  if ((error as NodeJS.ErrnoException).code !== 'ENOENT') throw error
  throw new ServiceError('not_found', 'The stored body of the request is gone.', { cause: error })
}
