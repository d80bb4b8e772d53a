import { z } from 'zod'
import { ERRORS, type ErrorCode } from '#schemas/error.ts'
import { FinishReason } from '#schemas/generate.ts'
import { ServiceError } from '#shared/error.ts'

/*
 * Wire grammar: when the first line of the last user turn starts with "!echo", it scripts the answer.
 *
 *   first line = "!echo" *( SP key "=" value )
 *   value      = JSON string | characters without spaces
 *
 * The lines after it are the text to say, unless `text` or `tokens` is given:
 *
 *   !echo first_ms=200 delay_ms=20 tokens=64
 *   !echo fail=overloaded after=3 retry_after_ms=500 failures=1
 *   !echo call=get_weather args="{\"city\":\"Paris\"}"
 */

const Milliseconds = z.coerce.number().int().min(0).max(3_600_000)

/** What the caller of the echo engine may script. Keys are those of the `!echo` line. */
export const Directive = z.strictObject({
  first_ms: Milliseconds.default(0).describe('Wait before the first token'),
  delay_ms: Milliseconds.default(0).describe('Wait before each further token'),
  text: z.string().optional().describe('Say this'),
  tokens: z.coerce.number().int().min(0).max(1_000_000).optional().describe('Say so many seeded words instead'),
  reasoning: z.string().optional().describe('Think this first'),
  refusal: z.string().optional().describe('Refuse with this, instead of a text'),
  finish: FinishReason.optional().describe('End for this reason'),
  filter: z
    .enum(['hate', 'self_harm', 'sexual', 'violence', 'jailbreak', 'profanity'])
    .optional()
    .describe('End for content_filter, with this category'),
  call: z.string().optional().describe('Call this tool, even one that was not offered'),
  args: z.string().optional().describe('JSON text of the arguments of each call; default: filled from the schema'),
  calls: z.coerce.number().int().min(1).max(128).default(1).describe('How often to call'),
  fail: z
    .enum(Object.keys(ERRORS) as [ErrorCode, ...ErrorCode[]])
    .optional()
    .describe('Fail with this error code'),
  after: z.coerce.number().int().min(0).optional().describe('Fail after so many tokens; absent: before the start'),
  failures: z.coerce.number().int().min(1).default(Number.MAX_SAFE_INTEGER).describe('Fail in so many first attempts'),
  retry_after_ms: Milliseconds.optional().describe('What the failure says about trying again'),
})
export type Directive = z.infer<typeof Directive>

/**
 * Splits a user's text into its script and what is left to say.
 *
 * @throws ServiceError `invalid_value` naming what is wrong with the `!echo` line
 */
export function readDirective(text: string): { directive: Directive; rest: string } {
  const [, line, rest = ''] = /^!echo\b([^\n]*)(?:\n([\s\S]*))?$/.exec(text) ?? []
  if (line === undefined) return { directive: Directive.parse({}), rest: text }
  const parsed = Directive.safeParse(readPairs(line))
  if (parsed.success) return { directive: parsed.data, rest }
  throw invalid(parsed.error.issues[0]?.message ?? 'malformed')
}

function readPairs(line: string): Record<string, string> {
  const pair = /\s+([a-z_]+)=("(?:[^"\\]|\\.)*"|[^\s"]*)(?=\s|$)/y
  const pairs: Record<string, string> = {}
  const trimmed = line.trimEnd()
  while (pair.lastIndex < trimmed.length) {
    const at = pair.lastIndex
    const [, key, value] = pair.exec(trimmed) ?? []
    if (key === undefined || value === undefined) throw invalid(`cannot read ${trimmed.slice(at).trim()}`)
    pairs[key] = value.startsWith('"') ? unquote(value) : value
  }
  return pairs
}

function unquote(value: string): string {
  try {
    return String(JSON.parse(value))
  } catch (cause) {
    throw new ServiceError('invalid_value', `Invalid !echo line: ${value} is not a JSON string.`, {
      cause,
      param: 'messages',
    })
  }
}

function invalid(problem: string): ServiceError {
  return new ServiceError('invalid_value', `Invalid !echo line: ${problem}.`, { param: 'messages' })
}
