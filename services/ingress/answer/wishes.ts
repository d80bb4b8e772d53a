import type { IncomingHttpHeaders } from 'node:http'
import { ServiceError } from '#shared/error.ts'

/** How a caller wants a call to be answered, beside what it asks. */
export interface Wishes {
  /** The job shall outlive the connection. */
  readonly isDurable: boolean
  /** Answer 202 with the job rather than wait for its result. */
  readonly isAsync: boolean
  /** Milliseconds to wait for the result before the 202. */
  readonly waitMs: number
  readonly idempotencyKey: string | undefined
}

/** Longest `wait` of RFC 7240 that is honoured, and of `?wait=`, in seconds. */
export const WAIT_SECONDS_MAX = 60

/**
 * Reads `Prefer: respond-async, wait=N` (RFC 7240), `Idempotency-Key`, and `background` and `store` of the body.
 * Preferences that are malformed are ignored, as RFC 7240 has it.
 *
 * @throws ServiceError `invalid_request` for a malformed key, `invalid_type` for fields that are no booleans
 */
export function readWishes(headers: IncomingHttpHeaders, body: unknown): Wishes {
  const preferences = String(headers.prefer ?? '')
    .split(/[,;]/)
    .map((preference) => preference.trim().toLowerCase())
  const wait = preferences.map((preference) => /^wait *= *"?(\d{1,9})"?$/.exec(preference)?.[1]).find(Boolean)
  const idempotencyKey = readIdempotencyKey(headers['idempotency-key'])
  const isAsync = preferences.includes('respond-async') || readFlag(body, 'background')
  return {
    isDurable: isAsync || idempotencyKey !== undefined || readFlag(body, 'store'),
    isAsync,
    waitMs: Math.min(Number(wait ?? 0), WAIT_SECONDS_MAX) * 1_000,
    idempotencyKey,
  }
}

/**
 * The key of an `Idempotency-Key` header: 1 to 255 visible ASCII characters, with or without quotes (docs/protocol.md,
 * Idempotency).
 *
 * @throws ServiceError `invalid_request`
 */
export function readIdempotencyKey(header: string | string[] | undefined): string | undefined {
  if (header === undefined) return undefined
  const key = String(header).replace(/^"(.*)"$/, '$1')
  if (/^[\x21-\x7e]{1,255}$/.test(key)) return key
  const message = 'The Idempotency-Key must be 1 to 255 visible ASCII characters.'
  throw new ServiceError('invalid_request', message, { param: 'Idempotency-Key' })
}

function readFlag(body: unknown, field: 'background' | 'store'): boolean {
  const value = (body as Record<string, unknown> | null)?.[field] ?? false
  if (typeof value === 'boolean') return value
  throw new ServiceError('invalid_type', `Invalid type for '${field}': expected a boolean.`, { param: field })
}
