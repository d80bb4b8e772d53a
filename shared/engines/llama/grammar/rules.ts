import { ServiceError } from '#shared/lib/error.ts'

/*
 * Rules that the grammars of all schemas share. Values have only one form, `"key": value` without optional whitespace: a small model that
 * may generate whitespace generates it forever.
 */

const SHARED_RULES = {
  value: 'object | array | string | number | "true" | "false" | "null"',
  object: '"{" (pair (", " pair)*)? "}"',
  pair: 'string ": " value',
  array: '"[" (value (", " value)*)? "]"',
  string: '"\\"" char* "\\""',
  // No \u escapes: an unpaired surrogate would be valid JSON and invalid text.
  char: '[^"\\\\\\x00-\\x1F\\x7F] | "\\\\" ["\\\\/bfnrt]',
  integer: '"-"? ("0" | [1-9] [0-9]{0,14})',
  number: 'integer ("." [0-9]{1,6})?',
}

export const JSON_OBJECT_GRAMMAR = printGrammar({ root: 'object' })

/** Maximum words of a choice, since all of them are continuations (match.ts). */
const WORDS_MAX = 1_000

/** Grammar of exactly one of these tool names. @throws ServiceError `invalid_value` if there are too many */
export function writeWordsGrammar(words: readonly string[]): string {
  if (words.length > WORDS_MAX) {
    const message = `This model cannot choose among more than ${WORDS_MAX} tools.`
    throw new ServiceError('invalid_value', message, { param: 'tools' })
  }
  return `root ::= ${words.map((word) => JSON.stringify(word)).join(' | ')}`
}

/** The text of a grammar: these rules and the shared ones. */
export function printGrammar(rules: Readonly<Record<string, string>>): string {
  return Object.entries({ ...rules, ...SHARED_RULES })
    .map(([name, body]) => `${name} ::= ${body}`)
    .join('\n')
}
