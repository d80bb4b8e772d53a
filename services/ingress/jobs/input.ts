import type { StoredRequest } from '#schemas/job.ts'
import type { Call, IngressContext } from '#services/ingress/call.ts'
import type { Blobs } from '#shared/blobs/blobs.ts'
import { bytesOfBody, fetchBody } from '#shared/jobs/body.ts'
import { readStored } from '#shared/jobs/records.ts'
import { findJob, jobNotFound, requireJobs } from './paths.ts'

/** Bytes of JSON above which an input is shown by its beginning. */
export const INPUT_BYTES_MAX = 256 * 1024
/** Characters of such a beginning. */
const BEGINNING_CHARS = 16 * 1024
/** UTF-8 has no more bytes of one character of a string. */
const BYTES_PER_CHAR = 3

/** What the service itself adds to a body, for whoever runs it: it is not what the caller asked. */
const OWN_FIELDS: ReadonlySet<string> = new Set(['rights'])

/** What a job was asked: all of it, or how it begins and how many bytes it has. */
interface ShownInput {
  readonly input: unknown
  readonly input_cut: { readonly beginning: string; readonly length: number } | null
}

/**
 * GET /v1/jobs/{id}/input: what the job was asked, in the form its kind has inside the service. It is for the project of the job
 * alone, as the result is, and goes with it when the job is deleted.
 *
 * @throws ServiceError `job_not_found`; `internal_error` where its blob is gone
 */
export async function getInput(context: IngressContext, call: Call): Promise<void> {
  const { id, tenant, endpoint, model } = await findJob(requireJobs(context), call)
  const content = await context.store?.findContent(tenant, id)
  if (!content) throw jobNotFound(id)
  const { attachments = [], ...request } = readStored(content.request)
  const shown = await inputOf(context.blobs, request)
  await call.reply.whole({ id, object: 'job.input', endpoint, model, ...shown, attachments: attachments.length })
}

/** A body in the row is small by itself; a blob is read as far as it is shown. */
async function inputOf(blobs: Blobs, request: StoredRequest): Promise<ShownInput> {
  const length = await bytesOfBody(request, blobs)
  const blob = request.history?.segments[0]?.blob ?? request.blob
  if (blob === undefined || length <= INPUT_BYTES_MAX) {
    return { input: withoutOwn(await fetchBody(request, blobs)), input_cut: null }
  }
  const pieces: Buffer[] = []
  for await (const piece of await blobs.open(blob, { start: 0, end: BEGINNING_CHARS * BYTES_PER_CHAR })) {
    pieces.push(piece as Buffer)
  }
  // Cut in characters: half of one would be none.
  const beginning = Buffer.concat(pieces).toString().slice(0, BEGINNING_CHARS).toWellFormed()
  return { input: null, input_cut: { beginning, length } }
}

function withoutOwn(body: unknown): unknown {
  if (typeof body !== 'object' || body === null || Array.isArray(body)) return body
  return Object.fromEntries(Object.entries(body).filter(([name]) => !OWN_FIELDS.has(name)))
}
