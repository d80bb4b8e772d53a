import { literal, type Match, matchOf, SchemaProblem } from './match.ts'
import { printGrammar } from './rules.ts'

const GRAMMAR_CHARS_MAX = 250_000
/** Maximum unrolled repetitions of one grammar; each costs 3 µs. Equal ones are written once. */
const UNROLLED_MAX = 8_000

/** The rules of one grammar in progress; equal bodies become one rule. */
export class RuleBook {
  readonly #rules = new Map<string, string>()
  readonly #names = new Map<string, string>()
  #characters = 0
  #unrolled = 0

  add(match: Match): Match {
    const { text } = match
    // A body of one word is already a rule name.
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

  /** Declares a rule. A rule that is never written is unreachable, but llama.cpp rejects a rule without a body. */
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
    if (this.#characters > GRAMMAR_CHARS_MAX) throw new SchemaProblem('results in a grammar that is too large')
  }
}
