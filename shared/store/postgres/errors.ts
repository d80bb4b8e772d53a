import { ServiceError } from '#shared/error.ts'

const RETRY_AFTER_MS = 2_000
/** After which it is worth to ask for room on a full disk again. */
const FULL_RETRY_MS = 60_000

/** Classes of SQLSTATE that mean: not now. The connection, resources, an operator, locks (Postgres, appendix A). */
const WORLDS_FAULT = /^(08|53|57|58|40|55P03|25006)/
/** Those after which the next statement fails too: no connection, shutdown, starting up, or a standby. */
const IS_GONE = /^(08|57P|25006)/
const DISK_FULL = '53100'

/** No SQLSTATE: the network's codes, and the client's own words for a connection that broke. */
const NETWORK = /^(ECONN|EPIPE|ENOTFOUND|EAI_AGAIN|EHOST|ENET|ETIMEDOUT)/
const CLIENT = /^(Connection terminated|timeout expired|Query read timeout|Client (has|was) )/
/** The pool's words for a wait in which no connection became free: all are busy, the database is there. */
const BUSY = /^timeout exceeded when trying to connect/

/** What a failure of the client means: whether the database is gone or has no room left, and the error for the caller. */
export function translate(error: unknown): { isGone: boolean; isFull: boolean; error: unknown } {
  const { code = '', message = '' } = error as { code?: string; message?: string }
  const hasState = /^[0-9A-Z]{5}$/.test(code)
  if (hasState ? IS_GONE.test(code) : NETWORK.test(code) || CLIENT.test(message)) {
    return { isGone: true, isFull: false, error: unreachable(error) }
  }
  if (code === DISK_FULL) return { isGone: false, isFull: true, error: full(error) }
  const isBusy = hasState ? WORLDS_FAULT.test(code) : BUSY.test(message)
  return { isGone: false, isFull: false, error: isBusy ? busy(error) : error }
}

/** The failure of a call while the database is away. @param isUndone It was not sent */
export function unreachable(cause?: unknown, isUndone = false): ServiceError {
  const message = 'The job store cannot be reached now.'
  return new ServiceError('overloaded', message, { cause, retryAfterMs: RETRY_AFTER_MS, isUndone })
}

/** The failure of one call that waited too long for its turn or for a lock: the database has undone it, or never got it. */
export function busy(cause?: unknown): ServiceError {
  const message = 'The job store has too much to do.'
  return new ServiceError('overloaded', message, { cause, retryAfterMs: RETRY_AFTER_MS, isUndone: true })
}

/** The failure of one write for which the disk of the database has no room: the database has undone it. */
function full(cause: unknown): ServiceError {
  const message = 'The job store has no room left on its disk.'
  return new ServiceError('overloaded', message, { cause, retryAfterMs: FULL_RETRY_MS, isUndone: true })
}
