import { TOKENS_MAX } from '#schemas/embeddings.ts'
import { ServiceError } from '#shared/error.ts'

/** What the ingress sees at a glance and a worker by counting: inputs that are too long. */

/** Bytes of the longest token of any encoding we count in: a text has at least this part of its bytes in tokens. */
export const TOKEN_BYTES_MAX = 128

/** Bytes of base64 that one vector may have: 4,096 numbers, and what JSON adds. */
const VECTOR_BYTES_MAX = 24 * 1024

/** Bytes that the answer to so many inputs may have. */
export function answerBytesMax(inputs: number): number {
  return (inputs + 4) * VECTOR_BYTES_MAX
}

/** @param tokens How many it has, as a number or in words */
export function inputTooLong(index: number, tokens: number | string, most: number): ServiceError {
  const message = `Input ${index} has ${tokens} tokens; this model takes at most ${most} in one input.`
  return new ServiceError('context_length_exceeded', message, { param: 'input' })
}

/** The inputs are short enough, but too many. */
export function inputsTooLong(): ServiceError {
  const message = `The inputs have more than ${TOKENS_MAX} tokens together, which is the most of one request.`
  return new ServiceError('context_length_exceeded', message, { param: 'input' })
}
