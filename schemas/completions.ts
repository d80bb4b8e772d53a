import { z } from 'zod'
import { ChatRequest } from './chat.ts'

/** Most log probabilities of other tokens beside each; OpenAI's own limit is 5, that of other servers 20. */
const LOGPROBS_MAX = 20

const { model, stream, stream_options, temperature, top_p, stop, presence_penalty, frequency_penalty } =
  ChatRequest.shape
const { n, logit_bias, seed, user, metadata } = ChatRequest.shape

/**
 * The wire shape of `POST /v1/completions` (docs/protocol.md, Completions) but for `prompt`, whose four forms are told apart by
 * hand. Objects are loose: unknown fields go along to an upstream of the dialect.
 */
export const CompletionsRequest = z.looseObject({
  ...{ model, stream, stream_options, temperature, top_p, stop, presence_penalty, frequency_penalty },
  ...{ n, logit_bias, seed, user, metadata },
  prompt: z.unknown(),
  max_tokens: z.int().min(0).nullish().describe('Default: 16. 0 only with echo: nothing but the prompt is given'),
  best_of: z.int().min(1).max(128).nullish(),
  echo: z.boolean().nullish(),
  suffix: z.string().nullish(),
  logprobs: z.int().min(0).max(LOGPROBS_MAX).nullish(),
})
export type CompletionsRequest = z.infer<typeof CompletionsRequest>

/** Log probabilities of the tokens of a choice, in the old form: lists of one length. */
export interface CompletionLogprobs {
  tokens: string[]
  /** Null of a prompt's first token. */
  token_logprobs: (number | null)[]
  /** The likeliest tokens of each place; null where none were asked for, and for the first token of a prompt. */
  top_logprobs: (Record<string, number> | null)[] | null
  /** Characters (code points) of the choice before each token. */
  text_offset: number[]
}

/** One choice, whole or in a chunk, where `finish_reason` is null but for its last. */
export interface CompletionChoice {
  index: number
  text: string
  logprobs: CompletionLogprobs | null
  finish_reason: 'stop' | 'length' | 'content_filter' | null
  /** What the content filter or an upstream found. */
  content_filter_results?: Record<string, unknown>
}
