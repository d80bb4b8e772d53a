import type { NativeUsage, Usage } from '#schemas/generate.ts'
import type { EncodeContext } from '#schemas/job.ts'
import type { ResponseObject, ResponsesError, ResponsesUsage } from '#schemas/responses/response.ts'
import type { ServiceError } from '#shared/lib/error.ts'
import { visibleItem } from './hosted.ts'

/** Prefix of the id of a response; the rest is the id of its job. */
export const RESPONSE_PREFIX = 'resp_'

/** A response with the given fields. All other fields have the values of a response without output (docs/guides/responses.md, Answers). */
export function responseObject(
  context: Pick<EncodeContext, 'call_id' | 'created_at' | 'model' | 'responses'>,
  known: Pick<ResponseObject, 'status'> & Partial<ResponseObject>,
): ResponseObject {
  return {
    id: `${RESPONSE_PREFIX}${context.call_id}`,
    object: 'response',
    created_at: context.created_at,
    completed_at: null,
    error: null,
    incomplete_details: null,
    model: context.model,
    output: [],
    usage: null,
    ...context.responses?.shown,
    ...known,
  }
}

/**
 * A response reduced to the items and fields that the caller requested. The stored response has all of them, because a later response may
 * continue it.
 */
export function responseView(
  response: ResponseObject,
  { responses }: Pick<EncodeContext, 'responses'>,
): ResponseObject {
  if (!responses?.is_hosting) return response
  return { ...response, output: response.output.map((item) => visibleItem(item, responses.includes ?? [])) }
}

/** Usage in the form of this API. @param native Usage object of the upstream. Additional counts are passed on */
export function responsesUsage(usage: Usage, native?: NativeUsage): ResponsesUsage {
  const { input_tokens, output_tokens } = usage
  const sent = native?.dialect === 'responses' ? (native.value as Partial<ResponsesUsage>) : {}
  return {
    ...sent,
    input_tokens,
    input_tokens_details: {
      ...sent.input_tokens_details,
      cached_tokens: usage.cached_tokens ?? 0,
      cache_write_tokens: usage.cache_write_tokens ?? 0,
    },
    output_tokens,
    output_tokens_details: { ...sent.output_tokens_details, reasoning_tokens: usage.reasoning_tokens ?? 0 },
    total_tokens: input_tokens + output_tokens,
  }
}

export function responsesError({ code, status, message, param }: ServiceError): ResponsesError {
  const kind = status === 429 ? 'rate_limit_exceeded' : status < 500 ? 'invalid_prompt' : 'server_error'
  return { code: kind, message, type: code, param }
}
