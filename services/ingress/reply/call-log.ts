import type { CallFacts, IngressContext } from '#services/ingress/call.ts'
import { ServiceError } from '#shared/lib/error.ts'
import { newId } from '#shared/lib/id.ts'

interface EndedCall {
  readonly method: string
  readonly path: string
  /** Route pattern as a metrics label, never the raw path. */
  readonly route: string
  readonly status: number | string
  readonly more?: object
  /** True for a WebSocket connection, whose duration is not counted as the duration of a call. */
  readonly isConnection?: boolean
}

const PATH_CHARS_MAX = 200

/**
 * Writes one access-log line per call and updates its metrics: route, outcome, duration. Bodies, prompts and keys are
 * never logged. Failures are classified only here and in the attempt of the job.
 */
export class CallLog {
  readonly requestId = newId('req_')
  readonly startedAt = performance.now()
  readonly facts: CallFacts = {}
  readonly #context: Pick<IngressContext, 'log' | 'metrics'>

  constructor(context: Pick<IngressContext, 'log' | 'metrics'>) {
    this.#context = context
  }

  /** Converts any thrown value into the error that the caller receives. Internal errors are logged with their cause. */
  classify(thrown: unknown): ServiceError {
    // Express decodes path parameters with decodeURIComponent, and passes on its URIError.
    const error = thrown instanceof URIError ? new ServiceError('not_found', 'Invalid URL') : ServiceError.from(thrown)
    if (error.code === 'internal_error')
      this.#context.log.error({ err: error, request_id: this.requestId }, 'internal error')
    return error
  }

  /**
   * Records the failure that the caller receives. If the head was already sent with another status, then metrics count
   * the status of the failure.
   *
   * @param sentStatus Status in the head that was already sent
   */
  failed({ code }: ServiceError, status: number, sentStatus?: number): void {
    const { facts } = this
    facts.error_code ??= code
    if (sentStatus === undefined || facts.status !== undefined || status === sentStatus) return
    facts.status = status
    facts.sent_status = sentStatus
  }

  /** Writes the log line and counts the call. Must be called once. */
  ended({ method, path, route, status: sent, more, isConnection }: EndedCall): void {
    const { log, metrics } = this.#context
    const { facts, requestId: request_id } = this
    const durationMs = performance.now() - this.startedAt
    const status = facts.status ?? sent
    const model = facts.model ?? ''
    metrics.requests.inc({ route, status: String(status), model })
    if (!isConnection) metrics.requestSeconds.observe({ route, model }, durationMs / 1_000)
    const duration_ms = Math.round(durationMs * 10) / 10
    const line = { request_id, method, path: path.slice(0, PATH_CHARS_MAX), status, duration_ms, ...more, ...facts }
    log.info(line, 'request')
  }
}
