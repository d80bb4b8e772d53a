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
 * At most one source is open at a time, and at most {@link BLOCK_BYTES} and one result per source are in memory. Answers and errors are merged by
 * the number at the end of their custom ids, such as `row-32`. Rows of a numbered input therefore keep its order. JSONL of one batch is copied
 * without parsing: first the answers, then the errors.
 *
 * With `include=earlier`, the results of the batches that this batch retries are merged in, and each custom id has only its newest result.
 * For this, the custom ids of all batches except the oldest one are read first. A row may have been changed for the new batch. The earlier
 * result of a row is therefore left out as soon as the new batch runs, even while the row has no new result.
 *
 * At the end of the batch, the result files replace the blobs of the parts. A running download then continues in the files, at the same
 * position. A part that had not ended yielded only some of its lines. If the download contains such lines, or lines of later parts, then no
 * position in the files corresponds to it, and the download is cut.
 */

import { createHash } from 'node:crypto'
import { parse } from 'node:path'
import { Readable } from 'node:stream'
import { BatchResults } from '#schemas/batches/batch.ts'
import type { DurableJob } from '#schemas/durable-job.ts'
import {
  BATCHES,
  type BatchDetails,
  batchDetails,
  batchIdOf,
  findBatch,
  jobIdOfBatch,
} from '#services/ingress/batches/batches.ts'
import { LineSplitter, linesOf, readLine } from '#services/ingress/batches/lines.ts'
import { parseBody, refuseUnknown } from '#services/ingress/body/validate.ts'
import type { Call, IngressContext } from '#services/ingress/calls/call.ts'
import { PART_REQUESTS } from '#services/ingress/calls/child-counts.ts'
import { attachmentOf, getFile, requireFiles } from '#services/ingress/calls/files.ts'
import { TERMINAL } from '#shared/jobs/durable/follow.ts'
import { readJson } from '#shared/json/read.ts'
import { writeJson } from '#shared/json/write.ts'
import { type BatchRow, batchRowIn } from '#shared/kinds/batch-row.ts'
import { csvLine } from '#shared/lib/csv.ts'
import { ServiceError } from '#shared/lib/error.ts'
import { runYielding } from '#shared/lib/yielding.ts'
import { childJobId } from '#shared/store/jobs.ts'
import { fileIdOf } from '#shared/store/records.ts'
import { RETRY_OF_KEY, ROW_COLUMNS } from '#shared/tables/answers.ts'
import { FORMATS } from '#shared/tables/output.ts'
import { type Outcome, outcomeLine, partBlob, SIDES, type Side } from './part.ts'

/** Maximum bytes of a result line that is converted to CSV or merged. Other lines have no maximum, because they are copied without parsing. */
const LINE_BYTES_MAX = 64 * 1024 * 1024
/** Maximum characters of a CSV cell that contains JSON, for a result without text. */
const CELL_CHARS_MAX = 1024 * 1024
/**
 * Maximum number of earlier batches whose results are included. The custom ids of the batches are held in memory. If the batches together
 * have more than `EARLIER_REQUESTS_MAX` requests, then no further batch is included.
 */
const EARLIER_MAX = 20
const EARLIER_REQUESTS_MAX = 200_000
/** Maximum bytes per source that a merge has in memory. */
const BLOCK_BYTES = 512 * 1024
const TOO_LARGE = 'too large for CSV; use format=jsonl'
const LINE_FEED = Buffer.from('\n')
const TYPES = { jsonl: 'application/x-jsonl', csv: 'text/csv; charset=utf-8' } as const

/** The batch whose results are read, or an earlier batch whose failed requests that batch runs again. */
interface Attempt {
  readonly job: DurableJob
  readonly details: BatchDetails
}

export async function batchResults(context: IngressContext, call: Call): Promise<void> {
  refuseUnknown(BatchResults, call.query)
  const { format, status, include, limit } = parseBody(BatchResults, { ...call.query }, 'openai')
  const job = await findBatch(context, call, BATCHES, 'batch_')
  const sides = SIDES.filter((side) => status === undefined || (status === 'completed') === (side === 'output'))
  const details = await batchDetails(context, job)
  await requireResultFiles(context, job, details, sides)
  const attempts = [{ job, details }, ...(include === 'earlier' ? await earlierOf(context, job, details) : [])]
  const name = `${await nameOf(context, job, details)}-results${status ? `-${status}` : ''}.${format}`
  call.reply.setHeader('content-disposition', attachmentOf(name))
  const isCopy = format === 'jsonl' && attempts.length === 1 && limit === undefined
  const source = isCopy
    ? copyOf(context, { job, details }, sides)
    : mergedOf(context, attempts, { sides, format, limit, signal: call.reply.disconnected })
  await call.reply.bytes(Readable.from(source, { objectMode: false }), { type: TYPES[format] })
}

const NAME_CHARS_MAX = 100

/**
 * Name of the files that are downloaded from a batch. This is the name of its table or input file without the extension, or else the id of
 * the batch.
 */
async function nameOf(context: IngressContext, { id, tenant, metadata }: DurableJob, { request }: BatchDetails) {
  const file = metadata.name === undefined && request.input_file_id
  const stored = file ? await ifStored(getFile(requireFiles(context), tenant, file)) : undefined
  const { name, ext } = parse(metadata.name ?? stored?.filename ?? '')
  const stem = Object.hasOwn(FORMATS, ext.toLowerCase()) ? name : `${name}${ext}`
  return (
    stem
      .replaceAll(/[\\:*?"<>|\p{Cc}]/gu, '_')
      .slice(0, NAME_CHARS_MAX)
      .toWellFormed() || batchIdOf(id, 'batch_')
  )
}

/** Returns the batches that a batch retries, newest first, up to the first one whose results are not stored any more. */
async function earlierOf(context: IngressContext, { tenant, metadata }: DurableJob, details: BatchDetails) {
  const found: Attempt[] = []
  let requests = details.begun?.requests ?? 0
  for (let id = metadata[RETRY_OF_KEY]; id !== undefined && found.length < EARLIER_MAX; ) {
    const jobId = jobIdOfBatch(id, 'batch_')
    const job = jobId === undefined ? undefined : await context.store?.find(tenant, jobId)
    if (job?.endpoint !== BATCHES || requests > EARLIER_REQUESTS_MAX) break
    const attempt = { job, details: await batchDetails(context, job) }
    const isStored = requireResultFiles(context, job, attempt.details, SIDES).then(() => true)
    if (!(await ifStored(isStored))) break
    found.push(attempt)
    requests += attempt.details.begun?.requests ?? 0
    id = job.metadata[RETRY_OF_KEY]
  }
  return found
}

/** @throws ServiceError `not_found` if a file of these results was deleted or has expired */
async function requireResultFiles(
  context: IngressContext,
  { tenant }: DurableJob,
  details: BatchDetails,
  sides: readonly Side[],
): Promise<void> {
  for (const side of sides) {
    const id = resultFileOf(details, side)
    if (!id) continue
    await getFile(requireFiles(context), tenant, id)
    await context.blobs.size(id)
  }
}

function resultFileOf({ result }: BatchDetails, side: Side): string | null | undefined {
  return side === 'output' ? result?.output_file_id : result?.error_file_id
}

/** Yields the result lines of a batch, either the answers or the errors. */
async function* sideOf(
  context: IngressContext,
  { job, details }: Attempt,
  side: Side,
  open: typeof openBlocks = ({ blobs }, key) => blobs.open(key),
): AsyncGenerator<Buffer> {
  const { begun, result } = details
  const file = resultFileOf(details, side)
  if (file) yield* await open(context, file)
  if (!begun || result) return
  const parts = Math.ceil(begun.requests / PART_REQUESTS)
  /**
   * Position in the result file at which the download would continue. The file contains the lines of all parts in order, so the position is
   * the number of yielded bytes. An unfinished part yields only some of its lines. After such a line, or a line of a later part, no
   * position corresponds to the download, and `isPositionValid` is false.
   */
  let position = 0
  let [hasUnfinished, isPositionValid] = [false, true]
  for (let nth = 0; nth < parts; nth++) {
    const part = await context.store?.find(job.tenant, childJobId(job.id, String(nth)))
    const isWhole = part?.state === 'completed'
    const blob = isWhole ? await ifStored(open(context, partBlob(part.id, side))) : undefined
    if (isWhole && !blob) {
      // The blob is missing because the batch has ended meanwhile. The result file contains the lines of this part and of all later parts.
      if (isPositionValid) return yield* fileFrom(context, fileIdOf(job.id, side), position)
      throw new ServiceError('not_found', 'The batch ended during the download. Repeat the download.')
    }
    hasUnfinished ||= !blob
    for await (const piece of blob ?? (part ? unfinishedPart(context, part, side) : [])) {
      if (hasUnfinished) isPositionValid = false
      else position += piece.length
      yield piece
    }
  }
}

/** Reads an object in blocks. The object is open only while a block is read, so a merge of many objects has one open stream. */
async function openBlocks({ blobs }: IngressContext, key: string): Promise<AsyncIterable<Buffer>> {
  const size = await blobs.size(key)
  return (async function* () {
    for (let start = 0; start < size; start += BLOCK_BYTES) {
      const end = Math.min(size, start + BLOCK_BYTES)
      yield Buffer.concat(await Array.fromAsync<Buffer>(await blobs.open(key, { start, end })))
    }
  })()
}

/** Returns undefined for an object that is not stored any more. */
async function ifStored<T>(reading: Promise<T>): Promise<T | undefined> {
  return await reading.catch((error: unknown) => {
    if (ServiceError.from(error).code === 'not_found') return undefined
    throw error
  })
}

async function* fileFrom({ blobs }: IngressContext, file: string, start: number): AsyncGenerator<Buffer> {
  // A batch without answers has no file of answers, and a batch without errors has no file of errors.
  const end = (await ifStored(blobs.size(file))) ?? 0
  if (end > start) yield* await blobs.open(file, { start, end })
}

async function* copyOf(context: IngressContext, attempt: Attempt, sides: readonly Side[]): AsyncGenerator<Buffer> {
  for (const side of sides) yield* sideOf(context, attempt, side)
}

/** Yields result lines for the ended requests of a part that still runs, sorted by the number in their custom ids. */
async function* unfinishedPart(
  { store }: IngressContext,
  { id, tenant }: DurableJob,
  side: Side,
): AsyncGenerator<Buffer> {
  const children = (await store?.listChildren(tenant, id)) ?? []
  const numbered = children.map((child) => ({ child, number: numberIn(child.metadata.custom_id ?? '') }))
  for (const { child } of numbered.toSorted((a, b) => (a.number < b.number ? -1 : Number(a.number > b.number)))) {
    if (!TERMINAL.has(child.state) || (child.state === 'completed') !== (side === 'output')) continue
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

interface MergeOptions {
  readonly sides: readonly Side[]
  readonly format: keyof typeof TYPES
  readonly limit: number | undefined
  readonly signal: AbortSignal
}

/** Yields the results of several batches of the same requests, newest batch first, with one result per custom id. */
async function* mergedOf(
  context: IngressContext,
  attempts: readonly Attempt[],
  { sides, format, limit, signal }: MergeOptions,
) {
  const newest = await newestOf(context, attempts, signal)
  const sources = attempts.flatMap((attempt, nth) => {
    const isIncluded = (key: string) => (newest.get(key) ?? attempts.length - 1) === nth
    return sides.map((side) => resultLines(sideOf(context, attempt, side, openBlocks), isIncluded))
  })
  if (format === 'csv') yield csvLine(['custom_id', ...ROW_COLUMNS])
  let count = 0
  for await (const { bytes } of merged(sources)) {
    if (format === 'csv') yield rowText(await readRow(bytes))
    else yield Buffer.concat([bytes, LINE_FEED])
    if (++count === limit) return
  }
}

/**
 * Returns a map from the key of each custom id to the index in `attempts` of the newest batch with this id. Ids that only the oldest batch
 * has are left out.
 */
async function newestOf(
  context: IngressContext,
  attempts: readonly Attempt[],
  signal: AbortSignal,
): Promise<ReadonlyMap<string, number>> {
  const newest = new Map<string, number>()
  for (const [nth, attempt] of attempts.slice(0, -1).entries()) {
    for await (const key of keysOf(context, attempt)) {
      signal.throwIfAborted()
      if (!newest.has(key)) newest.set(key, nth)
    }
  }
  return newest
}

/** Yields the keys of the requests of a batch: all requests of a running batch, otherwise the requests with a result. */
async function* keysOf(context: IngressContext, attempt: Attempt): AsyncGenerator<string> {
  const { begun, result, request } = attempt.details
  const { blobs, config } = context
  const isRunning = begun && !result && !TERMINAL.has(attempt.job.state)
  // A batch deletes its input when it ends, so the input may be missing.
  if (isRunning && (await ifStored(blobs.size(request.input))) !== undefined) {
    const rules = { dialect: request.dialect, lineBytesMax: config.bodyBytesMax }
    for await (const line of linesOf(blobs, request.input, rules.lineBytesMax)) {
      yield keyOf((await runYielding(readLine(line, rules))).customId)
    }
    return
  }
  for (const side of SIDES) for await (const { key } of resultLines(sideOf(context, attempt, side))) yield key
}

interface NumberedLine {
  /** Key of the custom id, by {@link keyOf}. */
  readonly key: string
  readonly number: number
  readonly bytes: Buffer
}

const ID_CHARS_MAX = 64

/** Returns a custom id, or its hash if the custom id is long. */
function keyOf(id: string): string {
  return id.length <= ID_CHARS_MAX ? id : createHash('sha256').update(id).digest('base64')
}

/** Maximum bytes before the end of the custom id in a result line. Each of its up to 512 characters has up to 6 bytes of JSON. */
const HEAD_BYTES = 4_096
const CUSTOM_ID = /^\{"id":"[^"]*","custom_id":("(?:[^"\\]|\\.)*")/

/** Splits result lines, and reads only the custom id of each line. */
async function* resultLines(
  source: AsyncIterable<Buffer>,
  isIncluded: (key: string) => boolean = () => true,
): AsyncGenerator<NumberedLine> {
  const splitter = new LineSplitter(LINE_BYTES_MAX)
  const numbered = (bytes: Buffer | undefined): NumberedLine => {
    if (!bytes)
      throw new ServiceError('request_too_large', `A result is larger than the maximum of ${LINE_BYTES_MAX} bytes.`)
    const [, json = '""'] = CUSTOM_ID.exec(bytes.toString('utf8', 0, HEAD_BYTES)) ?? []
    const id = JSON.parse(json) as string
    return { key: keyOf(id), number: numberIn(id), bytes }
  }
  for await (const piece of source) {
    for (const { bytes } of splitter.push(piece)) {
      const line = numbered(bytes)
      if (isIncluded(line.key)) yield line
    }
  }
  for (const { bytes } of splitter.end()) {
    const line = numbered(bytes)
    if (isIncluded(line.key)) yield line
  }
}

/** Merges sources by the number of their lines. Lines without a number are last, in the order of the sources. */
async function* merged(sources: readonly AsyncGenerator<NumberedLine>[]): AsyncGenerator<NumberedLine> {
  try {
    const heads: IteratorResult<NumberedLine>[] = []
    for (const source of sources) heads.push(await source.next())
    for (;;) {
      const next = heads.reduce((least, head, nth) => (numberOf(head) < numberOf(heads[least]) ? nth : least), 0)
      const nth = heads[next]?.done === false ? next : heads.findIndex(({ done }) => !done)
      if (nth < 0) return
      yield heads[nth]?.value as NumberedLine
      heads[nth] = (await sources[nth]?.next()) as IteratorResult<NumberedLine>
    }
  } finally {
    await Promise.all(sources.map((source) => source.return(undefined)))
  }
}

function numberOf(head: IteratorResult<NumberedLine> | undefined): number {
  return head?.done === false ? head.value.number : Number.POSITIVE_INFINITY
}

function rowText({ customId, answer, error, finishReason, inputTokens, outputTokens }: BatchRow): string {
  return csvLine([customId, answer, error, finishReason, inputTokens, outputTokens])
}

/** Returns the number at the end of a custom id, such as 32 for `row-32`. Infinity without a number, so that such ids are sorted last. */
function numberIn(customId: string): number {
  return Number(/\d+$/.exec(customId)?.[0] ?? Number.POSITIVE_INFINITY)
}

async function readRow(bytes: Buffer): Promise<BatchRow> {
  const value = await runYielding(readJson(bytes))
  const row = await runYielding(batchRowIn(value, { charsMax: CELL_CHARS_MAX, instead: TOO_LARGE }))
  if (row) return row
  throw new ServiceError('internal_error', 'A stored result of the batch is damaged or has an unknown format.')
}
