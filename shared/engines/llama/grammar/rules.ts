import { ServiceError } from '#shared/lib/error.ts'
import { literal, type Match, matchOf, SchemaProblem } from './match.ts'

/*
 * Rules that the grammars of all schemas have in common. Optional whitespace is not generated, so `"key": value` has only one form. Otherwise a small
 * model sometimes generates whitespace forever.
 */

const SHARED_RULES = {
  value: 'object | array | string | number | "true" | "false" | "null"',
  object: '"{" (pair (", " pair)*)? "}"',
  pair: 'string ": " value',
  array: '"[" (value (", " value)*)? "]"',
  string: '"\\"" char* "\\""',
  // Escapes with \u are not generated. An unpaired surrogate would be valid JSON but invalid text.
  char: '[^"\\\\\\x00-\\x1F\\x7F] | "\\\\" ["\\\\/bfnrt]',
  integer: '"-"? ("0" | [1-9] [0-9]{0,14})',
  number: 'integer ("." [0-9]{1,6})?',
}

export const JSON_OBJECT_GRAMMAR = printGrammar({ root: 'object' })

/** Maximum tool names of a grammar. Each name is a parallel continuation, and the time per token grows with their number (match.ts). */
const WORDS_MAX = 1_000

export function writeWordsGrammar(words: readonly string[]): string {
  if (words.length > WORDS_MAX) {
    const message = `This model cannot choose among more than ${WORDS_MAX} tools.`
    throw new ServiceError('invalid_value', message, { param: 'tools' })
  }
  return `root ::= ${words.map((word) => JSON.stringify(word)).join(' | ')}`
}

function printGrammar(rules: Readonly<Record<string, string>>): string {
  return Object.entries({ ...rules, ...SHARED_RULES })
    .map(([name, body]) => `${name} ::= ${body}`)
    .join('\n')
}

const GRAMMAR_CHARS_MAX = 250_000
/** Maximum repetitions that llama.cpp unrolls for one grammar, at 3 µs each. Identical repetitions share one rule and count once. */
const UNROLLED_MAX = 8_000

export class RuleBook {
  readonly #rules = new Map<string, string>()
  readonly #names = new Map<string, string>()
  #characters = 0
  #unrolled = 0

  add(match: Match): Match {
    const { text } = match
    // A body of one word is already the name of a rule, so no new rule is needed.
    if (/^[a-z0-9]{1,20}$/.test(text)) return match
    let name = this.#names.get(text)
    if (name === undefined) {
      name = this.reserve()
      this.#names.set(text, name)
      this.write(name, text)
    }
    return { ...match, text: name }
  }

  readonly addText = (text: string): string => this.add(matchOf(text, '')).text

  reserve(): string {
    const name = `r${this.#rules.size}`
    this.open(name)
    return name
  }

  /**
   * Declares a rule before its body is known. llama.cpp rejects a rule without a body, so an unreachable rule keeps
   * this placeholder.
   */
  open(name: string): void {
    this.#rules.set(name, 'value')
  }

  write(name: string, text: string): void {
    this.#spend(text.length + 12)
    this.#rules.set(name, text)
  }

  literal(value: unknown): Match {
    const match = literal(JSON.stringify(value))
    this.#spend(match.text.length)
    return match
  }

  unroll(match: Match, repetitions: number): Match {
    if (!this.#names.has(match.text)) this.#unrolled += repetitions
    if (this.#unrolled > UNROLLED_MAX) throw new SchemaProblem('has too many length limits')
    return this.add(match)
  }

  print(): string {
    return printGrammar(Object.fromEntries(this.#rules))
  }

  #spend(characters: number): void {
    this.#characters += characters
    if (this.#characters > GRAMMAR_CHARS_MAX) throw new SchemaProblem('is too large')
  }
}

/** Maximum count of a repetition that is written as `{min,max}`. llama.cpp unrolls such a repetition, and rejects counts of about 2,000. */
const PLAIN_MAX = 256
const BLOCK = 64
/** A maximum above this number is treated as unbounded, because no context window can hold that many repetitions. */
const COUNTED_MAX = 10_000_000

interface Repetition {
  readonly text: string
  /** Factor by which the repetition multiplies the parallel continuations of the rule. Their number bounds the time per token (match.ts). */
  readonly ways: number
  readonly unrolled: number
}

/**
 * Repeats a rule. A count above 256 is written as nested blocks of 64, so that 100,000 characters need some hundred rules. For example, "up
 * to 300" is written as "up to 63, or else 64 followed by up to 236".
 *
 * @param add Creates a rule from a text and returns its name.
 */
export function repeated(rule: string, min: number, max: number, add: (text: string) => string): Repetition {
  const isOpen = max > COUNTED_MAX
  if (isOpen ? min <= PLAIN_MAX : max <= PLAIN_MAX) {
    return { text: `${rule}{${min},${isOpen ? '' : max}}`, ways: 1, unrolled: isOpen ? min : max }
  }
  const exact = exactly(rule, min, add)
  if (isOpen) return { text: `${exact.text} ${rule}*`, ways: 1, unrolled: exact.unrolled }
  const rest = upTo(rule, max - min, add)
  return { text: `${exact.text} ${rest.text}`.trim(), ways: rest.ways, unrolled: exact.unrolled + rest.unrolled }
}

function exactly(rule: string, count: number, add: (text: string) => string): Repetition {
  const parts: string[] = []
  let [unit, left, unrolled] = [rule, count, 0]
  while (left > 0) {
    if (left % BLOCK > 0) parts.push(`${unit}{${left % BLOCK}}`)
    unrolled += left % BLOCK
    left = Math.floor(left / BLOCK)
    if (left > 0) {
      unit = add(`${unit}{${BLOCK}}`)
      unrolled += BLOCK
    }
  }
  return { text: parts.join(' '), ways: 1, unrolled }
}

function upTo(rule: string, count: number, add: (text: string) => string): Repetition {
  if (count <= BLOCK) return { text: count === 0 ? '' : `${rule}{0,${count}}`, ways: 1, unrolled: count }
  const size = BLOCK ** Math.floor(Math.log(count) / Math.log(BLOCK) + 1e-9)
  const block = exactly(rule, size, add)
  const less = upTo(rule, size - 1, add)
  const rest = upTo(rule, count % size, add)
  const [blockRule, lessRule] = [add(block.text), add(less.text)]
  let text = add(rest.text || '""')
  const blocks = Math.floor(count / size)
  for (let index = 0; index < blocks; index++) text = add(`${lessRule} | ${blockRule} ${text}`)
  const unrolled = block.unrolled + less.unrolled + rest.unrolled + blocks
  return { text, ways: 1 + Math.max(less.ways, rest.ways), unrolled }
}
