import {
  complement,
  END,
  EVERY_CODE_POINT,
  type Language,
  type Languages,
  type Ranges,
  START,
  setOf,
  union,
} from './language.ts'
import { SchemaProblem } from './match.ts'

/*
 * Converts regular expressions of JSON Schema (ECMA-262 with the flag u, unanchored) into languages. All regular constructs are supported, including
 * lookaheads. For example, `(?=a)b` is the intersection of the texts that begin with a and those that begin with b. Not supported are backreferences,
 * `\b`, lookbehinds, `\p{…}` and flags in groups.
 */

const PATTERN_CHARS_MAX = 1_000
const GROUPS_MAX = 100
const COUNT_MAX = 1_000

const DIGITS: Ranges = [[0x30, 0x39]]
const WORD = union(DIGITS, [
  [0x41, 0x5a],
  [0x5f, 0x5f],
  [0x61, 0x7a],
])
const SPACE = union(
  setOf(
    '\t',
    '\n',
    '\v',
    '\f',
    '\r',
    ' ',
    '\u00a0',
    '\u1680',
    '\u2028',
    '\u2029',
    '\u202f',
    '\u205f',
    '\u3000',
    '\ufeff',
  ),
  [[0x2000, 0x200a]],
)
const LINE_END = setOf('\n', '\r', '\u2028', '\u2029')
const CLASSES: ReadonlyMap<string, Ranges> = new Map([
  ['d', DIGITS],
  ['D', complement(DIGITS)],
  ['w', WORD],
  ['W', complement(WORD)],
  ['s', SPACE],
  ['S', complement(SPACE)],
])
const CONTROLS: ReadonlyMap<string, string> = new Map([
  ['t', '\t'],
  ['n', '\n'],
  ['r', '\r'],
  ['f', '\f'],
  ['v', '\v'],
  ['0', '\0'],
])

type Node =
  | { readonly kind: 'chars'; readonly set: Ranges }
  | { readonly kind: 'start' }
  | { readonly kind: 'end' }
  | { readonly kind: 'all'; readonly of: readonly Node[] }
  | { readonly kind: 'any'; readonly of: readonly Node[] }
  | { readonly kind: 'repeat'; readonly of: Node; readonly min: number; readonly max: number }
  | { readonly kind: 'ahead'; readonly of: Node; readonly isNegative: boolean }

/**
 * Returns the language of all texts that contain a match of the pattern.
 *
 * @throws SchemaProblem for an invalid pattern, or for a construct that is not regular
 */
export function patternLanguage(languages: Languages, pattern: string): Language {
  const known = languages.patterns.get(pattern)
  if (known) return known
  if (pattern.length > PATTERN_CHARS_MAX)
    throw new SchemaProblem(`has a pattern of more than ${PATTERN_CHARS_MAX} characters`)
  const node = new Parser(pattern).parse()
  requireSingle(node)
  const { every } = languages
  const language = languages.concat(every, followed(languages, node, every))
  languages.patterns.set(pattern, language)
  return language
}

function followed(languages: Languages, node: Node, rest: Language): Language {
  switch (node.kind) {
    case 'chars':
      return languages.concat(languages.chars(node.set), rest)
    case 'start':
      return languages.concat(languages.chars([[START, START]]), rest)
    case 'end':
      return languages.concat(languages.chars([[END, END]]), rest)
    case 'all':
      return node.of.reduceRight((after, inner) => followed(languages, inner, after), rest)
    case 'any':
      return languages.any(node.of.map((inner) => followed(languages, inner, rest)))
    case 'repeat':
      return languages.concat(languages.repeat(followed(languages, node.of, languages.empty), node.min, node.max), rest)
    case 'ahead': {
      const ahead = followed(languages, node.of, languages.every)
      return languages.all([node.isNegative ? languages.not(ahead) : ahead, rest])
    }
  }
}

/** Maximum number of `^` and of `$` that one match of the nodes contains, and whether the nodes contain a lookahead. */
interface Anchors {
  readonly starts: number
  readonly ends: number
  readonly hasAhead: boolean
}

/**
 * Rejects anchors that cannot be replaced with the marks START and END. An anchor has no width, but a mark is a character that a match consumes. Each
 * anchor may therefore occur only once in a match, and not in a repetition. A lookahead must not contain `^` or follow `$`.
 */
function requireSingle(node: Node): Anchors {
  if (node.kind === 'chars') return { starts: 0, ends: 0, hasAhead: false }
  if (node.kind === 'start') return { starts: 1, ends: 0, hasAhead: false }
  if (node.kind === 'end') return { starts: 0, ends: 1, hasAhead: false }
  if (node.kind === 'ahead') {
    if (requireSingle(node.of).starts > 0) throw unsupported("'^' in a lookahead")
    return { starts: 0, ends: 0, hasAhead: true }
  }
  if (node.kind === 'repeat') {
    const inner = requireSingle(node.of)
    if (inner.hasAhead) throw unsupported('a lookahead that is repeated')
    if (inner.starts + inner.ends > 0 && node.max > 1) throw unsupported("'^' or '$' that is repeated")
    return inner
  }
  let [starts, ends, hasAhead] = [0, 0, false]
  for (const one of node.of) {
    const inner = requireSingle(one)
    if (node.kind === 'all' && ends > 0 && inner.hasAhead) throw unsupported("a lookahead behind '$'")
    starts = node.kind === 'all' ? starts + inner.starts : Math.max(starts, inner.starts)
    ends = node.kind === 'all' ? ends + inner.ends : Math.max(ends, inner.ends)
    hasAhead ||= inner.hasAhead
  }
  if (starts > 1 || ends > 1) throw unsupported("more than one '^' or '$' in a row")
  return { starts, ends, hasAhead }
}

function unsupported(construct: string): SchemaProblem {
  return new SchemaProblem(`has a pattern with ${construct}, which is not supported`)
}

class Parser {
  readonly #characters: readonly string[]
  #at = 0
  #groups = 0

  constructor(pattern: string) {
    this.#characters = [...pattern]
  }

  parse(): Node {
    const node = this.#alternatives()
    if (this.#at < this.#characters.length) throw this.#broken()
    return node
  }

  #alternatives(): Node {
    const of = [this.#sequence()]
    while (this.#take('|')) of.push(this.#sequence())
    return of.length === 1 ? (of[0] as Node) : { kind: 'any', of }
  }

  #sequence(): Node {
    const of: Node[] = []
    for (let next = this.#next(); next !== undefined && next !== '|' && next !== ')'; next = this.#next()) {
      of.push(this.#quantified(this.#atom()))
    }
    return { kind: 'all', of }
  }

  #quantified(of: Node): Node {
    const counts = this.#counts()
    if (!counts) return of
    this.#take('?')
    if (of.kind === 'ahead') throw unsupported('a lookahead that is repeated')
    const { min, max } = counts
    if (max < min) throw this.#broken()
    if (min > COUNT_MAX || (max > COUNT_MAX && max < Number.POSITIVE_INFINITY)) {
      throw unsupported(`a count above ${COUNT_MAX}`)
    }
    return { kind: 'repeat', of, min, max }
  }

  #counts(): { min: number; max: number } | undefined {
    if (this.#take('*')) return { min: 0, max: Number.POSITIVE_INFINITY }
    if (this.#take('+')) return { min: 1, max: Number.POSITIVE_INFINITY }
    if (this.#take('?')) return { min: 0, max: 1 }
    const [all, min, hasMax, max] = /^\{(\d{1,9})(,(\d{1,9})?)?\}/.exec(this.#rest(24)) ?? []
    if (all === undefined) return undefined
    this.#at += all.length
    return { min: Number(min), max: hasMax === undefined ? Number(min) : Number(max ?? Number.POSITIVE_INFINITY) }
  }

  #atom(): Node {
    const character = this.#shift()
    switch (character) {
      case '^':
        return { kind: 'start' }
      case '$':
        return { kind: 'end' }
      case '.':
        return { kind: 'chars', set: complement(LINE_END) }
      case '(':
        return this.#group()
      case '[':
        return { kind: 'chars', set: this.#class() }
      case '\\':
        return { kind: 'chars', set: this.#escape(false) }
      case '*':
      case '+':
      case '?':
        throw this.#broken()
      default:
        return { kind: 'chars', set: setOf(character) }
    }
  }

  #group(): Node {
    if (++this.#groups > GROUPS_MAX) throw unsupported(`more than ${GROUPS_MAX} groups`)
    const [head = ''] = /^\?(?:[:=!]|<[=!]|<[\w$]+>)/.exec(this.#rest(64)) ?? []
    if (head.startsWith('?<=') || head.startsWith('?<!')) throw unsupported('a lookbehind')
    if (head === '' && this.#next() === '?') throw unsupported(`'(${this.#rest(2)}'`)
    this.#at += head.length
    const of = this.#alternatives()
    if (!this.#take(')')) throw this.#broken()
    return head === '?=' || head === '?!' ? { kind: 'ahead', of, isNegative: head === '?!' } : of
  }

  #class(): Ranges {
    const isNegative = this.#take('^')
    const sets: Ranges[] = []
    while (!this.#take(']')) {
      const from = this.#classAtom()
      const isRange = this.#next() === '-' && this.#characters[this.#at + 1] !== ']'
      if (!isRange) sets.push(from)
      else {
        this.#at++
        sets.push(this.#range(from, this.#classAtom()))
      }
    }
    const set = union(...sets)
    return isNegative ? complement(set) : set
  }

  #range(from: Ranges, to: Ranges): Ranges {
    const [[low, lowEnd] = [0, -1], [high, highEnd] = [0, -1]] = [from[0], to[0]]
    if (low === lowEnd && high === highEnd && from.length === 1 && to.length === 1) {
      if (high < low) throw this.#broken()
      return [[low, high]]
    }
    // In a range such as [\w-.], one end is a class instead of a character. The hyphen is then an ordinary character.
    return union(from, setOf('-'), to)
  }

  #classAtom(): Ranges {
    const character = this.#shift()
    return character === '\\' ? this.#escape(true) : setOf(character)
  }

  #escape(isInClass: boolean): Ranges {
    const character = this.#shift()
    const known = CLASSES.get(character)
    if (known) return known
    if (character === 'b' && isInClass) return setOf('\b')
    const control = CONTROLS.get(character)
    if (control !== undefined && !(character === '0' && /\d/.test(this.#next() ?? ''))) return setOf(control)
    if (character === 'x' || character === 'u') return this.#codePoint(character)
    if (character === 'c' && /[a-z]/i.test(this.#next() ?? '')) {
      const letter = this.#shift().charCodeAt(0) % 32
      return [[letter, letter]]
    }
    if (/[a-z\d]/i.test(character)) throw unsupported(`'\\${character}'`)
    return setOf(character)
  }

  #codePoint(kind: 'x' | 'u'): Ranges {
    const form = kind === 'x' ? /^([\da-f]{2})/i : /^(?:\{([\da-f]{1,6})\}|([\da-f]{4}))/i
    const [all, first, second] = form.exec(this.#rest(8)) ?? []
    if (all === undefined) throw this.#broken()
    this.#at += all.length
    const unit = Number.parseInt(first ?? second ?? '', 16)
    const low = unit >= 0xd800 && unit < 0xdc00 ? /^\\u(d[c-f][\da-f]{2})/i.exec(this.#rest(6)) : null
    if (low) this.#at += 6
    const point = low ? 0x1_0000 + ((unit - 0xd800) << 10) + (Number.parseInt(low[1] ?? '', 16) - 0xdc00) : unit
    if (point > (EVERY_CODE_POINT[0]?.[1] ?? 0)) throw this.#broken()
    return [[point, point]]
  }

  #next(): string | undefined {
    return this.#characters[this.#at]
  }

  #rest(characters: number): string {
    return this.#characters.slice(this.#at, this.#at + characters).join('')
  }

  #shift(): string {
    const character = this.#characters[this.#at++]
    if (character === undefined) throw this.#broken()
    return character
  }

  #take(character: string): boolean {
    if (this.#next() !== character) return false
    this.#at++
    return true
  }

  #broken(): SchemaProblem {
    return new SchemaProblem(
      `has a pattern that is not a valid regular expression, with the error at character ${this.#at}`,
    )
  }
}
