import type { BatchRequest } from '#schemas/batches/batch.ts'
import { FILES_MAX } from '#services/ingress/files/upload.ts'
import { fileIdOf } from '#shared/store/files.ts'
import { partBlob, SIDES, type Side } from './part-lines.ts'
import type { BatchTools } from './tools.ts'

/** Parts to join, in order. */
interface Joining {
  readonly id: string
  readonly tenant: string
  readonly ids: readonly string[]
  readonly parts: readonly { readonly output_bytes: number; readonly error_bytes: number }[]
}

/**
 * Writes the result files of a batch. Idempotent: a repeated call writes the same files. Null for a file without lines.
 */
export async function joinParts(
  tools: BatchTools,
  request: BatchRequest,
  joining: Joining,
): Promise<{ output_file_id: string | null; error_file_id: string | null }> {
  const [output_file_id, error_file_id] = [
    await joinSide(tools, request, joining, 'output'),
    await joinSide(tools, request, joining, 'errors'),
  ]
  return { output_file_id, error_file_id }
}

/** Deletes the parts' result blobs, after the files are written. */
export async function dropParts({ context }: BatchTools, ids: readonly string[]): Promise<void> {
  for (const id of ids) for (const side of SIDES) await context.blobs.delete(partBlob(id, side))
}

async function joinSide(
  { context, files }: BatchTools,
  { keep_ms: keepMs }: BatchRequest,
  { id, tenant, ids, parts }: Joining,
  side: Side,
): Promise<string | null> {
  const { blobs } = context
  const bytesOf = (nth: number) => (side === 'output' ? parts[nth]?.output_bytes : parts[nth]?.error_bytes) ?? 0
  const bytes = parts.reduce((sum, _, nth) => sum + bytesOf(nth), 0)
  if (bytes === 0) return null
  async function* joined(): AsyncGenerator<Buffer> {
    for (const [nth, part] of ids.entries()) if (bytesOf(nth) > 0) yield* await blobs.open(partBlob(part, side))
  }
  const file = fileIdOf(id, side)
  await blobs.put(file, joined())
  const filename = `${id.replace('job_', 'batch_')}_${side}.jsonl`
  const row = { id: file, tenant, purpose: 'batch_output', filename, bytes, keepMs }
  // Results are paid for, so they are stored even if the project's file quota is exceeded.
  await files.create(row, { filesMax: FILES_MAX * FILES_MAX })
  return file
}
