/*
 * Directories and files that only this service's user may read and write: they hold what users sent, keys, and locks,
 * which everybody who can open them can hold.
 */
import { chmodSync, chownSync, closeSync, fsyncSync, mkdirSync, openSync, rmSync, statSync, writeSync } from 'node:fs'
import { dirname, join, relative } from 'node:path'
import { ConfigError } from './config/config.ts'
import { newId } from './id.ts'

/** More than a file system keeps beside its blocks for a file of few bytes. */
const PROBE_BYTES = 16 * 1024

/** What is wrong with a directory, by the code of the failure. */
const PROBLEMS: Readonly<Record<string, string>> = {
  EACCES: 'this user may not write there',
  EPERM: 'this user may not write there',
  EROFS: 'its file system is read-only',
  ENOSPC: 'its disk is full',
  EDQUOT: "this user's quota of its disk is used up",
  ENOTDIR: 'it, or a part of its path, is not a directory',
  ENOENT: 'nothing can be made there',
  ENAMETOOLONG: 'the path is too long',
  ELOOP: 'its links lead in a circle',
}

/**
 * Makes a directory with all above it, each for its owner alone. One that is there is left as it is.
 *
 * Node's own recursive way never returns where nothing can be made although the parent is there, as below /proc.
 */
export function makeDirectory(path: string): void {
  const found = statSync(path, { throwIfNoEntry: false })
  if (found?.isDirectory()) return
  if (found) throw Object.assign(new Error(`${path} is not a directory`), { code: 'ENOTDIR' })
  if (dirname(path) !== path) makeDirectory(dirname(path))
  try {
    mkdirSync(path, { mode: 0o700 })
  } catch (error) {
    // Another process was quicker.
    if (codeOf(error) !== 'EEXIST' || !statSync(path, { throwIfNoEntry: false })?.isDirectory()) throw error
  }
}

/**
 * Makes sure that a directory is there and that something can be written into it.
 *
 * @param setting The one that names it.
 * @throws ConfigError that says in one line what is wrong with it
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
 * Makes an empty file that only its owner may open, or takes the rights of others away from one that is there.
 *
 * A file that is there is not opened: closing it would take away the locks that this process has on it (POSIX).
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

/** A command run as root must not take a file away from the user the service runs as. */
export function giveToOwnerOf(other: string, path: string): void {
  if (process.getuid?.() !== 0) return
  const { uid, gid } = statSync(other)
  chownSync(path, uid, gid)
}

function closeToOthers(path: string): void {
  try {
    if ((statSync(path).mode & 0o077) !== 0) chmodSync(path, 0o600)
  } catch (error) {
    // It belongs to somebody else, who may have shared it on purpose.
    if (codeOf(error) !== 'EPERM') throw error
  }
}

/** Bytes on the disk, since a full one still takes empty files. */
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

/** Where a process keeps its data. */
interface DataDirectories {
  readonly dataDir: string
  readonly blobDir: string
}

/**
 * Refuses to start where data cannot be written. A role of its own without blobs in DATA_DIR may do without it; then who writes
 * there finds out.
 *
 * @throws ConfigError
 */
export function requireDirectories({ dataDir, blobDir }: DataDirectories, isWhole: boolean): void {
  const isInside = !relative(dataDir, blobDir).startsWith('..')
  if (isWhole || isInside) requireWritable('DATA_DIR', dataDir)
  if (!isInside) requireWritable('BLOB_DIR', blobDir)
}
