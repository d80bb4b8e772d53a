/*
 * Writes the request log (`shared/store/requests.ts`) in the background, so that a call never waits for the log and never fails because of
 * it.
 *
 * Rows wait in memory, and are written once per second or as soon as a batch is full. While the store is unreachable, a bounded number of
 * rows waits. Beyond this number, the oldest rows are dropped and counted in `sluice_request_log_dropped_total`. At a drain, the remaining
 * rows are written. If a process is killed, then the rows of the last second are lost.
 */

import type { FailedAttempt } from '#schemas/admin/requests.ts'
import type { DurableJob } from '#schemas/durable-job.ts'
import { batch } from '#shared/kinds/batch.ts'
import type { Progress } from '#shared/kinds/kind.ts'
import { ServiceError } from '#shared/lib/error.ts'
import type { Log } from '#shared/log/log.ts'
import type { EndedJob, UsageEntry } from '#shared/store/records.ts'
import { CANCELLED_STATUS, type RequestBodies, type RequestLog, type RequestRow } from '#shared/store/requests.ts'
import { traceIdOf } from '#shared/telemetry/context.ts'

const WRITE_MS = 1_000
const RETRY_MS = 2_000
const CLOSE_MS = 2_000
const USER_AGENT_CHARS_MAX = 200
const NAME_CHARS_MAX = 200
const MESSAGE_CHARS_MAX = 500
/** Maximum rows per minute for calls without a valid key, because anyone can send such calls. */
const UNAUTHENTICATED_MAX = 60
const MINUTE_MS = 60_000

interface BatchesOptions<Row> {
  readonly write: (rows: readonly Row[]) => Promise<void>
  /** Returns the size of a row. `batchMax` and `waitingMax` are sums of these sizes. */
  readonly sizeOf: (row: Row) => number
  /** Size from which a batch is full. Writing a full batch blocks the event loop for about 5 ms in SQLite. */
  readonly batchMax: number
  readonly waitingMax: number
  readonly log: Log
  onDropped(rows: number): void
}

type LogOptions = Pick<BatchesOptions<unknown>, 'log' | 'onDropped'> & { readonly requests: RequestLog }

/** Opens the batches that write request bodies. Sizes are in characters. */
export function openBodyBatches({ requests, ...options }: LogOptions): Batches<RequestBodies> {
  const write = (rows: readonly RequestBodies[]) => requests.addBodies(rows)
  const sizeOf = ({ request, answer }: RequestBodies) => request.length + (answer?.length ?? 0)
  return new Batches({ ...options, write, sizeOf, batchMax: 512 * 1024, waitingMax: 32 * 1024 * 1024 })
}

export class Batches<Row> {
  readonly #options: BatchesOptions<Row>
  #waiting: Row[] = []
  #size = 0
  #timer: NodeJS.Timeout | undefined
  #writing: Promise<void> | undefined
  #isFailing = false

  constructor(options: BatchesOptions<Row>) {
    this.#options = options
  }

  add(row: Row): void {
    const { batchMax, waitingMax, sizeOf, onDropped } = this.#options
    this.#waiting.push(row)
    this.#size += sizeOf(row)
    if (this.#size > waitingMax) onDropped(this.#remove(this.#nextBatch().length))
    if (this.#size >= batchMax && !this.#isFailing) void this.#write()
    else this.#schedule()
  }

  /** Writes the rows that wait, for at most {@link CLOSE_MS}. */
  async close(): Promise<void> {
    const endsAt = performance.now() + CLOSE_MS
    while (this.#waiting.length > 0 && performance.now() < endsAt) {
      await Promise.race([this.#write(), new Promise((resolve) => setTimeout(resolve, CLOSE_MS).unref())])
      if (this.#isFailing) break
    }
    clearTimeout(this.#timer)
    if (this.#waiting.length > 0) this.#options.onDropped(this.#remove(this.#waiting.length))
  }

  #write(): Promise<void> {
    this.#writing ??= this.#writeAll().finally(() => {
      this.#writing = undefined
    })
    return this.#writing
  }

  /**
   * Writes the rows that wait at the start of this call. Rows that arrive in the meantime are written only if they fill a batch. Otherwise they wait for
   * the timer.
   */
  async #writeAll(): Promise<void> {
    clearTimeout(this.#timer)
    this.#timer = undefined
    let due = this.#waiting.length
    while (this.#waiting.length > 0 && (due > 0 || this.#size >= this.#options.batchMax)) {
      const batch = this.#nextBatch()
      try {
        await this.#options.write(batch)
      } catch (error) {
        return this.#fail(error)
      }
      due -= batch.length
      // Rows may have been dropped during the write, so positions have changed. The rows up to the last written one are removed.
      this.#remove(this.#waiting.indexOf(batch.at(-1) as Row) + 1)
      this.#isFailing = false
    }
    if (this.#waiting.length > 0) this.#schedule()
  }

  #nextBatch(): Row[] {
    const { batchMax, sizeOf } = this.#options
    let size = 0
    const end = this.#waiting.findIndex((row) => {
      size += sizeOf(row)
      return size >= batchMax
    })
    return end < 0 ? this.#waiting.slice() : this.#waiting.slice(0, end + 1)
  }

  #remove(rows: number): number {
    for (const row of this.#waiting.splice(0, rows)) this.#size -= this.#options.sizeOf(row)
    return rows
  }

  #schedule(): void {
    this.#timer ??= setTimeout(() => this.#onTimer(), this.#isFailing ? RETRY_MS : WRITE_MS).unref()
  }

  /**
   * Called when the timer fires. The field `#timer` is cleared first, because the end of a running write schedules the next write only if the field
   * is empty.
   */
  #onTimer(): void {
    this.#timer = undefined
    void this.#write()
  }

  /** Only the first failure of an outage is logged, because an outage may last for hours. */
  #fail(error: unknown): void {
    if (!this.#isFailing) this.#options.log.warn({ err: error }, 'request log unavailable; retrying')
    this.#isFailing = true
    this.#schedule()
  }
}

export class RequestBatches extends Batches<RequestRow> {
  #unauthenticated = { minute: 0, rows: 0 }

  constructor({ requests, ...options }: LogOptions) {
    const write = (rows: readonly RequestRow[]) => requests.add(rows)
    super({ ...options, write, sizeOf: () => 1, batchMax: 500, waitingMax: 20_000 })
  }

  /** Adds the row of a call without a valid key, unless {@link UNAUTHENTICATED_MAX} such rows were already added in this minute. */
  addUnauthenticated(row: RequestRow): void {
    const minute = Math.floor(row.endedAtMs / MINUTE_MS)
    if (minute !== this.#unauthenticated.minute) this.#unauthenticated = { minute, rows: 0 }
    if (this.#unauthenticated.rows++ < UNAUTHENTICATED_MAX) this.add(row)
  }
}

/** Returns the row of an ended durable job. Undefined for the jobs into which Sluice splits a batch, because no caller submitted them. */
export function requestOfJob(
  { job, batchId, state, endedAtMs }: EndedJob,
  entry: UsageEntry,
  server: string | null,
): RequestRow | undefined {
  if (!job || job.kind === 'batch_part') return undefined
  const { id, kind, endpoint, model, owner, attempt, created_at_ms, request_id, parent_id, traceparent } = job
  const end = endOf(job, state)
  return {
    // A child job or redriven job has the request id of an earlier call, so its row gets the job id as its id.
    id: parent_id === null && request_id !== null ? request_id : id,
    ...{ kind, endpoint, model, ...end, endedAtMs, batchId, jobId: id, worker: owner, attempts: attempt, server },
    ...{ startedAtMs: created_at_ms, durationMs: Math.max(0, endedAtMs - created_at_ms) },
    ...{ project: entry.project, keyId: entry.keyId, queueMs: queueMsOf(job), firstOutputMs: null },
    inputTokens: entry.inputTokens,
    cachedInputTokens: entry.cachedInputTokens,
    outputTokens: entry.outputTokens,
    costNanos: entry.costNanos,
    failedAttempts: null,
    traceId: traceIdOf(traceparent),
    ...{ userAgent: null, sdkRetry: null, unknownParameters: null, formatIgnored: null },
    ...batchFieldsOf(job),
  }
}

/**
 * Counts, model and sums of a batch from its last progress event. A batch without such an event has run no call, because its input is invalid. The
 * ledger has only the entries of the lines, so the sums in this row are not counted twice.
 */
function batchFieldsOf({ kind, progress }: DurableJob): Partial<RequestRow> & BatchCounts {
  if (kind !== batch.name) return { batchCalls: null, batchFailed: null }
  const { counts, usage, model, cost_nanos = 0 } = (progress as { progress?: Progress } | null)?.progress ?? {}
  const { total = 0, completed = 0 } = counts ?? {}
  return {
    ...{ batchCalls: total, batchFailed: total - completed, costNanos: cost_nanos },
    ...(usage && {
      inputTokens: usage.input_tokens,
      cachedInputTokens: usage.cached_tokens,
      outputTokens: usage.output_tokens,
    }),
    ...(model !== undefined && { model }),
  }
}

const CANCELLED = 'The job was cancelled.'

type BatchCounts = Pick<RequestRow, 'batchCalls' | 'batchFailed'>

type End = 'status' | 'errorCode' | 'errorMessage' | 'errorParam' | 'upstreamMessage'

function endOf({ error }: DurableJob, state: string): Pick<RequestRow, End> {
  const none = { errorCode: null, errorMessage: null, errorParam: null, upstreamMessage: null }
  if (state === 'completed') return { ...none, status: 200 }
  if (state === 'cancelled')
    return { ...none, status: CANCELLED_STATUS, errorCode: 'job_cancelled', errorMessage: CANCELLED }
  const thrown = error ? ServiceError.fromBody(error) : new ServiceError('job_expired', '')
  return { status: thrown.status, ...errorOf(thrown) }
}

/**
 * Returns the error of a request in bounded length, with the message that the caller received and that of the upstream server.
 *
 * @param sent Message that the caller received. Default: the message of the error
 */
export function errorOf(
  { code, message, param, upstreamMessage }: ServiceError,
  sent = message,
): Pick<RequestRow, Exclude<End, 'status'>> {
  const textOf = (text = '') => (text === '' ? null : boundedText(text, MESSAGE_CHARS_MAX))
  return {
    ...{ errorCode: code, errorMessage: textOf(sent), upstreamMessage: textOf(upstreamMessage) },
    errorParam: param === null ? null : boundedText(param, NAME_CHARS_MAX),
  }
}

/**
 * Returns failed attempts as the request log stores them, with the last message of an upstream server. A call that succeeded in the end may have
 * failed attempts too.
 */
export function failedAttemptsOf(
  attempts: readonly FailedAttempt[] | undefined,
): Pick<RequestRow, 'failedAttempts' | 'upstreamMessage'> {
  if (!attempts) return { failedAttempts: null, upstreamMessage: null }
  const textOf = (text: string) => boundedText(text, MESSAGE_CHARS_MAX)
  const bounded = attempts.map(({ error_message, upstream_message, ...attempt }) => ({
    ...attempt,
    error_message: textOf(error_message),
    upstream_message: upstream_message == null ? null : textOf(upstream_message),
  }))
  return {
    failedAttempts: JSON.stringify(bounded),
    upstreamMessage: bounded.findLast(({ upstream_message }) => upstream_message)?.upstream_message ?? null,
  }
}

/** Returns the beginning of a text that a caller sent. Characters that Postgres refuses, such as NUL and halves of surrogate pairs, are replaced. */
export function boundedText(text: string, charsMax = NAME_CHARS_MAX): string {
  return text.slice(0, charsMax).replaceAll(/[\p{Cc}\p{Cs}]/gu, '\ufffd')
}

/**
 * Returns the time in ms until the first start, without a delay that the caller requested. After a retry, `run_at_ms` is later than the first start,
 * so `created_at_ms` is used instead.
 */
function queueMsOf({ created_at_ms, run_at_ms, started_at_ms }: DurableJob): number | null {
  if (started_at_ms === null) return null
  const dueAtMs = run_at_ms <= started_at_ms ? Math.max(created_at_ms, run_at_ms) : created_at_ms
  return Math.max(0, started_at_ms - dueAtMs)
}

/** Returns the number of an SDK's retry from the header `x-stainless-retry-count`. Null for the first request of a call. */
export function sdkRetryOf(header: string | string[] | undefined): number | null {
  return typeof header === 'string' && /^\d{1,3}$/.test(header) ? Number(header) || null : null
}

/** Returns the header `User-Agent` without control characters, in bounded length. */
export function userAgentOf(header: string | undefined): string | null {
  if (header === undefined || header === '') return null
  const text = header.slice(0, USER_AGENT_CHARS_MAX)
  return /[^ -~]/.test(text) ? text.replaceAll(/[^ -~]/g, '?') : text
}
