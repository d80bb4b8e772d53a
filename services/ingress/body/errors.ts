import type { IncomingMessage, ServerResponse } from 'node:http'
import { errorHeaders, messagesErrorBody, messagesStatus, openaiErrorBody, openaiStatus } from '#shared/kinds/errors.ts'
import type { ServiceError } from '#shared/lib/error.ts'

/** API whose error format and headers a path uses (docs/internals/protocol.md, Errors). */
export type WireFormat = 'openai' | 'anthropic'

export function errorBody(error: ServiceError, format: WireFormat, requestId: string): object {
  return format === 'anthropic' ? messagesErrorBody(error, requestId) : openaiErrorBody(error)
}

export function statusOf(error: ServiceError, format: WireFormat): number {
  return format === 'anthropic' ? messagesStatus(error) : openaiStatus(error)
}

/**
 * Sends an error response. Must be called before anything else of the response was sent.
 *
 * @param isFinal True for a stored failure: a repeated request would receive the same failure again, so a header
 * prevents retries by SDKs
 */
export function sendError(
  res: ServerResponse,
  error: ServiceError,
  format: WireFormat,
  requestId: string,
  isFinal = false,
): void {
  const body = JSON.stringify(errorBody(error, format, requestId))
  res.writeHead(statusOf(error, format), {
    ...errorHeaders(error, isFinal, retryMsMaxOf(res.req.headers['user-agent'])),
    'content-type': 'application/json',
    'content-length': Buffer.byteLength(body),
  })
  res.end(body)
}

export function formatOf(path: string): WireFormat {
  return path === '/v1/messages' || path.startsWith('/v1/messages/') ? 'anthropic' : 'openai'
}

/**
 * Format of a request. If the SDKs of both vendors call a path, or the path is unknown, then the header
 * `anthropic-version` decides: Anthropic SDKs always send it. Every other path has one format
 * (docs/internals/protocol.md, Errors).
 */
export function formatOfRequest({ path, headers }: Pick<IncomingMessage, 'headers'> & { path: string }): WireFormat {
  const isShared = /(^|\/)(messages|models)(\/|$)/.test(path)
  return isShared && headers['anthropic-version'] !== undefined ? 'anthropic' : formatOf(path)
}

/**
 * Maximum `Retry-After` that the known SDKs obey, in milliseconds. If it is longer, then SDKs use their own retry delay.
 */
const SDK_RETRY_AFTER_MS_MAX = 60_000
const SDKS = /openai|anthropic|ai-sdk|litellm/i
export const CLIENT_RETRY_AFTER_MS_MAX = 3_600_000

/**
 * Maximum `Retry-After` for a caller, in milliseconds: 60 s for known SDKs, an hour for others. RFC 9110 §10.2.3 has no
 * maximum.
 */
export function retryMsMaxOf(userAgent: string | undefined): number {
  return SDKS.test(userAgent ?? '') ? SDK_RETRY_AFTER_MS_MAX : CLIENT_RETRY_AFTER_MS_MAX
}
