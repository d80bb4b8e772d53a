import { z } from 'zod'
import type { ErrorCode } from '#schemas/error.ts'
import { ServiceError } from '#shared/lib/error.ts'

/**
 * Style of error messages. `openai`: the sentence contains the name of the field. `messages` (Anthropic): the path of
 * the field precedes the sentence.
 */
export type Wording = 'openai' | 'messages'

const EXCERPT_CHARS_MAX = 64
const PARAM_CHARS_MAX = 256

function paramOf(path: readonly PropertyKey[]): string | null {
  let param = ''
  for (const key of path) param += typeof key === 'number' ? `[${key}]` : `${param === '' ? '' : '.'}${String(key)}`
  return param === '' ? null : beginningOf(param, PARAM_CHARS_MAX)
}

interface Problem {
  code: ErrorCode
  openai: string
  messages: string
}

export function problemError(issue: z.core.$ZodIssue, body: unknown, wording: Wording): ServiceError {
  const cause = deepest(issue)
  const param = paramOf(cause.path)
  const value = issue.code === 'invalid_key' ? issue.path.at(-1) : valueAt(body, cause.path)
  const found = describe(cause, value, param ?? 'body')
  return new ServiceError(found.code, found[wording], { param })
}

type Issue = z.core.$ZodIssue

/**
 * Returns the most specific issue. For a value that matches no branch of a union, zod reports one issue per branch. Only the issue of the branch
 * with the type or discriminator of the value helps the caller.
 */
export function deepest(issue: Issue): Issue {
  if (issue.code === 'invalid_key' && issue.issues[0] !== undefined) return { ...issue.issues[0], path: issue.path }
  if (issue.code !== 'invalid_union') return issue
  const branch = issue.errors.find(([first]) => first !== undefined && !isOtherKind(first))?.[0]
  return branch === undefined ? issue : deepest({ ...branch, path: [...issue.path, ...branch.path] })
}

function isOtherKind(issue: Issue): boolean {
  return issue.code === 'invalid_type' && issue.path.length === 0
}

function valueAt(body: unknown, path: readonly PropertyKey[]): unknown {
  let value = body
  for (const key of path) {
    if (typeof value !== 'object' || value === null || !Object.hasOwn(value, key)) return undefined
    value = (value as Record<PropertyKey, unknown>)[key]
  }
  return value
}

function describe(issue: Issue, value: unknown, field: string): Problem {
  if (value === undefined) return missing(field)
  if (issue.code === 'invalid_type' && isInfinite(value)) return infinite(field)
  switch (issue.code) {
    case 'invalid_type':
      return wrongType([issue.expected], value, field)
    case 'not_multiple_of':
      return wrongType(['int'], value, field)
    case 'invalid_union':
      return issue.errors.length === 0
        ? wrongChoice((issue as { options?: unknown[] }).options ?? [], value)
        : wrongType(issue.errors.map(expectedOf), value, field)
    case 'invalid_value':
      return wrongChoice(issue.values, value)
    case 'too_big':
      return outOfBounds(issue.origin, Number(issue.maximum), value, field, true, issue.message)
    case 'too_small':
      return outOfBounds(issue.origin, Number(issue.minimum), value, field, false, issue.message)
    case 'invalid_format':
      return wrongFormat(expectedOfFormat(issue), field)
    default:
      return { code: 'invalid_value', openai: `Invalid '${field}'.`, messages: 'Invalid value' }
  }
}

function expectedOf(branch: Issue[]): string {
  const [first] = branch
  return first?.code === 'invalid_type' ? first.expected : 'value'
}

function missing(field: string): Problem {
  return {
    code: 'missing_required_parameter',
    openai: `Missing required parameter: '${field}'.`,
    messages: 'Field required',
  }
}

/**
 * Whether a number exceeds the range of a double. For example, `JSON.parse` reads 1e400 as Infinity. Texts are checked
 * too, because a number in a query string is not parsed yet.
 */
function isInfinite(value: unknown): boolean {
  const isNumeric = typeof value === 'number' || (typeof value === 'string' && /^[-+]?\d[\d.]*(e\+?\d+)?$/i.test(value))
  return isNumeric && Math.abs(Number(value)) === Infinity
}

function infinite(field: string): Problem {
  const expected = `a finite number of at most ${Number.MAX_VALUE}`
  return {
    code: 'invalid_type',
    openai: `Invalid '${field}': the number is too large. Expected ${expected}.`,
    messages: `Input is too large: it should be ${expected}`,
  }
}

const KINDS: Record<string, string> = {
  int: 'an integer',
  array: 'an array',
  object: 'an object',
  record: 'an object',
  null: 'null',
}

function wrongType(expected: readonly string[], value: unknown, field: string): Problem {
  const wanted = expected.map((kind) => KINDS[kind] ?? `a ${kind}`).join(' or ')
  const got = kindOf(value, expected.includes('int'))
  return {
    code: 'invalid_type',
    openai: `Invalid type for '${field}': expected ${wanted}, but got ${got} instead.`,
    messages: `Input should be ${wanted}, not ${got}`,
  }
}

function kindOf(value: unknown, integerWanted: boolean): string {
  if (value === null) return 'null'
  if (Array.isArray(value)) return 'an array'
  if (typeof value === 'object') return 'an object'
  if (typeof value !== 'number') return `a ${typeof value}`
  if (Number.isInteger(value)) return 'an integer'
  return integerWanted ? 'a decimal number' : 'a number'
}

function wrongChoice(options: readonly unknown[], value: unknown): Problem {
  const quoted = options.map((option) => `'${String(option)}'`)
  const got = typeof value === 'string' ? `'${excerpt(value)}'` : kindOf(value, false)
  return {
    code: 'invalid_value',
    openai: `Invalid value: ${got}. Supported values are: ${quoted.join(', ')}.`,
    messages: `Input should be ${quoted.join(' or ')}, not ${got}`,
  }
}

export function excerpt(value: string): string {
  return value.length <= EXCERPT_CHARS_MAX ? value : `${beginningOf(value, EXCERPT_CHARS_MAX)}…`
}

export function beginningOf(text: string, charsMax: number): string {
  const cut = text.slice(0, charsMax)
  return (cut.length < text.length && /[\ud800-\udbff]$/.test(cut) ? cut.slice(0, -1) : cut).toWellFormed()
}

/**
 * Describes an expected format in the words of the schema's message, which may contain an example. Most callers cannot
 * use the regular expression.
 */
function expectedOfFormat({ format, message, pattern = format }: FormatIssue): { words?: string; pattern: string } {
  if (format === 'date') return { words: 'a valid date such as 2030-01-31', pattern }
  const [, words] = /^(?:must be|Expected) (.*)$/.exec(message) ?? []
  return { pattern, ...(words !== undefined && { words }) }
}

interface FormatIssue {
  readonly format: string
  readonly message: string
  readonly pattern?: string | undefined
}

function wrongFormat({ words, pattern }: { words?: string; pattern: string }, field: string): Problem {
  if (words !== undefined) {
    const openai = `Invalid '${field}': expected ${words}.`
    return { code: 'invalid_value', openai, messages: `Input should be ${words}` }
  }
  const shown = pattern.replace(/^\/(.*)\/\w*$/, '$1')
  return {
    code: 'invalid_value',
    openai: `Invalid '${field}': string does not match pattern. Expected a string that matches the pattern '${shown}'.`,
    messages: `String should match pattern '${shown}'`,
  }
}

/**
 * Describes a number outside its range, or a text or list with a wrong length.
 *
 * @param note Message of the limit in the schema. `decimal` if the number may have a fraction
 */
function outOfBounds(
  origin: string,
  bound: number,
  value: unknown,
  field: string,
  above: boolean,
  note: string,
): Problem {
  if (origin === 'string' || origin === 'array') {
    const length = typeof value === 'string' ? z.core.util.codePointLength(value) : (value as unknown[]).length
    return wrongLength(origin, bound, length, field, above)
  }
  const kind = note === 'decimal' ? 'decimal' : 'integer'
  const [side, sign] = above ? (['above_max', '<='] as const) : (['below_min', '>='] as const)
  const words = above ? 'above maximum value' : 'below minimum value'
  return {
    code: `${kind}_${side}_value`,
    openai: `Invalid '${field}': ${kind} ${words}. Expected a value ${sign} ${bound}, but got ${String(value)} instead.`,
    messages: `Input should be ${above ? 'less' : 'greater'} than or equal to ${bound}`,
  }
}

function wrongLength(kind: 'string' | 'array', bound: number, length: number, field: string, above: boolean): Problem {
  const extreme = above ? 'maximum' : 'minimum'
  const fault = above ? `${kind} too long` : length === 0 ? `empty ${kind}` : `${kind} too short`
  const got = length === 0 ? `an empty ${kind}` : `${KINDS[kind] ?? `a ${kind}`} with length ${length}`
  const unit = kind === 'array' ? 'item' : 'character'
  return {
    code: lengthCode(kind, length, above),
    openai: `Invalid '${field}': ${fault}. Expected ${kind === 'array' ? 'an' : 'a'} ${kind} with ${extreme} length ${bound}, but got ${got} instead.`,
    messages: `${kind === 'array' ? 'List' : 'String'} should have at ${above ? 'most' : 'least'} ${bound} ${unit}${bound === 1 ? '' : 's'}, not ${length}`,
  }
}

function lengthCode(kind: 'string' | 'array', length: number, above: boolean): ErrorCode {
  if (above) return `${kind}_above_max_length`
  if (kind === 'string') return 'empty_string'
  return length === 0 ? 'empty_array' : 'array_below_min_length'
}
