/*
 * Finds the first syntax error of an invalid JSON text. The message of JSON.parse does not suffice: it often has no position, and it may quote a
 * prompt or a secret.
 *
 * Callers receive the position, an excerpt of the text before the error, and a fix. The excerpt has the names of fields and the punctuation, but no
 * values. Prompts and secrets therefore do not reach the request log.
 *
 * Example: for `{"model": "echo-1", "temperature": NaN}`, the message is "Unexpected NaN at line 1 column 36, after `{"model":"…","temperature":`.
 * Send null or a number instead of NaN."
 */

export interface JsonSyntaxProblem {
  /** Sentence with the error and its position. */
  readonly problem: string
  /** Sentence with the change that makes the text valid. */
  readonly fix: string
}

const QUOTE = 0x22
const BACKSLASH = 0x5c
const LINE_FEED = 0x0a
/** Bytes after which the search yields to the event loop. If each byte is a token, then the search of these bytes takes about 0.8 ms. */
const PIECE_BYTES = 2 * 1024
/** Bytes after which the counting of lines yields to the event loop. Counting is a hundred times faster than the search. */
const COUNTED_BYTES = 256 * 1024
const EXCERPT_CHARS_MAX = 60
const NAME_CHARS_MAX = 40
/** Names of fields that the excerpt shows. All names of the APIs have this form. Other names may be data of the caller. */
const NAME = /^[a-z_]+$/
const NUMBER = /^-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][+-]?\d+)?$/

const IN_QUOTES = 'Put names and texts in straight double quotes.'
/** Words of JavaScript and Python that are no JSON, with their replacements. Other words may be data of the caller, so the message omits them. */
const WORDS: Readonly<Record<string, string>> = {
  None: 'null',
  True: 'true',
  False: 'false',
  undefined: 'null',
  NaN: 'null or a number',
  Infinity: 'null or a number',
}

type Expected = 'value' | 'value or ]' | 'name' | 'name or }' | 'colon' | 'comma' | 'end'

/**
 * Returns the first syntax error. Undefined if the text is valid JSON. Must be run by `runYielding`.
 *
 * @param json Valid UTF-8
 */
export function* findJsonProblem(json: Buffer): Generator<undefined, JsonSyntaxProblem | undefined> {
  const scanner = new Scanner(json)
  const found = yield* scanner.scan()
  if (!found) return undefined
  const { text, fix } = found
  const { line, column } = yield* placeOf(json, scanner.at)
  const after = scanner.excerpt && `, after \`${scanner.excerpt}\``
  return { problem: `${text} at line ${line} column ${column}${after}.`, fix }
}

interface Found {
  readonly text: string
  readonly fix: string
}

class Scanner {
  readonly #json: Buffer
  /** Closing brackets of the open arrays and objects, the outermost first. */
  readonly #open: ('}' | ']')[] = []
  #expected: Expected = 'value'
  #wasComma = false
  #nextYield = PIECE_BYTES
  at = 0
  excerpt = ''

  constructor(json: Buffer) {
    this.#json = json
  }

  *scan(): Generator<undefined, Found | undefined> {
    for (;;) {
      this.#skipBlanks()
      if (this.#isYieldDue(this.at)) {
        yield
        continue
      }
      if (this.at >= this.#json.length) return this.#expected === 'end' ? undefined : this.#tooShort()
      const found = this.#json[this.at] === QUOTE ? yield* this.#text() : this.#step()
      if (found) return found
    }
  }

  #isYieldDue(at: number): boolean {
    if (at < this.#nextYield) return false
    this.#nextYield = at + PIECE_BYTES
    return true
  }

  #step(): Found | undefined {
    const char = this.#char()
    const expected = this.#expected
    const wasComma = this.#wasComma
    this.#wasComma = false
    const closer = this.#open.at(-1)
    if (char === closer && (expected === 'comma' || expected.endsWith(` or ${char}`)))
      return this.#take(char, this.#close())
    if ((char === '}' || char === ']') && wasComma && char === closer)
      return { text: `Unexpected ${char} after a comma`, fix: `Remove the comma before ${char}.` }
    if (expected === 'comma' && char === ',') {
      this.#wasComma = true
      return this.#take(char, closer === '}' ? 'name' : 'value')
    }
    if (expected === 'colon' && char === ':') return this.#take(char, 'value')
    if (this.#expectsValue && (char === '{' || char === '[')) {
      this.#open.push(char === '{' ? '}' : ']')
      return this.#take(char, char === '{' ? 'name or }' : 'value or ]')
    }
    if (this.#expectsValue && /[\w.+-]/.test(char)) return this.#literal()
    return this.#unexpected(char)
  }

  /** Reads a number, `true`, `false` or `null`. */
  #literal(): Found | undefined {
    const word = this.#word()
    const isNumber = NUMBER.test(word)
    if (!isNumber && word !== 'true' && word !== 'false' && word !== 'null') return this.#unexpectedWord(word)
    this.at += word.length
    this.#add(isNumber ? '…' : word)
    this.#expected = this.#afterValue()
    return undefined
  }

  *#text(): Generator<undefined, Found | undefined> {
    const isName = this.#expected === 'name' || this.#expected === 'name or }'
    if (!isName && !this.#expectsValue) return this.#unexpected('"')
    const start = this.at + 1
    for (let i = start; i < this.#json.length; i++) {
      const byte = this.#json[i] as number
      if (byte === QUOTE) {
        this.#wasComma = false
        this.at = i + 1
        this.#add(isName ? `"${nameIn(this.#json, start, i)}"` : '"…"')
        this.#expected = isName ? 'colon' : this.#afterValue()
        return undefined
      }
      if (byte < 0x20)
        return this.#inText(
          i,
          'Control character in a text',
          'Escape control characters in texts: a line break is \\n.',
        )
      if (byte === BACKSLASH) {
        if (!this.#isEscape(i))
          return this.#inText(i, 'Invalid escape sequence in a text', 'Write a backslash as \\\\.')
        i++
      }
      if (this.#isYieldDue(i)) yield
    }
    this.at = this.#json.length
    this.#add('"…')
    return this.#tooShort('"')
  }

  /** Whether the escape sequence is valid, or is cut off by the end of the text. */
  #isEscape(at: number): boolean {
    const sequence = this.#json.toString('latin1', at + 1, at + 6)
    return (
      /^(?:["\\/bfnrt]|u[\da-fA-F]{4})/.test(sequence) || (/^(?:u[\da-fA-F]*)?$/.test(sequence) && sequence.length < 5)
    )
  }

  #inText(at: number, text: string, fix: string): Found {
    this.at = at
    this.#add('"…')
    return { text, fix }
  }

  #tooShort(quote = ''): Found {
    if (this.#isStart && quote === '') return { text: 'The JSON is empty', fix: 'Send a JSON object.' }
    const end = quote + this.#open.toReversed().join('')
    const missing = end === '' ? '' : `, which must end with ${end.slice(0, EXCERPT_CHARS_MAX)}`
    return { text: 'The JSON ends before it is complete', fix: `Send the whole JSON${missing}.` }
  }

  #unexpected(char: string): Found {
    if (this.#expected === 'end')
      return { text: 'Unexpected text after the end of the JSON', fix: 'Send a single JSON value.' }
    if (/[\w]/.test(char)) return this.#unexpectedWord(this.#word())
    if (/['‘’‚“”„`]/.test(char)) {
      const fix = this.#isStart ? 'Send a JSON object without quotation marks around it.' : IN_QUOTES
      return { text: `Unexpected quotation mark ${char}`, fix }
    }
    if (char === '/' || char === '#') return { text: 'Unexpected comment', fix: 'Remove the comments.' }
    return { text: `Unexpected ${/\p{P}|\p{S}/u.test(char) ? char : 'character'}`, fix: this.#fixOf(char) }
  }

  #unexpectedWord(word: string): Found {
    const replacement = Object.hasOwn(WORDS, word) ? WORDS[word] : undefined
    if (this.#isStart) return { text: 'Unexpected text', fix: 'Send a JSON object.' }
    const isValue = this.#expectsValue
    if (replacement !== undefined && isValue)
      return { text: `Unexpected ${word}`, fix: `Send ${replacement} instead of ${word}.` }
    if (/^[-+.\d]/.test(word) && isValue)
      return {
        text: 'Invalid number',
        fix: 'Send a number such as 5, -0.5 or 1e-3. Write 5 instead of 05 or +5, and 0.5 instead of .5.',
      }
    if (this.#expected === 'comma' || this.#expected === 'colon')
      return { text: 'Unexpected text without quotes', fix: this.#fixOf('') }
    return { text: 'Unexpected text without quotes', fix: IN_QUOTES }
  }

  get #expectsValue(): boolean {
    return this.#expected === 'value' || this.#expected === 'value or ]'
  }

  get #isStart(): boolean {
    return this.excerpt === ''
  }

  #fixOf(char: string): string {
    const closer = this.#open.at(-1)
    switch (this.#expected) {
      case 'colon':
        return 'Put a colon after the name of the field.'
      case 'comma':
        return char === '}' || char === ']'
          ? `Close the ${closer === '}' ? 'object' : 'array'} with ${closer}, not with ${char}.`
          : `Put a comma or ${closer} after the value.`
      case 'name':
      case 'name or }':
        return 'Send the name of a field in double quotes.'
      default:
        return 'Send a value: a text in double quotes, a number, true, false, null, an object or an array.'
    }
  }

  #char(): string {
    return String.fromCodePoint(this.#json.toString('utf8', this.at, this.at + 4).codePointAt(0) ?? 0)
  }

  #word(): string {
    const [word = ''] = /^[\w.+-]*/.exec(this.#json.toString('latin1', this.at, this.at + 400)) ?? []
    return word
  }

  #take(char: string, next: Expected): undefined {
    this.at++
    this.#add(char)
    this.#expected = next
  }

  #close(): Expected {
    this.#open.pop()
    return this.#afterValue()
  }

  #afterValue(): Expected {
    return this.#open.length === 0 ? 'end' : 'comma'
  }

  #add(token: string): void {
    const text = this.excerpt + token
    this.excerpt = text.length > EXCERPT_CHARS_MAX ? `…${text.slice(1 - EXCERPT_CHARS_MAX)}` : text
  }

  /** Skips white space up to the next yield. */
  #skipBlanks(): void {
    for (; this.at < Math.min(this.#json.length, this.#nextYield); this.at++) {
      const byte = this.#json[this.at]
      if (byte !== 0x20 && byte !== LINE_FEED && byte !== 0x0d && byte !== 0x09) return
    }
  }
}

function nameIn(json: Buffer, start: number, end: number): string {
  const name = end - start <= NAME_CHARS_MAX ? json.toString('utf8', start, end) : ''
  return NAME.test(name) ? name : '…'
}

/** Returns line and column of a byte, counted from 1. A column counts characters. */
function* placeOf(json: Buffer, at: number): Generator<undefined, { readonly line: number; readonly column: number }> {
  let [line, column] = [1, 1]
  for (let i = 0; i < at; i++) {
    const byte = json[i] as number
    if (byte === LINE_FEED) [line, column] = [line + 1, 1]
    else if ((byte & 0xc0) !== 0x80) column++
    if (i % COUNTED_BYTES === COUNTED_BYTES - 1) yield
  }
  return { line, column }
}
