/*
 * Directories and files that only the user of this service may access. Such files contain user data, keys and locks, and any user who
 * can open a lock file can hold the lock.
 */
import { chmodSync, chownSync, closeSync, fsyncSync, mkdirSync, openSync, rmSync, statSync, writeSync } from 'node:fs'
import { dirname, join, relative } from 'node:path'
import { newId } from '#shared/lib/id.ts'
import { ConfigError } from './config.ts'

/** Size of the test file. Larger than the files that a file system stores inline, so that a disk block is needed. */
const PROBE_BYTES = 16 * 1024

const PROBLEMS: Readonly<Record<string, string>> = {
  EACCES: 'this user cannot write there',
  EPERM: 'this user cannot write there',
  EROFS: 'its file system is read-only',
  ENOSPC: 'its disk is full',
  EDQUOT: "this user's quota of its disk is used up",
  ENOTDIR: 'it, or a part of its path, is not a directory',
  ENOENT: 'nothing can be created there',
  ENAMETOOLONG: 'the path is too long',
  ELOOP: 'its symbolic links form a loop',
}

/**
 * Creates a directory and its parents, each accessible to its owner only. An existing directory is not changed.
 *
 * Node's own recursive mkdir never returns if the parent exists but nothing can be created in it, as below /proc.
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
 * Ensures that a directory exists and is writable.
 *
 * @param setting The setting that names the directory
 * @throws ConfigError with one line about the problem
 */
export function requireWritable(setting: string, path: string): void {
  try {
    makeDirectory(path)
    writeProbe(join(path, newId('.probe-', 8)))
  } catch (error) {
    const code = codeOf(error) ?? String(error)
    throw new ConfigError([`${setting}: ${path} cannot be used: ${PROBLEMS[code] ?? code}`])
  }
}

/**
 * Creates an empty file that only its owner may open, or removes the permissions of others from an existing file.
 *
 * An existing file is not opened: closing it would release the POSIX locks that this process holds on it.
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

/** Gives a file to the owner of another one. A command run as root must not take files away from the user of the service. */
export function giveToOwnerOf(other: string, path: string): void {
  if (process.getuid?.() !== 0) return
  const { uid, gid } = statSync(other)
  chownSync(path, uid, gid)
}

function closeToOthers(path: string): void {
  try {
    if ((statSync(path).mode & 0o077) !== 0) chmodSync(path, 0o600)
  } catch (error) {
    // Another user owns the file and may have shared it on purpose.
    if (codeOf(error) !== 'EPERM') throw error
  }
}

/** Tests a directory by writing and syncing some KiB, because a full disk still accepts empty files. */
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
}

/**
 * Refuses to start if data cannot be written. A single role whose blobs are outside DATA_DIR may not need that directory; a later
 * write then fails.
 *
 * @throws ConfigError
 */
export function requireDirectories({ dataDir, blobDir }: DataDirectories, isWhole: boolean): void {
  const isInside = !relative(dataDir, blobDir).startsWith('..')
  if (isWhole || isInside) requireWritable('DATA_DIR', dataDir)
  if (!isInside) requireWritable('BLOB_DIR', blobDir)
}
