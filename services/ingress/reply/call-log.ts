import type { CallFacts, IngressContext } from '#services/ingress/call.ts'
import { ServiceError } from '#shared/error.ts'
import { newId } from '#shared/id.ts'

/** How a call is named in the log and in the metrics. */
interface EndedCall {
  readonly method: string
  readonly path: string
  /** Label of the metrics: a known route. */
  readonly route: string
  readonly status: number | string
  /** Further fields of the line. */
  readonly more?: object
  /** Not a call but a connection: how long it was open is no figure of calls. */
  readonly isConnection?: boolean
}

/** Characters of a path that are logged. */
const PATH_CHARS_MAX = 200

/**
 * The one line that the access log has for a call, and its figures: what it was, how it ended, how long it took. Never bodies,
 * prompts or keys. Also one of the two places that classify failures; the other is the attempt of a job.
 */
export class CallLog {
  readonly requestId = newId('req_')
  readonly startedAt = performance.now()
  /** What whoever answers the call adds. */
  readonly facts: CallFacts = {}
  readonly #context: Pick<IngressContext, 'log' | 'metrics'>

  constructor(context: Pick<IngressContext, 'log' | 'metrics'>) {
    this.#context = context
  }

  /** Whatever was thrown as the failure that the caller is told. */
  classify(thrown: unknown): ServiceError {
    // Express decodes path parameters and throws what decodeURIComponent throws.
    const error = thrown instanceof URIError ? new ServiceError('not_found', 'Invalid URL') : ServiceError.from(thrown)
    if (error.code === 'internal_error')
      this.#context.log.error({ err: error, request_id: this.requestId }, 'internal error')
    return error
  }

  /**
   * Notes a failure that the caller is told. After the head, which said otherwise, the call counts as the status it would have
   * had.
   *
   * @param sentStatus The status that was sent before.
   */
  failed({ code }: ServiceError, status: number, sentStatus?: number): void {
    const { facts } = this
    facts.error_code ??= code
    if (sentStatus === undefined || facts.status !== undefined || status === sentStatus) return
    facts.status = status
    facts.sent_status = sentStatus
  }

  /** Writes the line, and counts the call. To be called once. */
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
