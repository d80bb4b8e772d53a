/*
 * GET /v1/batches/{id}/results: the results of a batch so far, as JSONL or CSV, at any time.
 *
 * A batch runs in parts of at most 100 requests. The result files are written at the end of the batch. Until then, its
 * results are in three places:
 * 1. If all requests of a part have ended, then the part has two blobs with its result lines. The result files are later
 *    joined from such blobs.
 * 2. The requests of an unfinished part are jobs, whose results are read one at a time.
 * 3. A request that was refused has no job. When its part has ended, the error is in the blobs of the part.
 *
 * Each source is a stream, and at most two results are in memory. In CSV, answers and errors are merged by the number at the
 * end of their custom ids, such as `row-32`. Rows of a numbered input therefore keep its order.
 *
 * At the end of the batch, the result files replace the blobs of the parts. A running download that still needs such a
 * blob is cut. If the caller repeats the download, then the files are read.
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
import { type BatchRow, batchRowIn } from '#shared/kinds/batch-row.ts'
import { csvLine } from '#shared/lib/csv.ts'
import { ServiceError } from '#shared/lib/error.ts'
import { runYielding } from '#shared/lib/yielding.ts'
import { childJobId } from '#shared/store/jobs.ts'
import { ROW_COLUMNS } from '#shared/tables/answers.ts'
import { type Outcome, outcomeLine, partBlob, SIDES, type Side } from './part.ts'

/**
 * Maximum bytes of a result line that is converted to CSV. JSONL has no maximum, because lines are copied without
 * parsing.
 */
const LINE_BYTES_MAX = 64 * 1024 * 1024
/** Maximum characters of a CSV cell that contains JSON, for a result without text. */
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
  const sources = sourcesOf(context, job, details, sides)
  const name = `${job.id.replace('job_', 'batch_')}${status ? `-${status}` : ''}.${format}`
  call.reply.setHeader('content-disposition', `attachment; filename="${name}"`)
  const source = format === 'csv' ? csvOf(sources) : linesOf(sources)
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

/** Opens a stream of result lines. */
type Source = () => AsyncIterable<Buffer> | Promise<AsyncIterable<Buffer>>

/**
 * Yields groups of sources in the order of the input. The sources of one group contain results of the same requests,
 * such as the answers and the errors of one part.
 */
async function* sourcesOf(
  context: IngressContext,
  job: DurableJob,
  details: BatchDetails,
  sides: readonly Side[],
): AsyncGenerator<Source[]> {
  yield fileIdsOf(details, sides).map((id) => () => context.blobs.open(id))
  const { begun, result } = details
  if (!begun || result) return
  const parts = Math.ceil(begun.requests / PART_REQUESTS)
  for (let nth = 0; nth < parts; nth++) {
    const part = await context.store?.find(job.tenant, childJobId(job.id, String(nth)))
    if (!part) continue
    if (part.state !== 'completed') yield [() => unfinishedPart(context, part, sides)]
    else yield sides.map((side) => () => context.blobs.open(partBlob(part.id, side)))
  }
}

async function* linesOf(sources: AsyncIterable<Source[]>): AsyncGenerator<Buffer> {
  for await (const group of sources) for (const open of group) yield* await open()
}

/** Yields result lines for the ended requests of a part that still runs, sorted by the number in their custom ids. */
async function* unfinishedPart(
  { store }: IngressContext,
  { id, tenant }: DurableJob,
  sides: readonly Side[],
): AsyncGenerator<Buffer> {
  const children = (await store?.listChildren(tenant, id)) ?? []
  const numbered = children.map((child) => ({ child, number: numberIn(child.metadata.custom_id ?? '') }))
  for (const { child } of numbered.toSorted((a, b) => (a.number < b.number ? -1 : Number(a.number > b.number)))) {
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

async function* csvOf(sources: AsyncIterable<Source[]>): AsyncGenerator<string> {
  yield csvLine(['custom_id', ...ROW_COLUMNS])
  for await (const group of sources) {
    for await (const { customId, answer, error, finishReason, inputTokens, outputTokens } of mergedRows(group)) {
      yield csvLine([customId, answer, error, finishReason, inputTokens, outputTokens])
    }
  }
}

async function* mergedRows(group: readonly Source[]): AsyncGenerator<BatchRow> {
  const rows = group.map(rowsOf)
  try {
    const heads = await Promise.all(rows.map((source) => source.next()))
    for (;;) {
      const next = heads.reduce((least, head, nth) => (numberOf(head) < numberOf(heads[least]) ? nth : least), 0)
      const nth = heads[next]?.done === false ? next : heads.findIndex(({ done }) => !done)
      if (nth < 0) return
      yield heads[nth]?.value as BatchRow
      heads[nth] = (await rows[nth]?.next()) as IteratorResult<BatchRow>
    }
  } finally {
    await Promise.all(rows.map((source) => source.return(undefined)))
  }
}

function numberOf(head: IteratorResult<BatchRow> | undefined): number {
  return head?.done === false ? numberIn(head.value.customId) : Number.POSITIVE_INFINITY
}

/** Returns the number at the end of a custom id, such as 32 for `row-32`. Infinity without a number, so that such ids are sorted last. */
function numberIn(customId: string): number {
  return Number(/\d+$/.exec(customId)?.[0] ?? Number.POSITIVE_INFINITY)
}

async function* rowsOf(open: Source): AsyncGenerator<BatchRow> {
  const splitter = new LineSplitter(LINE_BYTES_MAX)
  for await (const piece of await open()) {
    for (const { bytes } of splitter.push(piece)) yield await readRow(bytes)
  }
  for (const { bytes } of splitter.end()) yield await readRow(bytes)
}

async function readRow(bytes: Buffer | undefined): Promise<BatchRow> {
  const value = bytes && (await runYielding(readJson(bytes)))
  const row = await runYielding(batchRowIn(value, { charsMax: CELL_CHARS_MAX, instead: TOO_LARGE }))
  if (row) return row
  throw new ServiceError('request_too_large', `A result is larger than the ${LINE_BYTES_MAX} bytes of a CSV row.`)
}
