/*
 * Directories and files that only the user of this service may access. The files contain user data, keys and locks. A user who can open
 * a lock file could hold the lock forever.
 */
import { chmodSync, chownSync, closeSync, fsyncSync, mkdirSync, openSync, rmSync, statSync, writeSync } from 'node:fs'
import { dirname, join, relative } from 'node:path'
import { newId } from '#shared/lib/id.ts'
import { ConfigError } from './config.ts'

/**
 * Bytes of the file that is written as a test. Some file systems store smaller files inside the inode, so such a file would not show whether disk
 * blocks are free.
 */
const PROBE_BYTES = 16 * 1024

const PROBLEMS: Readonly<Record<string, string>> = {
  EACCES: 'this user cannot write there',
  EPERM: 'this user cannot write there',
  EROFS: 'its file system is read-only',
  ENOSPC: 'its disk is full',
  EDQUOT: "this user's quota of its disk is used up",
  ENOTDIR: 'the path, or a part of it, is not a directory',
  ENOENT: 'nothing can be created there',
  ENAMETOOLONG: 'the path is too long',
  ELOOP: 'its symbolic links form a loop',
}

/**
 * Creates a directory and its parents, each accessible to its owner only. An existing directory is not changed.
 *
 * Node's own recursive mkdir is not used. If the parent exists but permits no new directory, such as /proc, then that mkdir never returns.
 */
export function makeDirectory(path: string): void {
  const found = statSync(path, { throwIfNoEntry: false })
  if (found?.isDirectory()) return
  if (found) throw Object.assign(new Error(`${path} is not a directory`), { code: 'ENOTDIR' })
  if (dirname(path) !== path) makeDirectory(dirname(path))
  try {
    mkdirSync(path, { mode: 0o700 })
  } catch (error) {
    if (codeOf(error) !== 'EEXIST' || !statSync(path, { throwIfNoEntry: false })?.isDirectory()) throw error
  }
}

/**
 * Creates a directory if it is absent, and checks that it is writable.
 *
 * @param setting Name of the setting that contains the path
 * @throws ConfigError with the problem in one line
 */
export function requireWritable(setting: string, path: string): void {
  try {
    makeDirectory(path)
    writeProbe(join(path, newId('.probe-', 8)))
  } catch (error) {
    const code = codeOf(error) ?? String(error)
    throw new ConfigError([`${setting}: ${path} cannot be used, because ${PROBLEMS[code] ?? `of the error ${code}`}`])
  }
}

/**
 * Creates an empty file that only its owner may open, or removes the permissions of other users from an existing file.
 *
 * An existing file is not opened, because closing it would release the POSIX locks that this process holds on it.
 */
export function makePrivateFile(path: string): void {
  try {
    closeSync(openSync(path, 'ax', 0o600))
    giveToOwnerOf(dirname(path), path)
  } catch (error) {
    if (codeOf(error) !== 'EEXIST') throw error
    closeToOthers(path)
  }
}

/**
 * If root runs the process, gives a file to the owner of `other`. Otherwise the service's user could not open files that were created by a command of
 * root.
 */
export function giveToOwnerOf(other: string, path: string): void {
  if (process.getuid?.() !== 0) return
  const { uid, gid } = statSync(other)
  chownSync(path, uid, gid)
}

function closeToOthers(path: string): void {
  try {
    if ((statSync(path).mode & 0o077) !== 0) chmodSync(path, 0o600)
  } catch (error) {
    // The error EPERM means that another user owns the file. The file may be shared on purpose, so its permissions stay unchanged.
    if (codeOf(error) !== 'EPERM') throw error
  }
}

/** Writes and syncs a file of {@link PROBE_BYTES}. An empty file would not be sufficient, because a full disk still accepts it. */
function writeProbe(path: string): void {
  const file = openSync(path, 'wx', 0o600)
  try {
    writeSync(file, Buffer.alloc(PROBE_BYTES))
    fsyncSync(file)
  } finally {
    closeSync(file)
    rmSync(path, { force: true })
  }
}

function codeOf(error: unknown): string | undefined {
  const { code } = (error ?? {}) as { code?: unknown }
  return typeof code === 'string' ? code : undefined
}

interface DataDirectories {
  readonly dataDir: string
  readonly blobDir: string
  /** URL of the S3 bucket, if blobs are stored in S3. `blobDir` is not used in this case. */
  readonly blobUrl?: string | undefined
}

/**
 * Checks at the start that the process can write its data. A process with all roles (`isWhole`) always needs DATA_DIR. A process with one
 * role needs DATA_DIR only if its blobs are stored there, so otherwise DATA_DIR is not checked.
 *
 * @throws ConfigError if a checked directory is not writable
 */
export function requireDirectories({ dataDir, blobDir, blobUrl }: DataDirectories, isWhole: boolean): void {
  const isUsed = blobUrl === undefined
  const isInside = !relative(dataDir, blobDir).startsWith('..')
  if (isWhole || (isInside && isUsed)) requireWritable('DATA_DIR', dataDir)
  if (!isInside && isUsed) requireWritable('BLOB_DIR', blobDir)
}
