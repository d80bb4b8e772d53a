import type { Token } from 'node-llama-cpp'
import type { GenerateRequest } from '#schemas/generate.ts'
import { contextExceeded } from '#shared/engines/stop.ts'
import { ServiceError } from '#shared/error.ts'
import { runYielding } from '#shared/yielding.ts'
import type { LlamaRuntime } from './runtime.ts'
import { tokenizeRaw } from './tokens.ts'

/**
 * Raw prompts of completions, without a chat template. Text such as `<|im_start|>` is read as a control token, as in servers of open
 * models.
 */

/**
 * The tokens of the request's only prompt, with a BOS token if the model wants one.
 *
 * @throws ServiceError `invalid_value` for an unknown token id, `context_length_exceeded`; the signal's reason
 */
export async function rawTokensOf(
  runtime: LlamaRuntime,
  request: GenerateRequest,
  signal: AbortSignal,
): Promise<Token[]> {
  const { model, contextTokens, tokenBytesMax } = runtime
  const [given] = request.completion?.tokens ?? []
  if (given) return knownTokens(runtime, given)
  const text = textOf(request)
  const least = Math.ceil(Buffer.byteLength(text) / tokenBytesMax)
  if (least >= contextTokens) throw inPrompt(contextExceeded(contextTokens, `over ${least - 1}`))
  const tokens = await runYielding(tokenizeRaw(model, text), signal)
  const { bos, shouldPrependBosToken } = model.tokens
  if (bos !== null && shouldPrependBosToken && tokens[0] !== bos) tokens.unshift(bos)
  return requireFitting(runtime, tokens)
}

/** The prompt text, for requests with `echo`. */
export function rawTextOf({ model }: LlamaRuntime, request: GenerateRequest): string {
  const [given] = request.completion?.tokens ?? []
  return given ? model.detokenize(given as Token[], true) : textOf(request)
}

function textOf({ turns: [turn] }: GenerateRequest): string {
  const [part] = turn?.parts ?? []
  return part?.type === 'text' ? part.text : ''
}

function knownTokens(runtime: LlamaRuntime, given: readonly number[]): Token[] {
  const vocabulary = runtime.model.fileInfo.metadata.tokenizer.ggml.tokens.length
  const unknown = given.find((id) => id >= vocabulary)
  if (unknown !== undefined) {
    const message = `Invalid 'prompt': ${unknown} is not a token of this model (0 to ${vocabulary - 1}).`
    throw new ServiceError('invalid_value', message, { param: 'prompt' })
  }
  return requireFitting(runtime, [...given] as Token[])
}

function requireFitting({ contextTokens }: LlamaRuntime, tokens: Token[]): Token[] {
  if (tokens.length >= contextTokens) throw inPrompt(contextExceeded(contextTokens, tokens.length))
  return tokens
}

/** Rewrites the error for the parameter `prompt`. */
function inPrompt({ code, message }: ServiceError): ServiceError {
  return new ServiceError(code, message.replaceAll('messages', 'prompt'), { param: 'prompt' })
}
