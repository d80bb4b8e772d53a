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
 * what the context window has left (contract B.6).
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
  if (room < 1) {
    throw new ServiceError(
      'context_length_exceeded',
      `This model's maximum context length is ${contextTokens} tokens. However, your messages resulted in ${inputTokens} tokens. Please reduce the length of the messages.`,
      { param: 'messages' },
    )
  }
  return { tokens: Math.min(wanted, room), isContextBound: room < wanted }
}
