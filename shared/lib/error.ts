import { ERRORS, type ErrorBody, type ErrorCode, type RefusalReason } from '#schemas/error.ts'

/**
 * The only error class of the service. Code compares the `code`, never the class or the message. Callers receive the message, so details for
 * operators belong into `cause`.
 */
export class ServiceError extends Error {
  readonly code: ErrorCode
  readonly param: string | null
  readonly retryAfterMs: number | undefined
  /** True if the request certainly had no effect. False if the outcome is unknown, for example because a response was lost. */
  readonly isUndone: boolean
  /** True if the service's own store or blob store failed. The job did not cause the failure, so the attempt is repeated without being counted. */
  readonly isInfrastructure: boolean
  /** Reason of a refusal, for metrics and logs. Never sent to the caller. */
  readonly reason: RefusalReason | undefined
  /** Message of the upstream server without secrets, for operators who read the request log. Never sent to the caller. */
  readonly upstreamMessage: string | undefined

  constructor(
    code: ErrorCode,
    message: string,
    options: {
      cause?: unknown
      param?: string | null
      retryAfterMs?: number
      isUndone?: boolean
      isInfrastructure?: boolean
      reason?: RefusalReason | undefined
      upstreamMessage?: string | undefined
    } = {},
  ) {
    super(message, { cause: options.cause })
    this.name = 'ServiceError'
    this.code = code
    this.param = options.param ?? null
    this.retryAfterMs = options.retryAfterMs
    this.isUndone = options.isUndone ?? false
    this.isInfrastructure = options.isInfrastructure ?? false
    this.reason = options.reason
    this.upstreamMessage = options.upstreamMessage
  }

  get status(): number {
    return ERRORS[this.code].status
  }

  toBody(): ErrorBody {
    return {
      code: this.code,
      message: this.message,
      param: this.param,
      ...(this.retryAfterMs === undefined ? {} : { retry_after_ms: Math.ceil(this.retryAfterMs) }),
      ...(this.reason && { reason: this.reason }),
      ...(this.upstreamMessage && { upstream_message: this.upstreamMessage }),
    }
  }

  static fromBody(body: ErrorBody): ServiceError {
    return new ServiceError(body.code, body.message, {
      param: body.param,
      ...(body.retry_after_ms === undefined ? {} : { retryAfterMs: body.retry_after_ms }),
      ...(body.reason !== undefined && { reason: body.reason as RefusalReason }),
      upstreamMessage: body.upstream_message,
    })
  }

  /** Converts any thrown value. A value other than a ServiceError becomes `internal_error` with a generic message. */
  static from(thrown: unknown): ServiceError {
    if (thrown instanceof ServiceError) return thrown
    return new ServiceError('internal_error', 'The server had an error while processing your request.', {
      cause: thrown,
    })
  }
}

/**
 * Returns the error for an answer that exceeds the maximum size. A retry would not help, because the repeated request would have an answer of the
 * same size.
 *
 * @param bytesMax Approximate maximum, in bytes
 */
export function answerTooLarge(bytesMax: number): ServiceError {
  const message = `The answer is larger than the ${bytesMax} bytes that an answer can have. Request fewer tokens, choices or inputs.`
  return new ServiceError('answer_too_large', message)
}

/**
 * Part of the message of a call that an open circuit breaker refused. The request log has the message but no field for this case, so the message is
 * written and recognised here.
 */
export const REFUSED_TEXT = 'calls are paused until'
const DAY_SECONDS = 86_400

/**
 * States a time, because the message stays in the request log and on the page of the job.
 *
 * @param untilMs Time of the next call that may be sent
 * @param lastFailure The last failure, without a full stop
 */
export function refusedCallMessage(model: string, untilMs: number, lastFailure: string): string {
  const until = new Date(untilMs).toISOString().slice(11, 19)
  return `The upstream of model '${model}' keeps failing, so ${REFUSED_TEXT} ${until} UTC. Last error: ${lastFailure}.`
}

/**
 * Time of the next call that may be sent, in Unix seconds. Undefined if the message does not state that the call was refused.
 *
 * @param endedAt End of the refused call, in Unix seconds. The message has only the time of the day
 */
export function refusedUntilOf(message: string | null, endedAt: number): number | undefined {
  const [, time] = new RegExp(`${REFUSED_TEXT} (\\d\\d:\\d\\d:\\d\\d) UTC`).exec(message ?? '') ?? []
  if (time === undefined) return undefined
  const until = Date.parse(`${new Date(endedAt * 1_000).toISOString().slice(0, 10)}T${time}Z`) / 1_000
  // A pause ends at most a minute later. If it ends much earlier on the same day, then it began before midnight.
  return until < endedAt - DAY_SECONDS / 2 ? until + DAY_SECONDS : until
}
