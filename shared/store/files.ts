import { createHash } from 'node:crypto'
import { newId } from '#shared/id.ts'
import { firstJobId, jobIdTime } from './job-id.ts'

/** Purpose of what a batch was made of: it counts as a file, has a key of its own for an id, and is shown to nobody. */
export const BATCH_INPUT = 'batch_input'
/** Purpose of a piece of the history of responses: jobs alone name it (shared/jobs/durable/history.ts). */
export const HISTORY = 'history'
/** Characters of an id behind its time. */
const RANDOM_LENGTH = 22

/** A file of a project: what is known of it. Its bytes are a blob whose key is its id. */
export interface StoredFile {
  readonly id: string
  readonly tenant: string
  readonly purpose: string
  readonly filename: string
  readonly bytes: number
  /** Unix milliseconds. */
  readonly created_at_ms: number
  readonly expires_at_ms: number
}

/** A file to keep. */
export interface NewFile extends Omit<StoredFile, 'created_at_ms' | 'expires_at_ms'> {
  readonly keepMs: number
}

/** What the files of one project may come to; their bytes are bounded with all else that it stores. */
export interface FileBounds {
  readonly filesMax: number
}

/** Which files {@link FileStore.list} gives. */
export interface FileQuery {
  readonly limit: number
  readonly after?: string | undefined
  readonly order: 'asc' | 'desc'
  readonly purpose?: string | undefined
}

/**
 * What is known of the files of projects. Who makes one puts its blob first, and who deletes one deletes it last: so a crash leaves
 * blobs, which the sweep of blobs finds, and never a file without its bytes.
 */
export interface FileStore {
  /** Keeps a file, unless the project has no room for it. An id that is there already is that file: true. */
  create(file: NewFile, bounds: FileBounds): Promise<boolean>
  /** A file that has not expired. */
  find(tenant: string, id: string): Promise<StoredFile | undefined>
  /** A page of files, and one more where there is another page; without what batches were made of. */
  list(tenant: string, query: FileQuery): Promise<StoredFile[]>
  /** False: there is none. */
  delete(tenant: string, id: string): Promise<boolean>
  /** One more job names these files, and each is kept for `keepMs` at least. Gives how many there are. */
  refer(tenant: string, ids: readonly string[], keepMs: number): Promise<number>
  /** A job names these files no more: deletes those that no other one names, and gives their ids. */
  release(tenant: string, ids: readonly string[]): Promise<string[]>
  /** Whether there is such a file, of whomever. */
  has(id: string): Promise<boolean>
  /** Forgets files that have expired, at most `limit`. Gives their ids. */
  purge(limit: number): Promise<string[]>
}

/** What keeps files beside its jobs. */
export interface HasFiles {
  readonly files: FileStore
}

/** An id of a file, which nobody can guess. Ids sort by age, as those of jobs do. */
export function newFileId(atMs: number = Date.now()): string {
  return newId(firstFileId(atMs), RANDOM_LENGTH)
}

/** The id of a file that a job makes: the same for the same job and name, so that it is made once however often the job runs. */
export function fileIdOf(jobId: string, name: string): string {
  const hash = createHash('sha256').update(`${jobId}\n${name}`).digest('hex').slice(0, RANDOM_LENGTH)
  return firstFileId(jobIdTime(jobId) ?? 0) + hash
}

/** Whether a text can be the id of a file: nothing else reaches the store. */
export function isFileId(text: string): boolean {
  return /^file-[0-9A-Za-z]{8,64}$/.test(text)
}

function firstFileId(atMs: number): string {
  return firstJobId(atMs).replace('job_', 'file-')
}
