import { z } from 'zod'
import { ChatRequest } from './chat.ts'

/** Maximum alternatives per token. OpenAI allows at most 5, and other servers allow 20. */
const LOGPROBS_MAX = 20

const { model, stream, stream_options, temperature, top_p, stop, presence_penalty, frequency_penalty } =
  ChatRequest.shape
const { n, logit_bias, seed, user, metadata } = ChatRequest.shape

/**
 * Body of `POST /v1/completions` (docs/reference/compatibility.md, Completions). The decoder checks `prompt`, and passes unknown fields to an
 * upstream server with the same API.
 */
export const CompletionsRequest = z.looseObject({
  ...{ model, stream, stream_options, temperature, top_p, stop, presence_penalty, frequency_penalty },
  ...{ n, logit_bias, seed, user, metadata },
  prompt: z.unknown().describe('A string, a list of strings, a list of tokens, or a list of token lists'),
  max_tokens: z
    .int()
    .min(0)
    .nullish()
    .describe('Maximum output tokens. Default: 16. 0 is allowed only with echo and returns the prompt'),
  best_of: z
    .int()
    .min(1)
    .max(128)
    .nullish()
    .describe('Completions generated per prompt, of which the best n are returned'),
  echo: z.boolean().nullish().describe('Return the prompt before the completion'),
  suffix: z.string().nullish().describe('Text after the generated text'),
  logprobs: z
    .int()
    .min(0)
    .max(LOGPROBS_MAX)
    .nullish()
    .describe('Number of alternatives per token with log probabilities'),
})
export type CompletionsRequest = z.infer<typeof CompletionsRequest>

/** Log probabilities of the tokens of a choice. Each of the four lists has one entry per token. */
export interface CompletionLogprobs {
  tokens: string[]
  token_logprobs: (number | null)[]
  /**
   * Most likely tokens per position. An entry is null for the first token of a prompt. The list is null if the client did not request alternatives.
   */
  top_logprobs: (Record<string, number> | null)[] | null
  text_offset: number[]
}

/** One choice of a response or of a chunk. In a stream only the last chunk has a `finish_reason`. */
export interface CompletionChoice {
  index: number
  text: string
  logprobs: CompletionLogprobs | null
  finish_reason: 'stop' | 'length' | 'content_filter' | null
  content_filter_results?: Record<string, unknown>
}
