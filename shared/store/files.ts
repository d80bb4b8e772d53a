import { createHash } from 'node:crypto'
import { newId } from '#shared/lib/id.ts'
import { firstJobId, jobIdTime } from './job-id.ts'

/**
 * Purpose of a file that a batch was created from. Such a file counts towards the quota and is never listed. The id of the file
 * is an attachment key of the batch job (`newAttachmentKey`).
 */
export const BATCH_INPUT = 'batch_input'
/** Purpose of a file that holds a segment of a response history (shared/jobs/durable/history.ts). Only jobs refer to such a file. */
export const HISTORY = 'history'
const RANDOM_LENGTH = 22

/** Metadata of a project's file. The content is a blob under the same id. */
export interface StoredFile {
  readonly id: string
  readonly tenant: string
  readonly purpose: string
  readonly filename: string
  readonly bytes: number
  readonly created_at_ms: number
  readonly expires_at_ms: number
}

export interface NewFile extends Omit<StoredFile, 'created_at_ms' | 'expires_at_ms'> {
  readonly keepMs: number
}

/** Limits for the files of one project. The total bytes of files are limited by the quota of stored bytes. */
export interface FileBounds {
  readonly filesMax: number
}

export interface FileQuery {
  readonly limit: number
  readonly after?: string | undefined
  readonly order: 'asc' | 'desc'
  readonly purpose?: string | undefined
}

/**
 * Metadata of files. A caller writes the blob before it creates the file, and deletes the blob after the file. So a crash leaves orphaned blobs,
 * which the sweep of blobs deletes, and never a file without content.
 */
export interface FileStore {
  /**
   * Stores a file if the project has fewer than `filesMax` files, and returns whether the file is stored. True if the id already exists.
   */
  create(file: NewFile, bounds: FileBounds): Promise<boolean>
  find(tenant: string, id: string): Promise<StoredFile | undefined>
  /** A page of files without batch inputs. One additional file is returned if there are further pages. */
  list(tenant: string, query: FileQuery): Promise<StoredFile[]>
  delete(tenant: string, id: string): Promise<boolean>
  /** Adds one reference of a job to each file, and extends retention to at least `keepMs`. Returns the number of files found. */
  refer(tenant: string, ids: readonly string[], keepMs: number): Promise<number>
  /** Removes one reference of a job from each file. Deletes files without references, and returns their ids. */
  release(tenant: string, ids: readonly string[]): Promise<string[]>
  has(id: string): Promise<boolean>
  purge(limit: number): Promise<string[]>
}

export interface HasFiles {
  readonly files: FileStore
}

export function newFileId(atMs: number = Date.now()): string {
  return newId(firstFileId(atMs), RANDOM_LENGTH)
}

/** The id of a file that a job creates, derived from job and name. Repeated attempts of the job create the same file. */
export function fileIdOf(jobId: string, name: string): string {
  const hash = createHash('sha256').update(`${jobId}\n${name}`).digest('hex').slice(0, RANDOM_LENGTH)
  return firstFileId(jobIdTime(jobId) ?? 0) + hash
}

export function isFileId(text: string): boolean {
  return /^file-[0-9A-Za-z]{8,64}$/.test(text)
}

function firstFileId(atMs: number): string {
  return firstJobId(atMs).replace('job_', 'file-')
}
