import type { ErrorCode } from '#schemas/error.ts'
import { ServiceError } from '#shared/lib/error.ts'
import type { Owner } from './limits-of.ts'

export function exceeded(kind: 'requests' | 'tokens', limit: number, owner: Owner, leftMs: number): ServiceError {
  const whose = owner === 'project' ? ' of this project' : ''
  const code = kind === 'tokens' ? 'token_limit_exceeded' : 'rate_limit_exceeded'
  return refusal(`Rate limit reached: ${limit} ${kind} per minute${whose}.`, leftMs, code)
}

export function concurrencyExceeded(owner: Owner, limit: number, what: string): ServiceError {
  return refusal(`This ${owner} is at its limit of ${limit} ${what}.`, 1_000)
}

export function limitIsZero(owner: Owner, what: string): ServiceError {
  const message = `Such calls are disabled for this ${owner}: its limit of ${what} is 0. Only the operator of this service can raise it.`
  return new ServiceError('permission_denied', message)
}

export function refusal(message: string, retryAfterMs: number, code: ErrorCode = 'rate_limit_exceeded'): ServiceError {
  const seconds = Math.max(1, Math.ceil(retryAfterMs / 1_000))
  return new ServiceError(code, `${message} Try again in ${seconds} s.`, { retryAfterMs })
}
