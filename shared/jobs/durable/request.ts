import type { EncodeContext, StoredRequest } from '#schemas/job.ts'
import type { Blobs } from '#shared/blobs/blobs.ts'
import { fetchBody, storeBody } from '#shared/jobs/body.ts'
import { newAttachmentKey, newJobId } from '#shared/store/job-id.ts'

/** What the store is to keep of a request. A large body goes into a blob under the job's id first. */
export async function storeRequest(
  id: string,
  { body, attachments = [] }: { readonly body: unknown; readonly attachments?: readonly string[] | undefined },
  encode: EncodeContext,
  blobs: Blobs,
): Promise<StoredRequest> {
  const more = attachments.length > 0 ? { attachments: [...attachments] } : {}
  const stored = await storeBody(id, body, blobs)
  return 'blob' in stored ? { ...stored, ...more, encode } : { body, ...more, encode }
}

/** The body of a request with copies of its attachments, whose names go to `copies` as they are made. */
export async function copyBody(request: StoredRequest, blobs: Blobs, copies: string[]): Promise<unknown> {
  const body = await fetchBody(request, blobs)
  const { attachments = [] } = request
  if (attachments.length === 0) return body
  const id = newJobId()
  const names = new Map(attachments.map((blob) => [blob, newAttachmentKey(id)]))
  for (const [from, to] of names) {
    copies.push(to)
    await blobs.copy(from, to)
  }
  return JSON.parse(JSON.stringify(body), (_key, value) => names.get(value) ?? value)
}
