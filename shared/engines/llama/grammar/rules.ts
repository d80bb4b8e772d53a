import { ServiceError } from '#shared/error.ts'

/*
 * What the grammars of all schemas share. Values are written in one way only, "key": value, with no free white space: a
 * small model that may write blanks writes them for ever.
 */

const SHARED_RULES = {
  value: 'object | array | string | number | "true" | "false" | "null"',
  object: '"{" (pair (", " pair)*)? "}"',
  pair: 'string ": " value',
  array: '"[" (value (", " value)*)? "]"',
  string: '"\\"" char* "\\""',
  // No \u escapes: half a surrogate pair would be valid JSON and broken text.
  char: '[^"\\\\\\x00-\\x1F\\x7F] | "\\\\" ["\\\\/bfnrt]',
  integer: '"-"? ("0" | [1-9] [0-9]{0,14})',
  number: 'integer ("." [0-9]{1,6})?',
}

/** Grammar of any JSON object. */
export const JSON_OBJECT_GRAMMAR = printGrammar({ root: 'object' })

/** Most words to choose from: all of them are ways to go on (match.ts). */
const WORDS_MAX = 1_000

/** Grammar of exactly one of these names of tools. @throws ServiceError `invalid_value` when there are too many */
export function writeWordsGrammar(words: readonly string[]): string {
  if (words.length > WORDS_MAX) {
    const message = `This model cannot choose among more than ${WORDS_MAX} tools.`
    throw new ServiceError('invalid_value', message, { param: 'tools' })
  }
  return `root ::= ${words.map((word) => JSON.stringify(word)).join(' | ')}`
}

/** The text of a grammar: these rules, and those that all grammars share. */
export function printGrammar(rules: Readonly<Record<string, string>>): string {
  return Object.entries({ ...rules, ...SHARED_RULES })
    .map(([name, body]) => `${name} ::= ${body}`)
    .join('\n')
}
