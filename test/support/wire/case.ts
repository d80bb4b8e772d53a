import { readFileSync } from 'node:fs'

/** API that the caller uses. The suffix ` stream` means a streamed response. */
export type Way = 'chat' | 'chat stream' | 'messages' | 'messages stream' | 'responses' | 'responses stream'

/** Expected response. Absent fields are not checked, with one exception: if `status` is absent, then the response must be a success. */
export interface Expected {
  /** HTTP status of the response in the APIs of OpenAI. Anthropic's API has other statuses for some errors. */
  readonly status?: number
  /** Text that the error message must contain. */
  readonly words?: string
  /** Text that the error message must not contain. */
  readonly hides?: string
  readonly param?: string
  /** True if the error must not be retried: it has no Retry-After, and `x-should-retry: false`. */
  readonly isFinal?: boolean
  readonly text?: string
  readonly reasoning?: string
  /** Name and arguments of each tool call, in order; their ids must differ. */
  readonly calls?: readonly (readonly [string, object])[]
  /** If true, then the arguments of all tool calls must be JSON objects, unless the response was truncated because of its length. */
  readonly callsParse?: boolean
  readonly finish?: string
  /** Expected token counts: input, output, and cached tokens of the input. */
  readonly usage?: readonly number[]
  /** For each API: texts that the response body must contain. */
  readonly contains?: Partial<Record<Way, readonly string[]>>
  /** The response must meet at least one of these expectations. */
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
  /** Raw bytes that the upstream sends in place of `body`. */
  readonly bytes?: Buffer
  /** Behaviour of the connection after the body: closed normally (default), reset, or left open without data. */
  readonly after?: 'end' | 'reset' | 'idle'
  readonly expect: Expected
}

/** Responses of real servers that an earlier version of Sluice handled wrongly (found on 2026-11-25). */
export const SEEN: readonly WireCase[] = readFileSync(new URL('answers.jsonl', import.meta.url), 'utf8')
  .trimEnd()
  .split('\n')
  .map((line) => JSON.parse(line))
