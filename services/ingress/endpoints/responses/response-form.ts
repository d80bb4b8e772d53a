import type { GenerateRequest } from '#schemas/generate.ts'
import type { ResponsesRequest } from '#schemas/responses/request.ts'
import type { ResponsesForm } from '#schemas/responses/response.ts'
import { isSmall } from '#shared/json/write.ts'
import { shownTools } from './tools.ts'

/**
 * Maximum bytes of JSON of request fields that the response repeats. Limited, because the queue record carries them
 * next to a prompt of up to 64 KiB.
 */
const REPEATED_BYTES_MAX = 48 * 1024

/** Request fields that a response repeats, with defaults for absent ones (docs/guides/responses.md, Answers). */
export function formOf(body: ResponsesRequest, request: GenerateRequest, isKept: boolean): ResponsesForm {
  const format = body.text?.format ?? { type: 'text' }
  const within = fitting(REPEATED_BYTES_MAX)
  return {
    shown: {
      background: body.background ?? false,
      conversation: conversationIdOf(body) === undefined ? null : { id: conversationIdOf(body) },
      frequency_penalty: body.frequency_penalty ?? 0,
      instructions: within(body.instructions, null),
      max_output_tokens: body.max_output_tokens ?? null,
      max_tool_calls: body.max_tool_calls ?? null,
      metadata: body.metadata ?? {},
      parallel_tool_calls: body.parallel_tool_calls ?? true,
      presence_penalty: body.presence_penalty ?? 0,
      previous_response_id: body.previous_response_id ?? null,
      prompt_cache_key: within(body.prompt_cache_key, null),
      reasoning: { effort: body.reasoning?.effort ?? null, summary: summaryOf(body) },
      safety_identifier: within(body.safety_identifier, null),
      service_tier: 'default',
      store: isKept,
      temperature: body.temperature ?? 1,
      text: { format: within(format, { type: format.type }), verbosity: body.text?.verbosity ?? 'medium' },
      tool_choice: within(body.tool_choice, 'auto'),
      tools: within(shownTools(body.tools), []),
      top_logprobs: body.top_logprobs ?? 0,
      top_p: body.top_p ?? 1,
      truncation: body.truncation ?? 'disabled',
      user: within(body.user, null),
    },
    summarizes: summaryOf(body) !== null,
    ...(request.hosted && { is_hosting: true }),
    ...(body.include?.length && { includes: body.include }),
    is_kept: isKept,
    has_instructions: Boolean(body.instructions),
  }
}

/** Id of the conversation that a request names, as a string or an object. */
export function conversationIdOf({ conversation }: Pick<ResponsesRequest, 'conversation'>): string | undefined {
  return typeof conversation === 'string' ? conversation : conversation?.id
}

function summaryOf({ reasoning }: ResponsesRequest): string | null {
  return reasoning?.summary ?? reasoning?.generate_summary ?? null
}

/** Returns a function that returns its value, or the replacement if the values so far would exceed the maximum size. */
function fitting(bytesMax: number) {
  let left = bytesMax
  return <T, U>(value: T | null | undefined, instead: U): T | U => {
    if (value === null || value === undefined || !isSmall(value)) return instead
    const bytes = Buffer.byteLength(JSON.stringify(value))
    if (bytes > left) return instead
    left -= bytes
    return value
  }
}
