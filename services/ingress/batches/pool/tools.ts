import type { BatchPartRequest, BatchRequest } from '#schemas/batches/batch.ts'
import type { Caller, IngressContext } from '#services/ingress/calls/call.ts'
import type { FileStore } from '#shared/store/records.ts'

export interface BatchTools {
  readonly context: IngressContext
  readonly files: FileStore
  readonly lineBytesMax: number
}

/**
 * Returns the caller for which the lines are validated: the project of the batch, with the rights that its key had at
 * submission.
 */
export function callerOf(
  { rights, headers }: Pick<BatchRequest | BatchPartRequest, 'rights' | 'headers'>,
  project: string,
): Caller {
  const { key_id: id, endpoints, models } = rights
  const key = {
    id,
    project,
    hash: '',
    hint: '',
    created_at: 0,
    revoked: false,
    ...(endpoints && { endpoints }),
    ...(models && { models }),
  }
  return { key, headers }
}
