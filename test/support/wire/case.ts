import { readFileSync } from 'node:fs'

/** API of the caller, with ` stream` after it for a streamed response. */
export type Way = 'chat' | 'chat stream' | 'messages' | 'messages stream' | 'responses' | 'responses stream'

/** Expectations of a response. Absent fields are not checked, except that a response without `status` must be a success. */
export interface Expected {
  /** HTTP status in the OpenAI format. */
  readonly status?: number
  /** Part of the error message. */
  readonly words?: string
  /** Text that the error message must not contain. */
  readonly hides?: string
  readonly param?: string
  /** Not retryable: no Retry-After, `x-should-retry: false`. */
  readonly isFinal?: boolean
  readonly text?: string
  readonly reasoning?: string
  /** Name and arguments of each tool call, in order; their ids must differ. */
  readonly calls?: readonly (readonly [string, object])[]
  /** Arguments of all tool calls are JSON objects, unless the response was truncated by its length. */
  readonly callsParse?: boolean
  readonly finish?: string
  /** Tokens of the input, of the output, and the cached tokens of the input. */
  readonly usage?: readonly number[]
  /** Parts of the body that one API must return. */
  readonly contains?: Partial<Record<Way, readonly string[]>>
  /** Alternative expectations. */
  readonly either?: readonly Expected[]
}

/** One upstream response, and the response that a caller must get. */
export interface WireCase {
  readonly name: string
  readonly upstream: 'openai' | 'anthropic' | 'responses'
  readonly status?: number
  readonly head?: Readonly<Record<string, string>>
  readonly body?: string
  readonly base64?: string
  /** Sent in place of `body`. */
  readonly bytes?: Buffer
  /** The connection after the body: ended (default), reset, or open and idle. */
  readonly after?: 'end' | 'reset' | 'idle'
  readonly expect: Expected
}

/** Responses that failed on 2026-11-25. */
export const SEEN: readonly WireCase[] = readFileSync(new URL('answers.jsonl', import.meta.url), 'utf8')
  .trimEnd()
  .split('\n')
  .map((line) => JSON.parse(line))
