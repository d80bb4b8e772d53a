import type { BatchRequest } from '#schemas/batches/batch.ts'
import { FILES_MAX } from '#services/ingress/files/upload.ts'
import { fileIdOf } from '#shared/store/files.ts'
import { partBlob, SIDES, type Side } from './part-lines.ts'
import type { BatchTools } from './tools.ts'

/** What is joined: the parts of a batch in their order, by the ids of their jobs. */
interface Joining {
  /** Of the batch's job. */
  readonly id: string
  readonly tenant: string
  readonly ids: readonly string[]
  readonly parts: readonly { readonly output_bytes: number; readonly error_bytes: number }[]
}

/** Makes the files of a batch. Done twice, they are the same files. Null: there would be nothing in it. */
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

/** Lets go of the lines of the parts, once the files are there. */
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
  // What was paid for is kept, whatever room there is.
  await files.create(row, { filesMax: FILES_MAX * FILES_MAX })
  return file
}
