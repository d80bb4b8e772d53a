import { createHash } from 'node:crypto'
import type { IncomingMessage } from 'node:http'
import { ListMessageBatches } from '#schemas/batches/batch.ts'
import type { DurableJob } from '#schemas/durable-job.ts'
import { ByteBlocks } from '#services/ingress/body/body.ts'
import { parseBody } from '#services/ingress/body/validate.ts'
import type { Call, IngressContext } from '#services/ingress/calls/call.ts'
import { getFile, requireFiles } from '#services/ingress/calls/files.ts'
import { requireJobs } from '#services/ingress/calls/job-object.ts'
import { messages } from '#services/ingress/endpoints/generate.ts'
import { parseVersion } from '#services/ingress/endpoints/messages/decode.ts'
import { HELD_PER_BYTE } from '#shared/capacity/byte-budgets.ts'
import { TERMINAL } from '#shared/jobs/durable/follow.ts'
import { projectIdOf } from '#shared/keys/keys.ts'
import { BATCH_WRAP_UP_MS } from '#shared/kinds/batch.ts'
import { ServiceError } from '#shared/lib/error.ts'
import { runYielding } from '#shared/lib/yielding.ts'
import { newAttachmentKey, newJobId } from '#shared/store/jobs.ts'
import {
  type BatchDetails,
  batchDetails,
  batchIdOf,
  findBatch,
  findEarlierBatch,
  jobIdOfBatch,
  submitBatch,
} from './batches.ts'
import { LineChecker } from './lines.ts'

export const MESSAGE_BATCHES = '/v1/messages/batches'

const PREFIX = 'msgbatch_'
const WINDOW_HOURS = 24
const HOUR_MS = 3_600_000

export async function createMessageBatch(context: IngressContext, call: Call, body: unknown): Promise<void> {
  parseVersion(call.headers)
  const { input, bytes, requests, sha256 } = body as UploadedRequests
  const { jobDeadlineMaxMs, fileRetentionMs: keepMs } = context.config
  const made = await findEarlierBatch(context, call, { sha256 })
  if (made) return await say(context, call, made)
  const job = await submitBatch(context, call, {
    path: MESSAGE_BATCHES,
    dialect: 'messages',
    endpoint: messages.path,
    input,
    inputBytes: bytes,
    inputFileId: null,
    requests,
    window: `${WINDOW_HOURS}h`,
    windowMs: Math.min(WINDOW_HOURS * HOUR_MS, jobDeadlineMaxMs),
    keepMs,
    body: { sha256 },
  })
  await say(context, call, job)
}

export async function listMessageBatches(context: IngressContext, call: Call): Promise<void> {
  const { limit, after_id, before_id } = parseBody(ListMessageBatches, { ...call.query }, 'messages')
  const isBack = before_id !== undefined && after_id === undefined
  const cursor = isBack ? before_id : after_id
  const page = await requireJobs(context).list(projectIdOf(call.key), {
    limit,
    endpoint: MESSAGE_BATCHES,
    order: isBack ? 'asc' : 'desc',
    ...(cursor !== undefined && { after: cursorOf(cursor, isBack ? 'before_id' : 'after_id') }),
  })
  const jobs = isBack ? page.jobs.toReversed() : page.jobs
  const data = await Promise.all(jobs.map(async (job) => messageBatchObject(job, await batchDetails(context, job))))
  const [first_id, last_id] = [data[0]?.id ?? null, data.at(-1)?.id ?? null]
  await call.reply.whole({ data, has_more: page.hasMore, first_id, last_id })
}

export async function retrieveMessageBatch(context: IngressContext, call: Call): Promise<void> {
  await say(context, call, await find(context, call))
}

export async function cancelMessageBatch(context: IngressContext, call: Call): Promise<void> {
  const { id, tenant } = await find(context, call)
  // With the mode 'once', a second cancel has no effect. Otherwise the second cancel would end the job before partial
  // results are written.
  await say(context, call, await requireJobs(context).cancel(tenant, id, 'once'))
}

/**
 * GET /v1/messages/batches/{id}/results: one line per request, in order.
 *
 * @throws ServiceError `job_not_finished` if the batch has not ended
 */
export async function messageBatchResults(context: IngressContext, call: Call): Promise<void> {
  const job = await find(context, call)
  if (!TERMINAL.has(job.state)) throw new ServiceError('job_not_finished', 'The batch has not ended yet.')
  const { result } = await batchDetails(context, job)
  if (!result?.output_file_id) throw new ServiceError('not_found', 'The batch has no results.')
  const { id, bytes } = await getFile(requireFiles(context), job.tenant, result.output_file_id)
  await call.reply.bytes(await context.blobs.open(id), { type: 'application/x-jsonl', length: bytes })
}

export async function deleteMessageBatch(context: IngressContext, call: Call): Promise<void> {
  const job = await find(context, call)
  const { result } = await batchDetails(context, job)
  await requireJobs(context).erase(job.tenant, job.id)
  if (result?.output_file_id) {
    await requireFiles(context).delete(job.tenant, result.output_file_id)
    await context.blobs.delete(result.output_file_id)
  }
  await call.reply.whole({ id: batchIdOf(job.id, PREFIX), type: 'message_batch_deleted' })
}

async function find(context: IngressContext, call: Call): Promise<DurableJob> {
  return await findBatch(context, call, MESSAGE_BATCHES, PREFIX)
}

async function say(context: IngressContext, call: Call, job: DurableJob): Promise<void> {
  await call.reply.whole(messageBatchObject(job, await batchDetails(context, job)))
}

function cursorOf(id: string, param: string): string {
  const jobId = jobIdOfBatch(id, PREFIX)
  if (jobId !== undefined) return jobId
  throw new ServiceError('invalid_value', `${param}: expected the id of a batch.`, { param })
}

function messageBatchObject(job: DurableJob, details: BatchDetails) {
  const id = batchIdOf(job.id, 'msgbatch_')
  const isOver = TERMINAL.has(job.state)
  const isCancelled = job.cancel_requested_at_ms !== null
  return {
    id,
    type: 'message_batch',
    processing_status: isOver ? 'ended' : isCancelled ? 'canceling' : 'in_progress',
    request_counts: countsOf(job, details),
    created_at: timeOf(job.created_at_ms),
    expires_at: timeOf(job.deadline_ms - BATCH_WRAP_UP_MS),
    ended_at: timeOf(job.finished_at_ms),
    cancel_initiated_at: timeOf(job.cancel_requested_at_ms),
    archived_at: null,
    // The URL is relative, because the public address is unknown behind a proxy. SDKs add their base URL.
    results_url: details.result?.output_file_id ? `/v1/messages/batches/${id}/results` : null,
  }
}

function countsOf({ state }: DurableJob, { request, result }: BatchDetails) {
  const none = { processing: 0, succeeded: 0, errored: 0, canceled: 0, expired: 0 }
  const total = request.requests ?? 0
  if (!TERMINAL.has(state)) return { ...none, processing: total }
  if (!result) {
    const end = state === 'cancelled' ? 'canceled' : state === 'expired' ? 'expired' : 'errored'
    return { ...none, [end]: total }
  }
  const { completed, failed, cancelled, expired } = result.counts
  return { ...none, succeeded: completed, errored: failed, canceled: cancelled, expired }
}

function timeOf(ms: number): string

function timeOf(ms: number | null): string | null

function timeOf(ms: number | null): string | null {
  return ms === null ? null : new Date(ms).toISOString()
}

interface UploadedRequests {
  readonly input: string
  readonly bytes: number
  readonly requests: number
  /** Hash of all bytes. Equal uploads have the same hash, which becomes part of the idempotency fingerprint. */
  readonly sha256: string
}

const LINE_FEED = Buffer.from('\n')

/**
 * Reads the body of `POST /v1/messages/batches` while it arrives. Each request is validated and written as a line to a
 * blob, which is recorded in `call.uploads`. At most one request is in memory.
 *
 * @throws ServiceError for the first invalid request, with its index in `param`; `request_too_large`, `request_timeout`
 */
export async function readRequests(
  context: IngressContext,
  call: Call,
  req: IncomingMessage,
): Promise<UploadedRequests> {
  requireFiles(context)
  refuseOtherTypes(req)
  const { bodyBytesMax: lineBytesMax } = context.config
  const reader = new RequestsReader(lineBytesMax)
  const checker = new LineChecker({ dialect: 'messages', lineBytesMax })
  const hash = createHash('sha256')
  let bytes = 0
  async function* lines(): AsyncGenerator<Buffer> {
    for await (const piece of piecesOf(context, req)) {
      hash.update(piece)
      for (const line of await runYielding(checkedLines(reader, checker, piece))) {
        bytes += line.length
        yield line
      }
      call.held.hold(reader.held * HELD_PER_BYTE)
    }
    reader.end()
    if (checker.end())
      throw new ServiceError('empty_array', 'requests: expected at least one request.', { param: 'requests' })
  }
  const input = newAttachmentKey(newJobId())
  call.uploads.add(input)
  await call.storage.over(context.blobs).put(input, lines())
  return { input, bytes, requests: checker.count, sha256: hash.digest('hex') }
}

function* checkedLines(reader: RequestsReader, checker: LineChecker, piece: Buffer): Generator<undefined, Buffer[]> {
  const lines: Buffer[] = []
  for (const bytes of reader.push(piece)) {
    if (bytes) {
      const nth = checker.count
      const problem = yield* checker.check({ number: nth + 1, start: 0, end: 0, bytes })
      if (problem) {
        const param = problem.param === null ? `requests.${nth}` : `requests.${nth}.${problem.param}`
        throw new ServiceError('invalid_value', `${param}: ${problem.message}`, { param })
      }
      lines.push(bytes, LINE_FEED)
    }
    yield
  }
  return lines
}

async function* piecesOf({ config }: IngressContext, req: IncomingMessage): AsyncGenerator<Buffer> {
  const { fileBytesMax, bodyStallMs } = config
  const tooLarge = () =>
    new ServiceError('request_too_large', `The body is larger than the ${fileBytesMax} bytes that a batch may have.`)
  if (Number(req.headers['content-length']) > fileBytesMax) throw tooLarge()
  const stall = Promise.withResolvers<never>()
  stall.promise.catch(() => {})
  const timer = setTimeout(
    () => stall.reject(new ServiceError('request_timeout', 'The upload of the body stalled. Send the request again.')),
    bodyStallMs,
  )
  const pieces = req.iterator({ destroyOnReturn: false })
  try {
    for (let bytes = 0; ; ) {
      timer.refresh()
      const next = await Promise.race([pieces.next(), stall.promise])
      if (next.done) return
      bytes += next.value.length
      if (bytes > fileBytesMax) throw tooLarge()
      yield next.value
    }
  } catch (error) {
    if (error instanceof ServiceError) throw error
    throw new ServiceError('request_timeout', 'The body ended before it was complete.', { cause: error })
  } finally {
    clearTimeout(timer)
    // The iterator removes its listeners from the request when `return` has ended. Only then can resume() discard the
    // rest of the body.
    void pieces
      .return?.()
      .catch(() => {})
      .then(() => req.resume())
  }
}

function refuseOtherTypes({ headers }: IncomingMessage): void {
  const [type] = (headers['content-type'] ?? '').split(';')
  if (type?.trim().toLowerCase() !== 'application/json') {
    throw new ServiceError('unsupported_media_type', 'Expected Content-Type application/json.')
  }
  if ((headers['content-encoding'] ?? 'identity').trim().toLowerCase() === 'identity') return
  throw new ServiceError(
    'unsupported_media_type',
    'Batches cannot be compressed. Send the body without Content-Encoding.',
  )
}

const AROUND_BYTES_MAX = 1_024
/**
 * Text that precedes the list of requests in the body. Each byte of the body becomes one character, so a UTF-8 byte order mark
 * appears as three characters.
 */
const LIST_START = /^(?:\xef\xbb\xbf)?\s*\{\s*"requests"\s*:\s*$/
const LIST_END = /^\s*\}\s*$/
const TURN_BYTES = 128 * 1024

const [QUOTE, BACKSLASH, COMMA, SPACE] = [0x22, 0x5c, 0x2c, 0x20]
const [OPEN_LIST, CLOSE_LIST, OPEN_OBJECT, CLOSE_OBJECT] = [0x5b, 0x5d, 0x7b, 0x7d]
const BLANKS: ReadonlySet<number> = new Set([0x20, 0x09, 0x0a, 0x0d])
/**
 * Line breaks, which are replaced with spaces, so that each request becomes one line of a file. JSON strings contain
 * line breaks only in escaped form, so no value changes.
 */
const LINE_BREAKS: ReadonlySet<number> = new Set([0x0a, 0x0d])

type Place = 'before' | 'list' | 'object' | 'behind'

/**
 * Splits `{"requests":[…]}` into its objects while the body arrives, with at most one object in memory. Only braces,
 * brackets and strings are tracked. The content of the objects is validated later.
 */
class RequestsReader {
  readonly #bytesMax: number
  #place: Place = 'before'
  #around = ''
  #next: 'first' | 'object' | 'comma' = 'first'
  #depth = 0
  #isInText = false
  #isEscaped = false
  #blocks = new ByteBlocks()
  #held = 0
  #count = 0

  constructor(bytesMax: number) {
    this.#bytesMax = bytesMax
  }

  get held(): number {
    return this.#held
  }

  /**
   * Yields each object that ends in the piece. Also yields undefined after every {@link TURN_BYTES} bytes, so that the caller can yield to the event
   * loop. Modifies `piece`: line breaks are overwritten with spaces.
   *
   * @throws ServiceError if the body has another form
   */
  *push(piece: Buffer): Generator<Buffer | undefined, void> {
    let from = 0
    let turn = TURN_BYTES
    for (let at = 0; at < piece.length; at++) {
      if (at >= turn) {
        turn += TURN_BYTES
        yield undefined
      }
      const byte = piece[at] as number
      if (this.#place !== 'object') {
        if (this.#outside(byte) === 'object') from = at
        continue
      }
      if (LINE_BREAKS.has(byte)) piece[at] = SPACE
      if (this.#endsObject(byte)) {
        this.#append(piece.subarray(from, at + 1))
        yield this.#taken()
      }
    }
    if (this.#place === 'object') this.#append(piece.subarray(from))
  }

  end(): void {
    if (this.#place !== 'behind' || !LIST_END.test(this.#around)) throw malformed('The JSON is incomplete.')
  }

  #outside(byte: number): Place {
    if (this.#place === 'list') this.#inList(byte)
    else this.#aroundList(byte)
    return this.#place
  }

  #aroundList(byte: number): void {
    if (this.#place === 'before' && byte === OPEN_LIST) {
      if (!LIST_START.test(this.#around)) throw malformed()
      this.#place = 'list'
      this.#around = ''
      return
    }
    this.#around += String.fromCharCode(byte)
    if (this.#around.length > AROUND_BYTES_MAX) throw malformed()
  }

  #inList(byte: number): void {
    if (BLANKS.has(byte)) return
    if (byte === OPEN_OBJECT && this.#next !== 'comma') {
      this.#place = 'object'
      this.#depth = 1
    } else if (byte === COMMA && this.#next === 'comma') this.#next = 'object'
    else if (byte === CLOSE_LIST && this.#next !== 'object') this.#place = 'behind'
    else throw malformed(`Element ${this.#count + 1} of requests is not an object.`)
  }

  #endsObject(byte: number): boolean {
    if (this.#isInText) {
      if (this.#isEscaped) this.#isEscaped = false
      else if (byte === BACKSLASH) this.#isEscaped = true
      else if (byte === QUOTE) this.#isInText = false
      return false
    }
    if (byte === QUOTE) this.#isInText = true
    else if (byte === OPEN_OBJECT || byte === OPEN_LIST) this.#depth++
    else if (byte === CLOSE_OBJECT || byte === CLOSE_LIST) this.#depth--
    return this.#depth === 0
  }

  #append(piece: Buffer): void {
    this.#held += piece.length
    if (this.#held > this.#bytesMax) {
      const message = `requests.${this.#count}: longer than the ${this.#bytesMax} bytes that a request may have.`
      throw new ServiceError('request_too_large', message, { param: `requests.${this.#count}` })
    }
    this.#blocks.push(piece)
  }

  #taken(): Buffer {
    const object = this.#blocks.take()
    this.#blocks = new ByteBlocks()
    this.#held = 0
    this.#count++
    this.#place = 'list'
    this.#next = 'comma'
    return object
  }
}

function malformed(more = ''): ServiceError {
  const message = `Expected a JSON object with the list 'requests', and nothing else. ${more}`
  return new ServiceError('invalid_request', message.trim(), { param: 'requests' })
}
