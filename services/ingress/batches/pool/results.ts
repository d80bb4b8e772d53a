/*
 * GET /v1/batches/{id}/results: the results of a batch so far, as JSONL or CSV, at any time.
 *
 * The result files of a batch are written at its end. Until then, its results are in three places:
 * 1. A part whose requests have all ended has two blobs with its result lines, which the files are joined from.
 * 2. The requests of an unfinished part are jobs, whose results are read one at a time.
 * 3. A request that was refused has no job. When its part has ended, the error is in the blobs of the part.
 *
 * Each source is a stream, and at most one result is in memory. At the end of the batch its part blobs are replaced by the
 * files. A download that then needs a blob is cut, and a repeated one reads the files.
 */

import { Readable } from 'node:stream'
import { BatchResults } from '#schemas/batches/batch.ts'
import type { DurableJob } from '#schemas/durable-job.ts'
import { BATCHES, type BatchDetails, batchDetails, findBatch } from '#services/ingress/batches/batches.ts'
import { LineSplitter } from '#services/ingress/batches/lines.ts'
import { parseBody, refuseUnknown } from '#services/ingress/body/validate.ts'
import type { Call, IngressContext } from '#services/ingress/calls/call.ts'
import { PART_REQUESTS } from '#services/ingress/calls/child-counts.ts'
import { TERMINAL } from '#shared/jobs/durable/follow.ts'
import { readJson } from '#shared/json/read.ts'
import { writeJson } from '#shared/json/write.ts'
import { batchRowOf, ROW_COLUMNS } from '#shared/kinds/batch-row.ts'
import { csvLine } from '#shared/lib/csv.ts'
import { ServiceError } from '#shared/lib/error.ts'
import { runYielding } from '#shared/lib/yielding.ts'
import { childJobId } from '#shared/store/jobs.ts'
import { type Outcome, outcomeLine, partBlob, SIDES, type Side } from './part.ts'

/** Maximum bytes of a result line that CSV contains. JSONL has no such limit, because its lines are not read. */
const LINE_BYTES_MAX = 64 * 1024 * 1024
const LINE_FEED = Buffer.from('\n')
const TYPES = { jsonl: 'application/x-jsonl', csv: 'text/csv; charset=utf-8' } as const

export async function batchResults(context: IngressContext, call: Call): Promise<void> {
  refuseUnknown(BatchResults, call.query)
  const { format, status } = parseBody(BatchResults, { ...call.query }, 'openai')
  const job = await findBatch(context, call, BATCHES, 'batch_')
  const sides = SIDES.filter((side) => status === undefined || (status === 'completed') === (side === 'output'))
  const lines = resultsOf(context, job, await batchDetails(context, job), sides)
  const name = `${job.id.replace('job_', 'batch_')}${status ? `-${status}` : ''}.${format}`
  call.reply.setHeader('content-disposition', `attachment; filename="${name}"`)
  const source = format === 'csv' ? csvOf(lines) : lines
  await call.reply.bytes(Readable.from(source, { objectMode: false }), { type: TYPES[format] })
}

async function* resultsOf(
  context: IngressContext,
  job: DurableJob,
  { result, begun }: BatchDetails,
  sides: readonly Side[],
): AsyncGenerator<Buffer> {
  if (result?.output_file_id || result?.error_file_id) {
    const files = { output: result.output_file_id, errors: result.error_file_id }
    for (const side of sides) if (files[side]) yield* await context.blobs.open(files[side])
    return
  }
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
  const row = batchRowOf(bytes && (await runYielding(readJson(bytes))))
  if (!row)
    throw new ServiceError('request_too_large', `A result is larger than the ${LINE_BYTES_MAX} bytes of a CSV row.`)
  return csvLine([row.customId, row.answer, row.error, row.inputTokens, row.outputTokens])
}
