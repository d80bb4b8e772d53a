import { ListFiles } from '#schemas/files.ts'
import { beginningOf } from '#services/ingress/body/problem.ts'
import { parseBody } from '#services/ingress/body/validate.ts'
import { projectIdOf } from '#shared/keys/keys.ts'
import { ServiceError } from '#shared/lib/error.ts'
import { type FileStore, HISTORY, isFileId, type StoredFile } from '#shared/store/records.ts'
import type { Call, IngressContext } from './call.ts'
import { requireJobs } from './job-object.ts'

export function requireFiles(context: IngressContext): FileStore {
  requireJobs(context)
  return (context.store as NonNullable<IngressContext['store']>).files
}

export async function getFile(
  files: FileStore,
  tenant: string,
  id: string,
  param: string | null = null,
): Promise<StoredFile> {
  const file = isFileId(id) ? await files.find(tenant, id) : undefined
  if (file && file.purpose !== HISTORY) return file
  throw new ServiceError('not_found', `No such File object: ${beginningOf(id, 64)}`, { param })
}

export async function listFiles(context: IngressContext, call: Call): Promise<void> {
  const files = requireFiles(context)
  const query = parseBody(ListFiles, { ...call.query }, 'openai')
  const found = await files.list(projectIdOf(call.key), query)
  const data = found.slice(0, query.limit).map(fileObject)
  const [first_id, last_id] = [data[0]?.id ?? null, data.at(-1)?.id ?? null]
  await call.reply.whole({ object: 'list', data, first_id, last_id, has_more: found.length > data.length })
}

export async function retrieveFile(context: IngressContext, call: Call): Promise<void> {
  await call.reply.whole(fileObject(await fileOf(context, call)))
}

export async function fileContent(context: IngressContext, call: Call): Promise<void> {
  const { id, bytes, filename } = await fileOf(context, call)
  call.reply.setHeader('content-disposition', attachmentOf(filename))
  await call.reply.bytes(await context.blobs.open(id), { type: 'application/octet-stream', length: bytes })
}

/** Value of `content-disposition` for a file (RFC 6266). Clients that do not read `filename*` receive a name in ASCII. */
export function attachmentOf(filename: string): string {
  const plain = filename.replaceAll(/[^\w .()-]/g, '_')
  return `attachment; filename="${plain}"${plain === filename ? '' : `; filename*=UTF-8''${extendedValue(filename)}`}`
}

function extendedValue(text: string): string {
  return encodeURIComponent(text.toWellFormed()).replaceAll(/['()*]/g, (char) => `%${char.charCodeAt(0).toString(16)}`)
}

/** DELETE /v1/files/{id}: deletes a file. Batches that were created from the file have their own copy and continue. */
export async function deleteFile(context: IngressContext, call: Call): Promise<void> {
  const files = requireFiles(context)
  const { id, tenant } = await fileOf(context, call)
  await files.delete(tenant, id)
  await context.blobs.delete(id)
  await call.reply.whole({ id, object: 'file', deleted: true })
}

export function fileObject({ id, bytes, created_at_ms, expires_at_ms, filename, purpose }: StoredFile) {
  const [created_at, expires_at] = [Math.floor(created_at_ms / 1_000), Math.floor(expires_at_ms / 1_000)]
  return {
    id,
    object: 'file',
    bytes,
    created_at,
    expires_at,
    filename,
    purpose,
    status: 'processed',
    status_details: null,
  }
}

async function fileOf(context: IngressContext, call: Call): Promise<StoredFile> {
  return await getFile(requireFiles(context), projectIdOf(call.key), String(call.params.id))
}
