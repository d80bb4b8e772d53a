import { createHash } from 'node:crypto'
import { newId } from '#shared/id.ts'

/**
 * Ids of durable jobs: `job_`, ten characters of time, 22 random ones (125 bits).
 *
 * The time makes ids sort by age in bytes, so the id is the cursor of lists and says which day's partition holds the job
 * and its events. It orders and places; deadlines and leases never use it, for it is the clock of the process.
 */
const PREFIX = 'job_'
const TIME_LENGTH = 10
const RANDOM_LENGTH = 22
const ATTACHMENT_LENGTH = 8
/** Crockford's base 32, as in ULID: sorts like the numbers. */
const DIGITS = '0123456789ABCDEFGHJKMNPQRSTVWXYZ'

/** An id nobody can guess. @param atMs Unix milliseconds */
export function newJobId(atMs: number = Date.now()): string {
  return newId(firstJobId(atMs), RANDOM_LENGTH)
}

/**
 * The id of a step's job: the same for the same parent and step, so that a step repeated after a crash finds its child.
 * It lies in the parent's partition and is kept and dropped with it.
 */
export function childJobId(parentId: string, step: string): string {
  const hash = createHash('sha256').update(`${parentId}\n${step}`).digest('hex').slice(0, RANDOM_LENGTH)
  return parentId.slice(0, PREFIX.length + TIME_LENGTH) + hash
}

/**
 * A key for a blob that a job is to hold beside its body. It begins with the job's id, so that whoever finds the blob knows
 * whom to ask whether it is still needed; the job may not be there yet.
 */
export function newAttachmentKey(jobId: string): string {
  return newId(`${jobId}-`, ATTACHMENT_LENGTH)
}

/** The id of the durable job that a blob belongs to, if any job; undefined for the blob of an attached one. */
export function ownerOfBlob(key: string): string | undefined {
  return /^(job_[0-9A-HJKMNP-TV-Z]{10}\w{22})(-\w+)?$/.exec(key)?.[1]
}

/** The start of every id made at a time: no id of that time or later sorts before it. */
export function firstJobId(atMs: number): string {
  let time = ''
  for (let rest = atMs, i = 0; i < TIME_LENGTH; i++, rest = Math.floor(rest / 32)) time = DIGITS[rest % 32] + time
  return PREFIX + time
}

/** When an id was made, in unix milliseconds; undefined for what is not an id of a durable job. */
export function jobIdTime(id: string): number | undefined {
  if (!/^job_[0-9A-HJKMNP-TV-Z]{10}/.test(id)) return undefined
  let ms = 0
  for (const digit of id.slice(PREFIX.length, PREFIX.length + TIME_LENGTH)) ms = ms * 32 + DIGITS.indexOf(digit)
  return ms
}
