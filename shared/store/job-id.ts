import { createHash } from 'node:crypto'
import { newId } from '#shared/lib/id.ts'

/**
 * Ids of durable jobs: `job_`, ten characters of time, 22 random ones (125 bits).
 *
 * Ids sort by age, so an id serves as the cursor of lists and determines the daily partition of the job and its events. The time
 * comes from the clock of the process, so deadlines and leases never use that time.
 */
const PREFIX = 'job_'
const TIME_LENGTH = 10
const RANDOM_LENGTH = 22
const ATTACHMENT_LENGTH = 8
/** Crockford's base 32, as in ULID: texts of equal length sort like the encoded numbers. */
const DIGITS = '0123456789ABCDEFGHJKMNPQRSTVWXYZ'

export function newJobId(atMs: number = Date.now()): string {
  return newId(firstJobId(atMs), RANDOM_LENGTH)
}

/**
 * Id of a child job, derived from the parent and the step. A step repeated after a crash finds its child. The id has the time of the parent, so both
 * are in the same partition.
 */
export function childJobId(parentId: string, step: string): string {
  const hash = createHash('sha256').update(`${parentId}\n${step}`).digest('hex').slice(0, RANDOM_LENGTH)
  return parentId.slice(0, PREFIX.length + TIME_LENGTH) + hash
}

/**
 * Key of an additional blob of a job. The key begins with the job id, so that the sweep of blobs can check whether the job still
 * exists. The blob may be written before the job.
 */
export function newAttachmentKey(jobId: string): string {
  return newId(`${jobId}-`, ATTACHMENT_LENGTH)
}

/** The id of the durable job that a blob belongs to; undefined for any other blob, such as the body of an attached job. */
export function ownerOfBlob(key: string): string | undefined {
  return /^(job_[0-9A-HJKMNP-TV-Z]{10}\w{22})(-\w+)?$/.exec(key)?.[1]
}

/** A lower bound of the ids that are created at a time or later, for range queries. */
export function firstJobId(atMs: number): string {
  let time = ''
  for (let rest = atMs, i = 0; i < TIME_LENGTH; i++, rest = Math.floor(rest / 32)) time = DIGITS[rest % 32] + time
  return PREFIX + time
}

export function jobIdTime(id: string): number | undefined {
  if (!/^job_[0-9A-HJKMNP-TV-Z]{10}/.test(id)) return undefined
  let ms = 0
  for (const digit of id.slice(PREFIX.length, PREFIX.length + TIME_LENGTH)) ms = ms * 32 + DIGITS.indexOf(digit)
  return ms
}
