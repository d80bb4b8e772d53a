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

/** Which error shape and which headers a path speaks (docs/protocol.md, Errors). */
export type WireFormat = 'openai' | 'anthropic'

/** The body of a failure in the format of its path. */
export function errorBody(error: ServiceError, format: WireFormat, requestId: string): object {
  return format === 'anthropic' ? messagesErrorBody(error, requestId) : openaiErrorBody(error)
}

/** The status of a failure in the format of its path. */
export function statusOf(error: ServiceError, format: WireFormat): number {
  return format === 'anthropic' ? messagesStatus(error) : openaiStatus(error)
}

/**
 * Answers with a failure, status and headers included. Nothing may have been sent yet.
 *
 * @param isFinal The failure is kept, so that asking again gives the same.
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

/** The format of a path: everything below /v1/messages is Anthropic's (docs/protocol.md, Errors). */
export function formatOf(path: string): WireFormat {
  return path === '/v1/messages' || path.startsWith('/v1/messages/') ? 'anthropic' : 'openai'
}

/**
 * The format of a request. Paths that both kinds of SDK call, and misspelt ones, speak Anthropic's where its SDKs ask, which
 * always send `anthropic-version` (docs/protocol.md, Errors); every other path has one format.
 */
export function formatOfRequest({ path, headers }: Pick<IncomingMessage, 'headers'> & { path: string }): WireFormat {
  const isShared = /(^|\/)(messages|models)(\/|$)/.test(path)
  return isShared && headers['anthropic-version'] !== undefined ? 'anthropic' : formatOf(path)
}
