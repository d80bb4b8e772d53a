import { ServiceError } from '#shared/lib/error.ts'

const CAUSES_MAX = 5

/**
 * Converts any failure of an MCP server into an error that names the backend. A failure must not be returned as an empty result, which would mean
 * that nothing was found.
 */
export function failureOf(error: unknown, signal: AbortSignal, broken: AbortSignal): unknown {
  if (signal.aborted) return signal.reason
  const own = serviceErrorIn(broken.aborted ? broken.reason : error)
  if (own) return named(own)
  const { code, status } = (error ?? {}) as { code?: unknown; status?: unknown }
  if (code === 'REQUEST_TIMEOUT') return timedOut(error)
  if (typeof status === 'number') return failed('failed', error)
  if (typeof code === 'number') return failed('refused the call', error)
  return failed('does not speak MCP over streamable HTTP', error)
}

/** Returns an error about the MCP server. `what` completes the sentence "The search backend mcp …". */
export function failed(what: string, cause?: unknown): ServiceError {
  return new ServiceError('upstream_error', `The search backend mcp ${what}.`, { cause })
}

function timedOut(cause: unknown): ServiceError {
  return new ServiceError('upstream_timeout', 'The search backend mcp did not respond in time.', { cause })
}

/** Replaces the host in the message by the name of the backend, because the host is internal. */
function named(cause: ServiceError): ServiceError {
  switch (cause.code) {
    case 'rate_limit_exceeded':
    case 'upstream_refused':
      return cause
    case 'upstream_timeout':
      return timedOut(cause)
    case 'request_too_large':
      return failed('sent a response that is too large', cause)
    case 'invalid_value':
      return new ServiceError('upstream_refused', 'The address of the search backend mcp is not permitted.', { cause })
    default:
      return cause.message.includes('search backend') ? cause : failed('cannot be reached', cause)
  }
}

function serviceErrorIn(error: unknown): ServiceError | undefined {
  let each = error
  for (let depth = 0; depth < CAUSES_MAX && each instanceof Error; depth++) {
    if (each instanceof ServiceError) return each
    each = each.cause
  }
  return undefined
}
