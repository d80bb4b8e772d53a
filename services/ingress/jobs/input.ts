import type { StoredRequest } from '#schemas/job.ts'
import type { Call, IngressContext } from '#services/ingress/calls/call.ts'
import { findJob, jobNotFound, requireJobs } from '#services/ingress/calls/job-object.ts'
import type { Blobs } from '#shared/blobs/blobs.ts'
import { bytesOfBody, fetchBody } from '#shared/jobs/body.ts'
import { readStored } from '#shared/jobs/records.ts'

/** Maximum bytes of JSON in the answer. A longer input is cut to its beginning. */
export const INPUT_BYTES_MAX = 256 * 1024
const EXCERPT_CHARS = 16 * 1024
/** Maximum UTF-8 bytes per UTF-16 code unit. */
const BYTES_PER_CHAR = 3

/** Fields that Sluice added to the body. The answer does not contain them. */
const OWN_FIELDS: ReadonlySet<string> = new Set(['rights'])

interface InputView {
  readonly input: unknown
  readonly input_cut: { readonly beginning: string; readonly length: number } | null
}

/**
 * GET /v1/jobs/{id}/input: the input of the job, in the internal form of its kind. Only the project of the job may read
 * it. The input is deleted together with the job.
 *
 * @throws ServiceError `job_not_found`; `internal_error` if the blob of the input is missing
 */
export async function getInput(context: IngressContext, call: Call): Promise<void> {
  const { id, tenant, endpoint, model } = await findJob(requireJobs(context), call)
  const content = await context.store?.findContent(tenant, id)
  if (!content) throw jobNotFound(id)
  const { attachments = [], ...request } = readStored(content.request)
  const shown = await inputOf(context.blobs, request)
  await call.reply.whole({ id, object: 'job.input', endpoint, model, ...shown, attachments: attachments.length })
}

/** Reads the input, or only its beginning if it is a large blob. */
async function inputOf(blobs: Blobs, request: StoredRequest): Promise<InputView> {
  const length = await bytesOfBody(request, blobs)
  const blob = request.history?.segments[0]?.blob ?? request.blob
  if (blob === undefined || length <= INPUT_BYTES_MAX) {
    return { input: withoutOwn(await fetchBody(request, blobs)), input_cut: null }
  }
  const pieces: Buffer[] = []
  for await (const piece of await blobs.open(blob, { start: 0, end: EXCERPT_CHARS * BYTES_PER_CHAR })) {
    pieces.push(piece as Buffer)
  }
  // Cut by characters, because a cut between bytes could split a character.
  const beginning = Buffer.concat(pieces).toString().slice(0, EXCERPT_CHARS).toWellFormed()
  return { input: null, input_cut: { beginning, length } }
}

function withoutOwn(body: unknown): unknown {
  if (typeof body !== 'object' || body === null || Array.isArray(body)) return body
  return Object.fromEntries(Object.entries(body).filter(([name]) => !OWN_FIELDS.has(name)))
}
