import type { IngressContext } from '#services/ingress/calls/call.ts'
import { requireFiles } from '#services/ingress/calls/files.ts'
import { FILES_MAX } from '#services/ingress/files/upload.ts'
import type { Blobs } from '#shared/blobs/blobs.ts'
import { BATCH_WRAP_UP_MS } from '#shared/kinds/batch.ts'
import { ServiceError } from '#shared/lib/error.ts'
import { BATCH_INPUT, type FileStore } from '#shared/store/files.ts'

export interface BatchInput {
  readonly input: string
  readonly bytes: number
  readonly windowMs: number
}

/**
 * Counts the input of a batch among the files of its project. The file row is deleted when the batch has completed, or
 * when its job is deleted or expires.
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
  const message = `This project has ${FILES_MAX} files and batches, the maximum. Delete some, or wait until a batch ends.`
  throw new ServiceError('insufficient_quota', message)
}

/** Deletes the input of a batch once no part of the batch needs it. */
export async function dropInput(
  { blobs, files }: { readonly blobs: Blobs; readonly files: FileStore },
  tenant: string,
  input: string,
): Promise<void> {
  await blobs.delete(input)
  await files.delete(tenant, input)
}
