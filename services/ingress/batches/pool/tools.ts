import type { BatchPartRequest, BatchRequest } from '#schemas/batches/batch.ts'
import type { IngressContext } from '#services/ingress/call.ts'
import type { Caller } from '#services/ingress/endpoints/endpoint.ts'
import type { FileStore } from '#shared/store/files.ts'

/** What those who run batches work with. */
export interface BatchTools {
  /** Reads calls: what a line says is checked as if it had come by itself. */
  readonly context: IngressContext
  readonly files: FileStore
  readonly lineBytesMax: number
}

/** Whoever made a batch, as calls are checked for them: with the rights that their key had then, in their project. */
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
