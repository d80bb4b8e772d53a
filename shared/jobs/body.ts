import { setImmediate as nextTurn } from 'node:timers/promises'
import type { JobEnvelope } from '#schemas/job.ts'
import type { Blobs } from '#shared/blobs/blobs.ts'
import { ServiceError } from '#shared/error.ts'
import { readJob } from './records.ts'

/** Bytes of JSON above which a body travels as a blob (DESIGN section 4). */
export const BODY_BYTES_MAX = 64 * 1024

/**
 * The record of a job: its envelope as JSON, with the body inside or, when it is large, in a blob under the job's id.
 *
 * @returns The record, and whether a blob was written: whoever ends the job deletes it.
 */
export async function packJob(envelope: JobEnvelope, blobs: Blobs): Promise<{ value: Buffer; hasBlob: boolean }> {
  const { body, ...rest } = envelope
  const json = JSON.stringify(body)
  if (json.length <= BODY_BYTES_MAX) {
    const head = JSON.stringify(rest)
    return { value: Buffer.from(`${head.slice(0, -1)},"body":${json}}`), hasBlob: false }
  }
  await blobs.put(envelope.id, Buffer.from(json))
  return { value: Buffer.from(JSON.stringify({ ...rest, blob: envelope.id })), hasBlob: true }
}

/** The envelope of a record, its body not fetched yet. Undefined when it cannot be understood. */
export function unpackJob(value: Buffer): JobEnvelope | undefined {
  return readJob(value)
}

/** The body of a job, from the envelope or from its blob. @throws ServiceError `internal_error` when the blob is gone */
export async function fetchBody(envelope: Pick<JobEnvelope, 'body' | 'blob'>, blobs: Blobs): Promise<unknown> {
  if (envelope.blob === undefined) return envelope.body
  const value = await blobs.get(envelope.blob).catch((cause: unknown) => {
    // Not the caller's fault: the blob directory is not shared, or it was emptied.
    throw new ServiceError('internal_error', 'The body of the request could not be read by its worker.', { cause })
  })
  const body: unknown = JSON.parse(value.toString())
  // Checking a large body takes as long again, and others have waited already.
  await nextTurn()
  return body
}
