import { randomBytes } from 'node:crypto'
import { readFile as readFileWithCallback } from 'node:fs'
import { copyFile, open, opendir, rename, rm, stat, unlink, utimes, writeFile } from 'node:fs/promises'
import { join } from 'node:path'
import { Readable } from 'node:stream'
import { promisify } from 'node:util'
import { makeDirectory } from '#shared/config/directory.ts'
import { ServiceError } from '#shared/lib/error.ts'
import { newId } from '#shared/lib/id.ts'
import { type Blobs, isKey, type OldBlob, requireKey } from './blobs.ts'

/** The version of `readFile` with a callback takes 25 % less CPU time than that of `node:fs/promises`. */
const readFile = promisify(readFileWithCallback)

/** Retry-After after a write to a full disk, in ms. The purge of expired data runs every minute and may free space. */
const FULL_RETRY_MS = 60_000
const SWEEP_MAX = 256
const ID_FILE = '.directory-id'
const ID = /^[0-9a-f]{32}$/

/**
 * Opens blobs as files of one directory. Several processes may share the directory, also over a network file system with atomic rename.
 *
 * @param directory Created with access for its owner only, because blobs contain user data
 */
export async function openDiskBlobs(directory: string): Promise<Blobs> {
  makeDirectory(directory)
  let id: string | undefined
  const pathOf = (key: string) => join(directory, requireKey(key))
  const writeAtomically = async (path: string, write: (partial: string) => Promise<void>) => {
    const partial = join(directory, newId('.partial-'))
    try {
      await write(partial)
      await rename(partial, path)
    } catch (error) {
      // A failed write, for example on a full disk, leaves a partial file, which is deleted to free its space.
      await rm(partial, { force: true }).catch(() => {})
      throw withoutRoom(error)
    }
  }
  return {
    async put(key, value) {
      await writeAtomically(pathOf(key), (partial) => writeFile(partial, value, { mode: 0o600 }))
    },
    async copy(from, to) {
      const source = pathOf(from)
      await writeAtomically(pathOf(to), (partial) => copyFile(source, partial)).catch(throwGone)
    },
    async open(key, range) {
      if (range && range.end <= range.start) return Readable.from([])
      const file = await open(pathOf(key)).catch(throwGone)
      // `createReadStream` includes the byte at its `end`, but `range` ends before the byte at `range.end`.
      return file.createReadStream(range && { start: range.start, end: range.end - 1 })
    },
    async size(key) {
      return (await stat(pathOf(key)).catch(throwGone)).size
    },
    async get(key) {
      return await readFile(pathOf(key)).catch(throwGone)
    },
    async delete(key) {
      await unlink(pathOf(key)).catch(passGone)
    },
    async sweep(ageMs, choose = async (old) => old.map(({ key }) => key)) {
      let count = 0
      for await (const old of olderThan(directory, ageMs)) {
        const blobs = old.filter(({ key }) => isKey(key))
        const rest = old.filter(({ key }) => !isKey(key)).map(({ key }) => key)
        for (const name of [...rest, ...(blobs.length > 0 ? await choose(blobs) : [])]) {
          await rm(join(directory, name), { force: true })
          count++
        }
      }
      return count
    },
    async identity() {
      id = await keepId(directory, id)
      return id
    },
  }
}

/**
 * Returns the id of a blob directory. Undefined if the directory has no id. No id is created, because `sluice doctor` calls this function and must
 * not change anything.
 */
export async function findDirectoryId(directory: string): Promise<string | undefined> {
  const text = await readFile(join(directory, ID_FILE), 'utf8').catch(() => '')
  return ID.test(text) ? text : undefined
}

/**
 * Reads the id of the directory, or creates one. The modification time of the id file is set to now, because the sweep deletes old files.
 *
 * @param before Id that an earlier call returned. If the id file was deleted since, then this id is written again
 */
async function keepId(directory: string, before: string | undefined): Promise<string> {
  const path = join(directory, ID_FILE)
  const made = before ?? randomBytes(16).toString('hex')
  await writeFile(path, made, { flag: 'wx', mode: 0o600 }).catch((error: NodeJS.ErrnoException) => {
    if (error.code !== 'EEXIST') throw error
  })
  const id = await findDirectoryId(directory)
  // An empty file means that another process has created the file and is still writing the id. The caller retries.
  if (id === undefined) throw new Error(`${path} has no id yet`)
  const now = new Date()
  await utimes(path, now, now)
  return id
}

function withoutRoom(error: unknown): unknown {
  const { code } = error as NodeJS.ErrnoException
  if (code !== 'ENOSPC' && code !== 'EDQUOT') return error
  const message = 'The disk of the service is full.'
  return new ServiceError('overloaded', message, {
    cause: error,
    retryAfterMs: FULL_RETRY_MS,
    isUndone: true,
    reason: 'disk_full',
  })
}

/** Yields old files of a directory in chunks, because the directory may have very many. */
async function* olderThan(directory: string, ageMs: number): AsyncGenerator<OldBlob[]> {
  let old: OldBlob[] = []
  for await (const { name } of await opendir(directory)) {
    const info = await stat(join(directory, name)).catch(() => undefined)
    const age = info ? Date.now() - info.mtimeMs : Number.NEGATIVE_INFINITY
    if (age < ageMs) continue
    old.push({ key: name, ageMs: age })
    if (old.length < SWEEP_MAX) continue
    yield old
    old = []
  }
  if (old.length > 0) yield old
}

function passGone(error: unknown): void {
  if ((error as NodeJS.ErrnoException).code !== 'ENOENT') throw error
}

function throwGone(error: unknown): never {
  if ((error as NodeJS.ErrnoException).code !== 'ENOENT') throw error
  throw new ServiceError('not_found', 'The stored body of the request no longer exists.', { cause: error })
}
