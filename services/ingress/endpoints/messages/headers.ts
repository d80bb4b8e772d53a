import type { IncomingHttpHeaders } from 'node:http'
import type { GenerateRequest } from '#schemas/generate.ts'
import { excerpt } from '#services/ingress/body/problem.ts'
import { ServiceError } from '#shared/lib/error.ts'

/** Version of a call without the header (docs/reference/compatibility.md, Messages versions); also the oldest one. */
const VERSION_DEFAULT = '2023-06-01'

/**
 * Version of the Messages API that a call requests: header `anthropic-version`, otherwise `vendor-version`.
 *
 * @returns a date, `YYYY-MM-DD`
 * @throws ServiceError if the value is not a date, or precedes the first version
 */
export function parseVersion(headers: IncomingHttpHeaders): string {
  const name = headers['anthropic-version'] === undefined ? 'vendor-version' : 'anthropic-version'
  const version = String(headers[name] ?? VERSION_DEFAULT).trim()
  const isDate = /^\d{4}-\d{2}-\d{2}$/.test(version) && isCalendarDate(version)
  if (isDate && version >= VERSION_DEFAULT) return version
  const message = `'${excerpt(version)}' is not a version. Expected a date, ${VERSION_DEFAULT} or later.`
  throw new ServiceError('invalid_request', message, { param: name })
}

/** Maximum characters of `anthropic-beta`; enough for several dozen features. */
const BETA_CHARS_MAX = 2_000

/**
 * Headers that an upstream of the Messages API receives: the version, if given, and the beta features.
 *
 * @throws ServiceError as {@link parseVersion}, and for an invalid list of beta features
 */
export function parseUpstreamHeaders(headers: IncomingHttpHeaders): NonNullable<GenerateRequest['anthropic']> {
  const isNamed = headers['anthropic-version'] !== undefined || headers['vendor-version'] !== undefined
  const beta = headers['anthropic-beta']?.toString().trim() || undefined
  if (beta !== undefined && (beta.length > BETA_CHARS_MAX || !/^[\w.:-]+( *, *[\w.:-]+)*$/.test(beta))) {
    const message = 'Expected names of features, separated by commas.'
    throw new ServiceError('invalid_request', message, { param: 'anthropic-beta' })
  }
  return { ...(isNamed && { version: parseVersion(headers) }), ...(beta !== undefined && { beta }) }
}

/**
 * Whether a date exists. Date.parse reads 2024-02-31 as a day in March, so the result is converted back and compared.
 */
function isCalendarDate(text: string): boolean {
  const ms = Date.parse(`${text}T00:00:00Z`)
  return !Number.isNaN(ms) && new Date(ms).toISOString().startsWith(text)
}
