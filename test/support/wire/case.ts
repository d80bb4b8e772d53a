import { readFileSync } from 'node:fs'

/** API by which a caller asks, with ` stream` after it if the answer is streamed. */
export type Way = 'chat' | 'chat stream' | 'messages' | 'messages stream' | 'responses' | 'responses stream'

/** Expectations of an answer. Absent fields are not looked at, except that an answer without `status` must be a good one. */
export interface Expected {
  /** HTTP status in the OpenAI format. */
  readonly status?: number
  /** Part of the message of the error. */
  readonly words?: string
  /** Text that the message of the error must not have. */
  readonly hides?: string
  readonly param?: string
  /** Nothing invites another try: no Retry-After, `x-should-retry: false`. */
  readonly isFinal?: boolean
  readonly text?: string
  readonly reasoning?: string
  /** Name and arguments of each call, in order; their ids must differ. */
  readonly calls?: readonly (readonly [string, object])[]
  /** Arguments of all calls are JSON objects, unless the answer was cut by its length. */
  readonly callsParse?: boolean
  readonly finish?: string
  /** Tokens of the input, of the output, and those of the input that were cached. */
  readonly usage?: readonly number[]
  /** Parts of the body that one way must have. */
  readonly contains?: Partial<Record<Way, readonly string[]>>
  /** Several good answers. */
  readonly either?: readonly Expected[]
}

/** One answer of an upstream, and what a caller is to get of it. */
export interface WireCase {
  readonly name: string
  readonly upstream: 'openai' | 'anthropic' | 'responses'
  readonly status?: number
  readonly head?: Readonly<Record<string, string>>
  readonly body?: string
  readonly base64?: string
  /** Sent in place of `body`. */
  readonly bytes?: Buffer
  /** The connection after the body: ended (default), broken, or open and silent. */
  readonly after?: 'end' | 'reset' | 'idle'
  readonly expect: Expected
}

/** The answers that failed on 2026-11-25. */
export const SEEN: readonly WireCase[] = readFileSync(new URL('answers.jsonl', import.meta.url), 'utf8')
  .trimEnd()
  .split('\n')
  .map((line) => JSON.parse(line))
