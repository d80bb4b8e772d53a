/*
 * Counts and decodes tokens in a thread.
 *
 * The problem: a vocabulary takes 60 to 120 MB, and its import 0.2 s without a yield. Texts without spaces take long to count. On the event loop, each
 * of these would delay all other calls of the process.
 *
 * The thread starts with the first task, because most upstream servers count tokens themselves. Long texts are sent in pieces, so that the tasks
 * of other calls run in between.
 */

import type { ModelConfig } from '#schemas/models.ts'
import { cutAfter } from '#shared/engines/token-cuts.ts'
import { ServiceError } from '#shared/lib/error.ts'
import { replyOf, SerialThread, startThread } from '#shared/process/serial-thread.ts'

export type TokenEncoding = ModelConfig['embeddings']['token_encoding']

export type TokenizerTask = { readonly encoding: TokenEncoding } & (
  | { readonly text: string; readonly ids?: undefined }
  | { readonly text?: undefined; readonly ids: readonly number[] }
)
export type TokenizerReply =
  | { readonly tokens: number }
  | { readonly text: string }
  /** Error reply to token ids: the position of the first id that the vocabulary lacks. */
  | { readonly unknown: number }

/** Maximum characters per task, which take at most 0.1 s. */
const PIECE_CHARS = 32 * 1024
/** Timeout of a task in ms. The first task of a thread also loads the vocabulary. */
const TASK_MS = 20_000
const HEAP_MB = 768

const thread = new SerialThread(async () => startThread(new URL('./thread.ts', import.meta.url), HEAP_MB))

/**
 * Counts the tokens of a text, and stops soon after `most` tokens. Text that looks like a special token counts as plain text.
 *
 * A run of more than 1,024 characters without a space may count one or two tokens too many. All other counts are exact.
 *
 * @throws The signal's reason
 */
export async function countTokens(
  encoding: TokenEncoding,
  text: string,
  signal: AbortSignal,
  most = Number.POSITIVE_INFINITY,
): Promise<number> {
  let tokens = 0
  for (let at = 0; at < text.length && tokens <= most; ) {
    const end = cutAfter(text, at, PIECE_CHARS)
    const reply = await runTask({ encoding, text: text.slice(at, end) }, signal)
    if ('tokens' in reply) tokens += reply.tokens
    at = end
  }
  return tokens
}

/**
 * Returns the text of token ids. Bytes that are not valid UTF-8 become U+FFFD.
 *
 * @param pathOf Returns the path of an unknown id by its position, such as `input[2][5]`
 * @throws ServiceError `invalid_value` for an unknown id. The signal's reason
 */
export async function decodeTokens(
  encoding: TokenEncoding,
  ids: readonly number[],
  signal: AbortSignal,
  pathOf: (place: number) => string,
): Promise<string> {
  const reply = await runTask({ encoding, ids }, signal)
  if ('text' in reply) return reply.text
  const place = 'unknown' in reply ? reply.unknown : 0
  const param = pathOf(place)
  throw new ServiceError('invalid_value', `Invalid '${param}': ${ids[place]} is not a token of this model.`, { param })
}

function runTask(task: TokenizerTask, signal: AbortSignal): Promise<TokenizerReply> {
  return thread.run((worker) => replyOf<TokenizerReply>(worker, TASK_MS, task), signal)
}
