import type { IncomingHttpHeaders } from 'node:http'
import { refusalReasonOf } from '#schemas/error.ts'
import { ServiceError } from '#shared/lib/error.ts'
import { newRequestId } from '#shared/lib/id.ts'
import type { UsageEntry } from '#shared/store/records.ts'
import { CANCELLED_STATUS, isFailedStatus, type RequestRow } from '#shared/store/requests.ts'
import { incomingContext, traceIdOf } from '#shared/telemetry/context.ts'
import { type Attributes, type Span, tracing } from '#shared/telemetry/tracing.ts'
import { boundedText, errorOf, failedAttemptsOf, sdkRetryOf, userAgentOf } from '#shared/usage/request-log.ts'
import { hourOf } from '#shared/usage/usage.ts'
import type { CallFacts, IngressContext } from './call.ts'

interface EndedCall {
  readonly method: string
  readonly path: string
  readonly route: string
  readonly status: number | string
  readonly headers?: IncomingHttpHeaders
  readonly more?: object
  /** True for a WebSocket connection, whose duration is not included in the metric for the duration of calls. */
  readonly isConnection?: boolean
}

const PATH_CHARS_MAX = 200

/**
 * Returns the id of the attached job of a request. Both ids have the same random part, so each id can be derived from the
 * other.
 */
export function attachedIdOf(requestId: string): string {
  return requestId.replace('req_', 'job_')
}

type LogContext = Pick<IngressContext, 'log' | 'metrics' | 'models' | 'requests' | 'history' | 'usage'>

/**
 * Records the end of a call: one access-log line, the metrics of route, outcome and duration, and a row of the request log. None of
 * them contains bodies, prompts or secrets of keys. If the operator wants bodies to be recorded, then `CallBodies` does this.
 *
 * The row is written after both the response has closed and the handler has returned. If the caller leaves, then the response closes
 * first, and the handler determines the usage of the cancelled job afterwards.
 */
export class CallLog {
  readonly requestId = newRequestId()
  readonly startedAt = performance.now()
  readonly facts: CallFacts = {}
  /** Trace context for the job of the call. Without tracing, the context of the caller is passed on. */
  traceparent: string | undefined
  /** Message of the failure that the caller receives, if its API changes the message of the error. */
  sentMessage: string | undefined
  #span: Span | undefined
  readonly #context: LogContext
  #handled: { readonly endpoint: string; readonly kind: string | null; readonly isKnown: boolean } | undefined
  #isHandling = false
  #error: ServiceError | undefined
  #askedModel: string | undefined
  #end: (Pick<EndedCall, 'status' | 'headers'> & { readonly durationMs: number }) | undefined

  constructor(context: LogContext) {
    this.#context = context
  }

  /**
   * Starts the handling of a call that the request log and traces record. The handler must call {@link handled} at its end.
   */
  handling(endpoint: string, kind: string | undefined, method: string, headers: IncomingHttpHeaders): void {
    const parent = incomingContext(headers)
    this.#span = tracing.tracer?.start({
      ...{ name: `${method} ${endpoint}`, kind: 'server', parent },
      startMs: Date.now() - (performance.now() - this.startedAt),
      attributes: {
        ...{ 'http.request.method': method, 'http.route': endpoint, 'sluice.request.id': this.requestId },
        'user_agent.original': userAgentOf(headers['user-agent']) ?? undefined,
      },
    })
    this.traceparent = this.#span?.traceparent ?? parent
    this.#handled = { endpoint, kind: kind ?? null, isKnown: true }
    this.#isHandling = true
  }

  /**
   * Records a call that is refused before its handling starts.
   *
   * @param endpoint Path of the route, or the unknown path
   * @param isKnown Whether the endpoint is the path of a route
   */
  refused(endpoint: string, kind?: string, isKnown = false): void {
    this.#handled = { endpoint: boundedText(endpoint), kind: kind ?? null, isKnown }
    this.handled()
  }

  /** Remembers the field `model` of a body that is not validated yet, for the log row if the call is refused. */
  noteModel(body: unknown): void {
    const { model, body: inner } = (body ?? {}) as { model?: unknown; body?: { model?: unknown } | null }
    const name = model ?? inner?.model
    if (typeof name === 'string') this.#askedModel = name
  }

  handled(): void {
    this.#isHandling = false
    this.#record()
  }

  classify(thrown: unknown): ServiceError {
    // Express decodes path parameters with decodeURIComponent, and rethrows its URIError.
    const error = thrown instanceof URIError ? new ServiceError('not_found', 'Invalid URL') : ServiceError.from(thrown)
    if (error.code === 'internal_error') {
      const fields = { err: error, request_id: this.requestId, job_id: this.facts.job_id }
      this.#context.log.error(fields, 'call failed with an internal error')
    }
    return error
  }

  /**
   * Records the failure that the caller receives. If the head was already sent with another status, then metrics count
   * the status of the failure.
   *
   * @param sentStatus Status in the head that was already sent
   */
  failed(error: ServiceError, status: number, sentStatus?: number): void {
    const { facts } = this
    this.#error ??= error
    facts.error_code ??= error.code
    facts.refusal ??= refusalReasonOf(error)
    if (sentStatus === undefined || facts.status !== undefined || status === sentStatus) return
    facts.status = status
    facts.sent_status = sentStatus
  }

  ended({ method, path, route, status: sent, headers, more, isConnection }: EndedCall): void {
    const { log, metrics } = this.#context
    const { facts, requestId: request_id } = this
    const durationMs = performance.now() - this.startedAt
    const status = facts.status ?? sent
    const model = facts.model ?? ''
    metrics.requests.inc({ route, status: String(status), model })
    if (facts.refusal !== undefined) metrics.refusals.inc({ reason: facts.refusal })
    if (facts.project_id !== undefined && this.#handled)
      metrics.projectRequests.inc({ project: facts.project_id, outcome: outcomeOf(status, facts.refusal) })
    const traceId = traceIdOf(this.traceparent)
    if (!isConnection) metrics.requestSeconds.observe({ route, model }, durationMs / 1_000, traceId)
    const duration_ms = Math.round(durationMs * 10) / 10
    const trace = traceId === null ? {} : { trace_id: traceId }
    const line = { request_id, ...trace, method, path: path.slice(0, PATH_CHARS_MAX), status, duration_ms, ...more }
    log.info({ ...line, ...facts, ...(facts.failed_attempts && { failed_attempts: undefined }) }, 'request')
    this.#end = { status, ...(headers && { headers }), durationMs }
    this.#record()
  }

  /** Id of the model that a refused call names, if the catalogue has the model. */
  get #knownModel(): string | undefined {
    return this.#askedModel === undefined ? undefined : this.#context.models.find(this.#askedModel)?.id
  }

  /** Model that a refused call names: the id of the catalogue for an alias, otherwise the name itself. */
  get #modelOfRefused(): string | null {
    const asked = this.#askedModel
    return asked === undefined ? null : (this.#knownModel ?? boundedText(asked))
  }

  #record(): void {
    if (!this.#end || !this.#handled || this.#isHandling) return
    const { facts } = this
    const { project_id: project = '', key_id: keyId = '', job_created: isOfJob } = facts
    this.#span?.end(spanAttributes(facts, this.#end.status), isServerError(this.#end.status) ? facts.error_code : null)
    if (isOfJob) return
    const { status, durationMs, headers = {} } = this.#end
    const endedAtMs = Date.now()
    const error = this.#error ? errorOf(this.#error, this.sentMessage) : endOf(status)
    const attempts = failedAttemptsOf(facts.failed_attempts)
    const isOwnJob = facts.job_id === attachedIdOf(this.requestId)
    // The code `job_cancelled` also belongs to a read of another job that was cancelled. The status of such a read is kept.
    const isCancelled = isOwnJob && this.#error?.code === 'job_cancelled'
    const row: RequestRow = {
      id: this.requestId,
      startedAtMs: endedAtMs - Math.round(durationMs),
      endedAtMs,
      project,
      keyId,
      endpoint: this.#handled.endpoint,
      kind: this.#handled.kind,
      model: facts.model ?? this.#modelOfRefused,
      worker: facts.worker ?? null,
      server: facts.server ?? null,
      status: typeof status === 'number' && !isCancelled ? status : CANCELLED_STATUS,
      ...error,
      ...attempts,
      // The number of recorded attempts is limited. The message of the last attempt is therefore read from the error of the call, if there
      // is one.
      upstreamMessage: error.upstreamMessage ?? attempts.upstreamMessage,
      queueMs: facts.queue_ms ?? null,
      firstOutputMs: facts.first_output_ms ?? null,
      durationMs: Math.round(durationMs),
      inputTokens: facts.input_tokens ?? 0,
      cachedInputTokens: facts.cached_input_tokens ?? 0,
      outputTokens: facts.output_tokens ?? 0,
      costNanos: facts.cost_nanos ?? 0,
      attempts: facts.attempts ?? 0,
      // The id of an attached job can be derived from the request id, so only other job ids are stored.
      jobId: facts.job_id === undefined || isOwnJob ? null : facts.job_id,
      batchId: null,
      traceId: traceIdOf(this.traceparent ?? incomingContext(headers)),
      userAgent: userAgentOf(headers['user-agent']),
      sdkRetry: sdkRetryOf(headers['x-stainless-retry-count']),
      unknownParameters: facts.unknown_parameters ?? null,
      formatIgnored: facts.format_ignored ?? null,
      batchCalls: null,
      batchFailed: null,
    }
    const { isKnown } = this.#handled
    this.#handled = undefined
    if (project === '') return this.#context.requests?.addUnauthenticated(row)
    this.#context.requests?.add(row)
    this.#count(row, isKnown)
  }

  /** Adds a call to the usage ledger and to the history. @param isKnown Whether the endpoint is the path of a route */
  #count(row: RequestRow, isKnown: boolean): void {
    const { facts } = this
    // A call that runs no job, such as an upload of a file, counts only if it ended with an error.
    const hasRun = facts.cost_nanos !== undefined
    const counts = { calls: hasRun || row.status >= 400 ? 1 : 0, failed: isFailedStatus(row.status) ? 1 : 0 }
    // The handler has added the usage of a call that ran, before the final status was known. Failures and calls that did not run are added here.
    const missing = { ...counts, calls: hasRun ? 0 : counts.calls }
    if (missing.calls + missing.failed > 0)
      void this.#context.usage?.add({ ...unusedEntry(row, facts.model ?? this.#knownModel, isKnown), ...missing })
    this.#context.history?.add({
      ...row,
      ...counts,
      ...{ queueMs: facts.queue_ms, firstOutputMs: facts.first_output_ms },
    })
  }
}

/** Error fields of a call without an error. Such a call has no HTTP status if its caller left or cancelled. */
function endOf(status: number | string): ReturnType<typeof errorOf> {
  const none = { errorCode: null, errorMessage: null, errorParam: null, upstreamMessage: null }
  if (typeof status === 'number') return none
  const errorMessage =
    status === 'cancelled' ? 'The caller cancelled the call.' : 'The client disconnected before the end of the answer.'
  return { ...none, errorCode: 'job_cancelled', errorMessage }
}

function outcomeOf(status: number | string, refusal: string | undefined): string {
  if (refusal !== undefined) return 'refused'
  if (typeof status !== 'number') return 'aborted'
  if (status < 400) return 'ok'
  return status < 500 ? 'client_error' : 'failed'
}

/** Ledger entry without usage. Names that callers invent are not stored, because the ledger is never deleted. */
function unusedEntry(row: RequestRow, model = '', isKnown = true): Omit<UsageEntry, 'calls' | 'failed'> {
  const { project, keyId, endpoint, endedAtMs } = row
  return {
    ...{
      project,
      keyId,
      model,
      endpoint: isKnown ? endpoint : 'unknown',
      hour: hourOf(endedAtMs),
    },
    ...{ inputTokens: 0, cachedInputTokens: 0, outputTokens: 0, audioMs: 0, costNanos: 0 },
  }
}

function isServerError(status: number | string): boolean {
  return typeof status === 'number' && status >= 500
}

function spanAttributes(facts: CallFacts, status: number | string): Attributes {
  return {
    'http.response.status_code': typeof status === 'number' ? status : undefined,
    'sluice.project': facts.project_id,
    'sluice.job.id': facts.job_id,
    'sluice.error.code': facts.error_code,
    'sluice.attempts': facts.attempts,
    'gen_ai.request.model': facts.model,
    'gen_ai.usage.input_tokens': facts.input_tokens,
    'gen_ai.usage.output_tokens': facts.output_tokens,
  }
}
