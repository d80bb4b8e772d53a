/*
 * GET /v1/batches/{id}/results: the results of a batch so far, as JSONL or CSV, at any time.
 *
 * The result files of a batch are written at its end. Until then, its results are in three places:
 * 1. A part whose requests have all ended has two blobs with its result lines, which the files are joined from.
 * 2. The requests of an unfinished part are jobs, whose results are read one at a time.
 * 3. A request that was refused has no job. When its part has ended, the error is in the blobs of the part.
 *
 * Each source is a stream, and at most one result is in memory. At the end of the batch its part blobs are replaced by the
 * files. A download that then needs a blob is cut, and a repeated one reads the files. A deleted or expired file is
 * reported before the head of the answer.
 */

import { Readable } from 'node:stream'
import { BatchResults } from '#schemas/batches/batch.ts'
import type { DurableJob } from '#schemas/durable-job.ts'
import { BATCHES, type BatchDetails, batchDetails, findBatch } from '#services/ingress/batches/batches.ts'
import { LineSplitter } from '#services/ingress/batches/lines.ts'
import { parseBody, refuseUnknown } from '#services/ingress/body/validate.ts'
import type { Call, IngressContext } from '#services/ingress/calls/call.ts'
import { PART_REQUESTS } from '#services/ingress/calls/child-counts.ts'
import { getFile, requireFiles } from '#services/ingress/calls/files.ts'
import { TERMINAL } from '#shared/jobs/durable/follow.ts'
import { readJson } from '#shared/json/read.ts'
import { writeJson } from '#shared/json/write.ts'
import { batchRowIn, ROW_COLUMNS } from '#shared/kinds/batch-row.ts'
import { csvLine } from '#shared/lib/csv.ts'
import { ServiceError } from '#shared/lib/error.ts'
import { runYielding } from '#shared/lib/yielding.ts'
import { childJobId } from '#shared/store/jobs.ts'
import { type Outcome, outcomeLine, partBlob, SIDES, type Side } from './part.ts'

/** Maximum bytes of a result line that CSV contains. JSONL has no such limit, because its lines are not read. */
const LINE_BYTES_MAX = 64 * 1024 * 1024
/** Maximum characters of JSON in a cell, for a result without text. */
const CELL_CHARS_MAX = 1024 * 1024
const TOO_LARGE = 'too large for CSV; use format=jsonl'
const LINE_FEED = Buffer.from('\n')
const TYPES = { jsonl: 'application/x-jsonl', csv: 'text/csv; charset=utf-8' } as const

export async function batchResults(context: IngressContext, call: Call): Promise<void> {
  refuseUnknown(BatchResults, call.query)
  const { format, status } = parseBody(BatchResults, { ...call.query }, 'openai')
  const job = await findBatch(context, call, BATCHES, 'batch_')
  const sides = SIDES.filter((side) => status === undefined || (status === 'completed') === (side === 'output'))
  const details = await batchDetails(context, job)
  await requireResultFiles(context, job, details, sides)
  const lines = resultsOf(context, job, details, sides)
  const name = `${job.id.replace('job_', 'batch_')}${status ? `-${status}` : ''}.${format}`
  call.reply.setHeader('content-disposition', `attachment; filename="${name}"`)
  const source = format === 'csv' ? csvOf(lines) : lines
  await call.reply.bytes(Readable.from(source, { objectMode: false }), { type: TYPES[format] })
}

/** @throws ServiceError `not_found` if a file of these results was deleted or has expired */
async function requireResultFiles(
  context: IngressContext,
  { tenant }: DurableJob,
  details: BatchDetails,
  sides: readonly Side[],
): Promise<void> {
  for (const id of fileIdsOf(details, sides)) {
    await getFile(requireFiles(context), tenant, id)
    await context.blobs.size(id)
  }
}

function fileIdsOf({ result }: BatchDetails, sides: readonly Side[]): string[] {
  const files = { output: result?.output_file_id, errors: result?.error_file_id }
  return sides.flatMap((side) => files[side] ?? [])
}

async function* resultsOf(
  context: IngressContext,
  job: DurableJob,
  details: BatchDetails,
  sides: readonly Side[],
): AsyncGenerator<Buffer> {
  for (const id of fileIdsOf(details, sides)) yield* await context.blobs.open(id)
  const { begun, result } = details
  if (!begun || result) return
  const parts = Math.ceil(begun.requests / PART_REQUESTS)
  for (let nth = 0; nth < parts; nth++) {
    const part = await context.store?.find(job.tenant, childJobId(job.id, String(nth)))
    if (!part) continue
    if (part.state !== 'completed') yield* unfinishedPart(context, part, sides)
    else for (const side of sides) yield* await context.blobs.open(partBlob(part.id, side))
  }
}

/** The ended requests of a part that still runs. */
async function* unfinishedPart(
  { store }: IngressContext,
  { id, tenant }: DurableJob,
  sides: readonly Side[],
): AsyncGenerator<Buffer> {
  for (const child of (await store?.listChildren(tenant, id)) ?? []) {
    const side = child.state === 'completed' ? 'output' : 'errors'
    if (!TERMINAL.has(child.state) || !sides.includes(side)) continue
    const value = outcomeLine('requests', child.id, child.metadata.custom_id ?? '', await outcomeOfJob(store, child))
    for (const piece of writeJson(value)) yield Buffer.from(piece)
    yield LINE_FEED
  }
}

async function outcomeOfJob(store: IngressContext['store'], job: DurableJob): Promise<Outcome> {
  const { id, tenant, state, usage, error } = job
  if (state === 'completed') {
    const content = await store?.findContent(tenant, id)
    return { type: 'completed', result: content?.result ?? null, usage }
  }
  if (state === 'cancelled' || state === 'expired') return { type: state }
  return { type: 'failed', error: error ?? new ServiceError('internal_error', 'The request failed.').toBody() }
}

async function* csvOf(pieces: AsyncIterable<Buffer>): AsyncGenerator<string> {
  yield csvLine(['custom_id', ...ROW_COLUMNS])
  const splitter = new LineSplitter(LINE_BYTES_MAX)
  for await (const piece of pieces) {
    for (const { bytes } of splitter.push(piece)) yield await csvRow(bytes)
  }
  for (const { bytes } of splitter.end()) yield await csvRow(bytes)
}

async function csvRow(bytes: Buffer | undefined): Promise<string> {
  const value = bytes && (await runYielding(readJson(bytes)))
  const row = await runYielding(batchRowIn(value, { charsMax: CELL_CHARS_MAX, instead: TOO_LARGE }))
  if (!row)
    throw new ServiceError('request_too_large', `A result is larger than the ${LINE_BYTES_MAX} bytes of a CSV row.`)
  return csvLine([row.customId, row.answer, row.error, row.inputTokens, row.outputTokens])
}
