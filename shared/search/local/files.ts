import { constants } from 'node:fs'
import { lstat, open, opendir } from 'node:fs/promises'
import { extname, join, relative, sep } from 'node:path'
import { ServiceError } from '#shared/lib/error.ts'
import type { DocumentType } from '#shared/search/documents/message.ts'

export interface Corpus {
  readonly directory: string
  /** Relative paths of the files and folders to search, below `directory`. `.` selects all files. */
  readonly paths: readonly string[]
}

export interface FoundFile {
  readonly path: string
  readonly absolute: string
  readonly type: DocumentType
  readonly bytes: number
  readonly modifiedMs: number
}

export const FILES_MAX = 5_000
const FILE_BYTES_MAX = 20 * 1024 * 1024
const DEPTH_MAX = 12
const ENTRIES_MAX = 100_000

const TYPES: Readonly<Record<string, DocumentType>> = {
  '.md': 'markdown',
  '.markdown': 'markdown',
  '.rst': 'markdown',
  '.txt': 'text',
  '.html': 'html',
  '.htm': 'html',
  '.pdf': 'pdf',
  '.docx': 'docx',
}

/**
 * Lists the documents of a corpus in the order of their paths. Hidden files and `node_modules` are skipped. Symbolic links are skipped too,
 * because a link could publish a file outside the corpus.
 *
 * @throws Error of the file system if a configured path cannot be read
 */
export async function listFiles({ directory, paths }: Corpus): Promise<FoundFile[]> {
  const files = new Map<string, FoundFile>()
  let entries = 0
  const visit = async (absolute: string, depth: number): Promise<void> => {
    if (++entries > ENTRIES_MAX || files.size >= FILES_MAX) return
    const stat = await lstat(absolute)
    const path = relative(directory, absolute).split(sep).join('/')
    const type = TYPES[extname(absolute).toLowerCase()]
    if (stat.isFile() && type !== undefined)
      files.set(path, { path, absolute, type, bytes: stat.size, modifiedMs: Math.trunc(stat.mtimeMs) })
    if (!stat.isDirectory() || depth > DEPTH_MAX) return
    for (const name of await namesIn(absolute)) {
      // If a file was deleted while its folder was being read, then the file is skipped.
      await visit(join(absolute, name), depth + 1).catch(passOverMissing)
    }
  }
  for (const path of paths) await visit(join(directory, path), 0)
  return [...files.values()]
}

/**
 * Reads a file that {@link listFiles} has found. If the file has become a link, a pipe or too large since, then an error is thrown.
 *
 * @throws ServiceError `permission_denied`, `request_too_large`; Error of the file system
 */
export async function readFound({ absolute }: FoundFile, signal: AbortSignal): Promise<Buffer> {
  // Without O_NONBLOCK, opening a pipe that has no writer would block.
  const flags = constants.O_RDONLY | constants.O_NOFOLLOW | constants.O_NONBLOCK
  await using file = await open(absolute, flags).catch((error: unknown) => {
    throw codeOf(error) === 'ELOOP'
      ? new ServiceError('permission_denied', 'The file was replaced with a symbolic link, which is not followed.')
      : error
  })
  const stat = await file.stat()
  if (!stat.isFile()) throw new ServiceError('permission_denied', 'The path is no longer a regular file.')
  if (stat.size > FILE_BYTES_MAX) throw tooLarge()
  const content = await file.readFile({ signal })
  if (content.length > FILE_BYTES_MAX) throw tooLarge()
  return content
}

export function urlOf(path: string): string {
  return path.split('/').map(encodeURIComponent).join('/')
}

async function namesIn(directory: string): Promise<string[]> {
  const names: string[] = []
  for await (const { name } of await opendir(directory)) {
    if (!name.startsWith('.') && name !== 'node_modules') names.push(name)
    if (names.length >= ENTRIES_MAX) break
  }
  return names.sort()
}

function tooLarge(): ServiceError {
  return new ServiceError('request_too_large', `The file has more than ${FILE_BYTES_MAX} bytes.`)
}

function codeOf(error: unknown): unknown {
  return ((error ?? {}) as { code?: unknown }).code
}

function passOverMissing(error: unknown): void {
  const code = codeOf(error)
  if (code !== 'ENOENT' && code !== 'EACCES' && code !== 'EPERM') throw error
}
