import type { GenerateRequest } from '#schemas/generate.ts'
import type { ModelConfig } from '#schemas/models.ts'
import { ServiceError } from '#shared/error.ts'

/** How much an answer may grow. */
export interface Budget {
  /** Most output tokens of one choice, at least 1. */
  readonly tokens: number
  /** At that length the context window is full; otherwise a limit was asked for or configured. */
  readonly isContextBound: boolean
}

/**
 * The room for one choice: the caller's max_tokens (else the model's default), clamped to the model's ceiling and to
 * what the context window has left (docs/protocol.md, Token limits).
 *
 * @param contextTokens Size of the window; undefined: unbounded
 * @throws ServiceError `context_length_exceeded` when the prompt leaves no room
 */
export function getBudget(
  request: GenerateRequest,
  model: ModelConfig,
  inputTokens: number,
  contextTokens: number | undefined,
): Budget {
  const { max_output_tokens: ceiling, default_output_tokens: usual } = model.limits
  const wanted = Math.min(request.max_tokens ?? usual ?? Number.MAX_SAFE_INTEGER, ceiling ?? Number.MAX_SAFE_INTEGER)
  if (contextTokens === undefined) return { tokens: wanted, isContextBound: false }
  const room = contextTokens - inputTokens
  if (room < 1) throw contextExceeded(contextTokens, inputTokens)
  return { tokens: Math.min(wanted, room), isContextBound: room < wanted }
}

/** The refusal of a prompt that leaves no room for an answer. @param tokens How many it has, as a number or in words */
export function contextExceeded(contextTokens: number, tokens: number | string): ServiceError {
  const message = `This model's maximum context length is ${contextTokens} tokens. However, your messages resulted in ${tokens} tokens. Please reduce the length of the messages.`
  return new ServiceError('context_length_exceeded', message, { param: 'messages' })
}
