import { ServiceError } from '#shared/error.ts'

const RETRY_AFTER_MS = 2_000

/** Classes of SQLSTATE that mean: not now. The connection, resources, an operator, locks (Postgres, appendix A). */
const WORLDS_FAULT = /^(08|53|57|58|40|55P03|25006)/
/** Those after which the next statement fails too: no connection, shutdown, starting up, or a standby. */
const IS_GONE = /^(08|57P|25006)/

/** No SQLSTATE: the network's codes, and the client's own words for a connection that broke or could not be had. */
const NETWORK = /^(ECONN|EPIPE|ENOTFOUND|EAI_AGAIN|EHOST|ENET|ETIMEDOUT)/
const CLIENT = /^(Connection terminated|timeout exceeded when trying to connect|Query read timeout|Client (has|was) )/

/** What a failure of the client means: whether the database is gone, and the error for the caller. */
export function translate(error: unknown): { isGone: boolean; error: unknown } {
  const { code = '', message = '' } = error as { code?: string; message?: string }
  const hasState = /^[0-9A-Z]{5}$/.test(code)
  const isGone = hasState ? IS_GONE.test(code) : NETWORK.test(code) || CLIENT.test(message)
  if (!isGone && !(hasState && WORLDS_FAULT.test(code))) return { isGone: false, error }
  return { isGone, error: overloaded(error) }
}

/** The failure of a call while the database is away. */
export function overloaded(cause?: unknown): ServiceError {
  return new ServiceError('overloaded', 'The job store cannot be reached now.', { cause, retryAfterMs: RETRY_AFTER_MS })
}
