import type { BatchDialect } from '#schemas/batches/batch.ts'
import type { ErrorBody } from '#schemas/error.ts'
import type { ChildEnd } from '#shared/kinds/composition.ts'
import { ServiceError } from '#shared/lib/error.ts'
import { messagesErrorBody, openaiErrorBody, openaiStatus } from '#shared/protocols/errors.ts'

export type Outcome =
  | { readonly type: 'completed'; readonly result: unknown; readonly usage: unknown }
  | { readonly type: 'failed'; readonly error: ErrorBody }
  | { readonly type: 'cancelled' }
  | { readonly type: 'expired' }

export function outcomeOf(end: ChildEnd): Outcome {
  switch (end.state) {
    case 'completed':
      return { type: 'completed', result: end.result, usage: end.usage }
    case 'failed':
      return { type: 'failed', error: end.error }
    default:
      return { type: end.state }
  }
}

/**
 * Line of a result file for one request.
 *
 * @param id Id of the job of the request. A refused request has no job, but its id is derived in the same way
 */
export function outcomeLine(dialect: BatchDialect, id: string, customId: string, outcome: Outcome): object {
  if (dialect === 'messages') return { custom_id: customId, result: messagesResult(id, outcome) }
  return { id: id.replace('job_', 'batch_req_'), custom_id: customId, ...requestResult(id, outcome) }
}

function requestResult(id: string, outcome: Outcome): object {
  switch (outcome.type) {
    case 'completed':
      return { response: { status_code: 200, request_id: id, body: outcome.result }, error: null }
    case 'failed': {
      const error = ServiceError.fromBody(outcome.error)
      const response = { status_code: openaiStatus(error), request_id: id, body: openaiErrorBody(error) }
      return { response, error: null }
    }
    case 'cancelled':
      return {
        response: null,
        error: { code: 'batch_cancelled', message: 'The request was cancelled before it was answered.' },
      }
    case 'expired': {
      const message = 'This request could not be executed before the completion window expired.'
      return { response: null, error: { code: 'batch_expired', message } }
    }
  }
}

function messagesResult(id: string, outcome: Outcome): object {
  switch (outcome.type) {
    case 'completed':
      return { type: 'succeeded', message: outcome.result }
    case 'failed':
      return { type: 'errored', error: messagesErrorBody(ServiceError.fromBody(outcome.error), id) }
    case 'cancelled':
      return { type: 'canceled' }
    case 'expired':
      return { type: 'expired' }
  }
}
