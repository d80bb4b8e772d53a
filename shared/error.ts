import { ERRORS, type ErrorBody, type ErrorCode } from '#schemas/error.ts'

/**
 * The one error class of the service. Compare `code`, never the class or the message.
 *
 * The message is shown to callers; put what only operators may see into `cause`.
 */
export class ServiceError extends Error {
  readonly code: ErrorCode
  readonly param: string | null
  readonly retryAfterMs: number | undefined
  /** Surely nothing was done. Otherwise nobody knows: an answer may have got lost. */
  readonly isUndone: boolean
  /** The service's own store failed: no fault of the job, whose attempt costs no try and is made again. */
  readonly isInfrastructure: boolean

  constructor(
    code: ErrorCode,
    message: string,
    options: {
      cause?: unknown
      param?: string | null
      retryAfterMs?: number
      isUndone?: boolean
      isInfrastructure?: boolean
    } = {},
  ) {
    super(message, { cause: options.cause })
    this.name = 'ServiceError'
    this.code = code
    this.param = options.param ?? null
    this.retryAfterMs = options.retryAfterMs
    this.isUndone = options.isUndone ?? false
    this.isInfrastructure = options.isInfrastructure ?? false
  }

  /** HTTP status in the OpenAI format (docs/protocol.md, Errors). */
  get status(): number {
    return ERRORS[this.code].status
  }

  /** The failure as it travels in job events. */
  toBody(): ErrorBody {
    return {
      code: this.code,
      message: this.message,
      param: this.param,
      ...(this.retryAfterMs === undefined ? {} : { retry_after_ms: Math.ceil(this.retryAfterMs) }),
    }
  }

  /** The failure that a job event carried. */
  static fromBody(body: ErrorBody): ServiceError {
    return new ServiceError(body.code, body.message, {
      param: body.param,
      ...(body.retry_after_ms === undefined ? {} : { retryAfterMs: body.retry_after_ms }),
    })
  }

  /** Any thrown value as a ServiceError; what is not one becomes `internal_error` with a message that says nothing. */
  static from(thrown: unknown): ServiceError {
    if (thrown instanceof ServiceError) return thrown
    return new ServiceError('internal_error', 'The server had an error while processing your request.', {
      cause: thrown,
    })
  }
}

/**
 * The failure of an answer that has more than may be held of one: what was asked for, or what the model made of it, is too much, and
 * asking again changes nothing.
 *
 * @param bytesMax Bytes that it may have, about.
 */
export function answerTooLarge(bytesMax: number): ServiceError {
  const message = `The answer is larger than the ${bytesMax} bytes that an answer may have here. Ask for less at once: fewer tokens, choices or inputs.`
  return new ServiceError('answer_too_large', message)
}
