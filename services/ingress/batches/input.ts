import type { IngressContext } from '#services/ingress/call.ts'
import { requireFiles } from '#services/ingress/files/read.ts'
import { FILES_MAX } from '#services/ingress/files/upload.ts'
import type { Blobs } from '#shared/blobs/blobs.ts'
import { ServiceError } from '#shared/error.ts'
import { BATCH_WRAP_UP_MS } from '#shared/kinds/batch.ts'
import { BATCH_INPUT, type FileStore } from '#shared/store/files.ts'

/** The lines of a batch, which belong to it. */
export interface BatchInput {
  /** Of the blob that they lie in. */
  readonly input: string
  readonly bytes: number
  readonly windowMs: number
}

/**
 * Counts the lines of a batch among the files of its project, for as long as they may be kept: until the batch has ended well, or its
 * job is deleted or purged.
 *
 * @throws ServiceError `insufficient_quota`
 */
export async function countInput(
  context: IngressContext,
  tenant: string,
  { input: id, bytes, windowMs }: BatchInput,
): Promise<void> {
  const { jobRetentionMs } = context.config
  const keepMs = windowMs + BATCH_WRAP_UP_MS + jobRetentionMs
  const row = { id, tenant, purpose: BATCH_INPUT, filename: '', bytes, keepMs }
  if (await requireFiles(context).create(row, { filesMax: FILES_MAX })) return
  const message = `This project has ${FILES_MAX} files and batches, which is the most. Delete some, or wait until a batch ends.`
  throw new ServiceError('insufficient_quota', message)
}

/** Lets go of lines that nobody reads again. */
export async function dropInput(
  { blobs, files }: { readonly blobs: Blobs; readonly files: FileStore },
  tenant: string,
  input: string,
): Promise<void> {
  await blobs.delete(input)
  await files.delete(tenant, input)
}
