import type { ErrorCode } from '#schemas/error.ts'
import { ServiceError } from '#shared/error.ts'
import type { Owner } from './limits-of.ts'

/** The refusal of a call whose minute is used up. @param leftMs Until the next minute begins */
export function exceeded(kind: 'requests' | 'tokens', limit: number, owner: Owner, leftMs: number): ServiceError {
  const whose = owner === 'project' ? ' of this project' : ''
  const code = kind === 'tokens' ? 'token_limit_exceeded' : 'rate_limit_exceeded'
  return refusal(`Rate limit reached: ${limit} ${kind} per minute${whose}.`, leftMs, code)
}

/** The refusal of one too many at once. */
export function tooMany(owner: Owner, may: string, limit: number, what: string): ServiceError {
  return refusal(`This ${owner} may ${may} ${limit} ${what} at once.`, 1_000)
}

/** The refusal of what a limit of 0 does not let in at all: no time to come again, since none would be of use. */
export function limitIsZero(owner: Owner, what: string): ServiceError {
  const message = `This ${owner} may make no such calls: its limit of ${what} is 0. Only whoever runs this service can raise it.`
  return new ServiceError('permission_denied', message)
}

/** A refusal that ends by itself. */
export function refusal(message: string, retryAfterMs: number, code: ErrorCode = 'rate_limit_exceeded'): ServiceError {
  const seconds = Math.max(1, Math.ceil(retryAfterMs / 1_000))
  return new ServiceError(code, `${message} Try again in ${seconds} s.`, { retryAfterMs })
}
