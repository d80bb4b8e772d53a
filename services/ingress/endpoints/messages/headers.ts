import type { IncomingHttpHeaders } from 'node:http'
import type { GenerateRequest } from '#schemas/generate.ts'
import { excerpt } from '#services/ingress/body/problem.ts'
import { ServiceError } from '#shared/error.ts'

/** The version of callers that name none (docs/protocol.md, Messages versions); also the oldest there is. */
const VERSION_DEFAULT = '2023-06-01'

/**
 * The version of the messages format that a request asks for: `anthropic-version`, else the spec's `vendor-version`.
 *
 * @returns a date, `YYYY-MM-DD`
 * @throws ServiceError when it is no date, or one before the first version
 */
export function parseVersion(headers: IncomingHttpHeaders): string {
  const name = headers['anthropic-version'] === undefined ? 'vendor-version' : 'anthropic-version'
  const version = String(headers[name] ?? VERSION_DEFAULT).trim()
  const isDate = /^\d{4}-\d{2}-\d{2}$/.test(version) && isCalendarDate(version)
  if (isDate && version >= VERSION_DEFAULT) return version
  const message = `'${excerpt(version)}' is not a version. Expected a date from ${VERSION_DEFAULT} on.`
  throw new ServiceError('invalid_request', message, { param: name })
}

/** Characters of `anthropic-beta`: some dozens of features. */
const BETA_CHARS_MAX = 2_000

/**
 * What the headers ask of an upstream of this format: the version where one is named, and the beta features.
 *
 * @throws ServiceError as {@link parseVersion} does, and for beta features that are no list of names
 */
export function parseWishesUpstream(headers: IncomingHttpHeaders): NonNullable<GenerateRequest['anthropic']> {
  const isNamed = headers['anthropic-version'] !== undefined || headers['vendor-version'] !== undefined
  const beta = headers['anthropic-beta']?.toString().trim() || undefined
  if (beta !== undefined && (beta.length > BETA_CHARS_MAX || !/^[\w.:-]+( *, *[\w.:-]+)*$/.test(beta))) {
    const message = 'Expected names of features with commas between.'
    throw new ServiceError('invalid_request', message, { param: 'anthropic-beta' })
  }
  return { ...(isNamed && { version: parseVersion(headers) }), ...(beta !== undefined && { beta }) }
}

/** Date.parse rolls 2024-02-31 over into March, so the text must survive the way there and back. */
function isCalendarDate(text: string): boolean {
  const ms = Date.parse(`${text}T00:00:00Z`)
  return !Number.isNaN(ms) && new Date(ms).toISOString().startsWith(text)
}
