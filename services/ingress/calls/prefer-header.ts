import { createHash, type Hash } from 'node:crypto'
import type { IncomingHttpHeaders } from 'node:http'
import { writeJson } from '#shared/json/write.ts'
import { ServiceError } from '#shared/lib/error.ts'
import { runYielding } from '#shared/lib/yielding.ts'
import type { IdempotencyKey } from '#shared/store/store.ts'
import type { Call } from './call.ts'

export interface Preferences {
  readonly isDurable: boolean
  /** True if the call is answered with 202 and the job. If false, then the call waits for the result. */
  readonly isAsync: boolean
  /** Time that a call waits for the result before it is answered with 202, in milliseconds. */
  readonly waitMs: number
  readonly idempotencyKey: string | undefined
}

/** Maximum `wait` in the Prefer header (RFC 7240) and `?wait=` in a query, in seconds. */
export const WAIT_SECONDS_MAX = 60
/**
 * Maximum time for which an idempotency key refers to its job. If jobs are retained for a shorter time, then that time
 * applies.
 */
const IDEMPOTENCY_TTL_MS = 24 * 3_600_000

/**
 * Reads `Prefer: respond-async, wait=N` (RFC 7240), `Idempotency-Key`, and the body fields `background` and `store`.
 * Malformed preferences are ignored, as RFC 7240 requires.
 *
 * @throws ServiceError `invalid_request` for a malformed key; `invalid_type` for fields that are not booleans
 */
export function readPreferences(headers: IncomingHttpHeaders, body: unknown): Preferences {
  const preferences = String(headers.prefer ?? '')
  const wait = /(?:^|[,;])\s*wait *= *"?(\d{1,9})"?\s*(?:[,;]|$)/i.exec(preferences)?.[1]
  const idempotencyKey = readIdempotencyKey(headers['idempotency-key'])
  const isAsync = prefersAsync(headers) || readFlag(body, 'background')
  return {
    isDurable: isAsync || idempotencyKey !== undefined || readFlag(body, 'store'),
    isAsync,
    waitMs: Math.min(Number(wait ?? 0), WAIT_SECONDS_MAX) * 1_000,
    idempotencyKey,
  }
}

export function prefersAsync({ prefer }: IncomingHttpHeaders): boolean {
  return /(?:^|[,;])\s*respond-async\s*(?:[,;]|$)/i.test(String(prefer ?? ''))
}

const JOB_SUBMISSIONS = /^\/v1\/(jobs|files|batches|messages\/batches)(\/|$)/

/**
 * Whether a call creates a durable job. The check uses only the path and the headers, because the body is not read yet.
 */
export function isJobSubmission({ path, headers }: Pick<Call, 'path' | 'headers'>): boolean {
  if (JOB_SUBMISSIONS.test(path)) return true
  return headers['idempotency-key'] !== undefined || prefersAsync(headers)
}

/**
 * Reads an `Idempotency-Key` header: 1 to 255 visible ASCII characters, with or without quotes
 * (docs/internals/protocol.md, Idempotency).
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

/**
 * The idempotency key of a call, with a fingerprint of method, path and body (docs/internals/protocol.md, Idempotency).
 *
 * @param retentionMs Retention of ended jobs. The key expires no later than its job
 */
export async function idempotencyOf(
  key: string | undefined,
  { method, path }: Pick<Call, 'method' | 'path'>,
  body: unknown,
  retentionMs: number = IDEMPOTENCY_TTL_MS,
): Promise<IdempotencyKey | undefined> {
  if (key === undefined) return undefined
  const hash = createHash('sha256').update(`${path}\n`)
  await runYielding(hashCanonical(hash, withoutNulls(body)))
  const fingerprint = hash.digest('hex')
  return { scope: `${method} ${path}`, key, fingerprint, keepMs: Math.min(IDEMPOTENCY_TTL_MS, retentionMs) }
}

/** Fields with objects in which null also counts as absent: the body of a durable job, its options and its webhook. */
const PARTS: ReadonlySet<string> = new Set(['body', 'job', 'webhook'])

/**
 * Removes null fields from a request, because null counts as absent. Nulls inside other values, such as JSON Schemas,
 * have a meaning and stay.
 */
function withoutNulls(request: unknown): unknown {
  if (typeof request !== 'object' || request === null || Array.isArray(request)) return request
  const given = Object.entries(request).filter(([, value]) => value !== null && value !== undefined)
  return Object.fromEntries(given.map(([name, value]) => [name, PARTS.has(name) ? withoutNulls(value) : value]))
}

/**
 * Hashes JSON with sorted keys, so that the order of fields does not change the hash. Recursion cannot exhaust the
 * stack, because the nesting of bodies is limited.
 */
function* hashCanonical(hash: Hash, body: unknown): Generator<undefined, void> {
  for (const piece of writeJson(body, { sortsKeys: true })) {
    hash.update(piece)
    yield
  }
}

function readFlag(body: unknown, field: 'background' | 'store'): boolean {
  const value = (body as Record<string, unknown> | null)?.[field] ?? false
  if (typeof value === 'boolean') return value
  throw new ServiceError('invalid_type', `Invalid type for '${field}': expected a boolean.`, { param: field })
}
