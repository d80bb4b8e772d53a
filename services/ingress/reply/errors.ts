import type { IncomingMessage, ServerResponse } from 'node:http'
import type { ServiceError } from '#shared/error.ts'
import {
  errorHeaders,
  messagesErrorBody,
  messagesStatus,
  openaiErrorBody,
  openaiStatus,
} from '#shared/protocols/errors.ts'
import { retryMsMaxOf } from './retry.ts'

/** API family of a path, which decides the shape of errors and headers (docs/internals/protocol.md, Errors). */
export type WireFormat = 'openai' | 'anthropic'

export function errorBody(error: ServiceError, format: WireFormat, requestId: string): object {
  return format === 'anthropic' ? messagesErrorBody(error, requestId) : openaiErrorBody(error)
}

export function statusOf(error: ServiceError, format: WireFormat): number {
  return format === 'anthropic' ? messagesStatus(error) : openaiStatus(error)
}

/**
 * Sends an error response. No part of a response may have been sent yet.
 *
 * @param isFinal True if a repeated request would return the same stored failure, so a retry is pointless.
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

/** Format of a path: everything below /v1/messages is Anthropic's (docs/internals/protocol.md, Errors). */
export function formatOf(path: string): WireFormat {
  return path === '/v1/messages' || path.startsWith('/v1/messages/') ? 'anthropic' : 'openai'
}

/**
 * Format of a request. Paths that both SDK families call, and misspelt ones, use Anthropic's format if the request has
 * the header `anthropic-version`, which its SDKs always send. Every other path has one format (docs/internals/protocol.md,
 * Errors).
 */
export function formatOfRequest({ path, headers }: Pick<IncomingMessage, 'headers'> & { path: string }): WireFormat {
  const isShared = /(^|\/)(messages|models)(\/|$)/.test(path)
  return isShared && headers['anthropic-version'] !== undefined ? 'anthropic' : formatOf(path)
}
