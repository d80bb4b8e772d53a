/** Generates sentences from GBNF, the grammar notation of llama.cpp, for the subset that Sluice writes. */

type Piece =
  | { readonly kind: 'text'; readonly text: string }
  | { readonly kind: 'class'; readonly ranges: readonly (readonly [number, number])[]; readonly isNegative: boolean }
  | { readonly kind: 'rule'; readonly name: string }
  | { readonly kind: 'choice'; readonly of: readonly (readonly Piece[])[] }
  | { readonly kind: 'repeat'; readonly of: Piece; readonly min: number; readonly max: number }

/**
 * A negated character class generates only characters from this list. Any other class that contains characters of the list generates one of these in
 * half of the cases.
 */
const SAMPLES = [...'aZ0 _-.,/:@+é漢🎉']
const FUEL = 400

/**
 * Generates random sentences of a grammar. Tests check that each sentence is a valid value of the JSON Schema from which the grammar was made.
 * @param random Returns numbers from 0 to 1
 */
export class Sentences {
  readonly #rules: ReadonlyMap<string, Piece>
  readonly #costs = new Map<string, number>()
  readonly #random: () => number
  #fuel = FUEL

  constructor(grammar: string, random: () => number) {
    this.#random = random
    this.#rules = new Map(
      grammar.split('\n').map((line) => {
        const [, name = '', body = ''] = /^(\w+) ::= (.*)$/s.exec(line) ?? []
        return [name, new Reader(body).read()]
      }),
    )
    this.#measure()
  }

  /**
   * A random sentence of the grammar.
   *
   * @throws Error if the grammar has no finite sentence
   */
  next(): string {
    this.#fuel = FUEL
    return this.#write({ kind: 'rule', name: 'root' })
  }

  /**
   * Computes for each rule the number of steps of its shortest sentence. When the step budget is used up, generation takes the cheapest
   * alternatives and therefore ends.
   */
  #measure(): void {
    for (let hasChanged = true; hasChanged; ) {
      hasChanged = false
      for (const [name, piece] of this.#rules) {
        const cost = this.#cost(piece) + 1
        if (cost < (this.#costs.get(name) ?? Number.POSITIVE_INFINITY)) {
          this.#costs.set(name, cost)
          hasChanged = true
        }
      }
    }
  }

  #cost(piece: Piece): number {
    switch (piece.kind) {
      case 'rule':
        return this.#costs.get(piece.name) ?? Number.POSITIVE_INFINITY
      case 'choice':
        return Math.min(...piece.of.map((sequence) => this.#costOf(sequence)))
      case 'repeat':
        return piece.min === 0 ? 0 : piece.min * this.#cost(piece.of)
      default:
        return 1
    }
  }

  #costOf(sequence: readonly Piece[]): number {
    return sequence.reduce((total, piece) => total + this.#cost(piece), 0)
  }

  #write(piece: Piece): string {
    this.#fuel--
    switch (piece.kind) {
      case 'text':
        return piece.text
      case 'class':
        return this.#character(piece.ranges, piece.isNegative)
      case 'rule': {
        const rule = this.#rules.get(piece.name)
        if (!rule) throw new Error(`The grammar has no rule ${piece.name}`)
        return this.#write(rule)
      }
      case 'choice':
        return this.#choose(piece.of)
          .map((one) => this.#write(one))
          .join('')
      case 'repeat': {
        const more = Math.min(piece.max - piece.min, 3)
        const count = piece.min + (this.#fuel > 0 ? Math.floor(this.#random() * (more + 1)) : 0)
        return Array.from({ length: count }, () => this.#write(piece.of)).join('')
      }
    }
  }

  #choose(sequences: readonly (readonly Piece[])[]): readonly Piece[] {
    const costs = sequences.map((sequence) => this.#costOf(sequence))
    const least = Math.min(...costs)
    if (least === Number.POSITIVE_INFINITY) throw new Error('The grammar has no finite sentence')
    const open = sequences.filter((_, index) => (this.#fuel > 0 ? (costs[index] ?? 0) < 1e9 : costs[index] === least))
    return open[Math.floor(this.#random() * open.length)] ?? []
  }

  #character(ranges: readonly (readonly [number, number])[], isNegative: boolean): string {
    const isIn = (point: number) => ranges.some(([low, high]) => low <= point && point <= high)
    const known = SAMPLES.filter((character) => isIn(character.codePointAt(0) ?? 0) !== isNegative)
    const [low, high] = ranges[Math.floor(this.#random() * ranges.length)] ?? [97, 122]
    const other = low + Math.floor(this.#random() * (high - low + 1))
    if (isNegative || (known.length > 0 && this.#random() < 0.5))
      return known[Math.floor(this.#random() * known.length)] ?? 'x'
    return String.fromCodePoint(other)
  }
}

class Reader {
  readonly #text: string
  #at = 0

  constructor(text: string) {
    this.#text = text
  }

  read(): Piece {
    const of = [this.#sequence()]
    while (this.#take('|')) of.push(this.#sequence())
    return { kind: 'choice', of }
  }

  #sequence(): Piece[] {
    const pieces: Piece[] = []
    for (this.#skip(); this.#at < this.#text.length && !'|)'.includes(this.#text[this.#at] ?? ''); this.#skip()) {
      pieces.push(this.#repeated(this.#piece()))
    }
    return pieces
  }

  #piece(): Piece {
    if (this.#take('(')) {
      const inner = this.read()
      if (!this.#take(')')) throw new Error(`Expected ) at ${this.#at} of ${this.#text}`)
      return inner
    }
    if (this.#text[this.#at] === '"') return { kind: 'text', text: this.#quoted() }
    if (this.#text[this.#at] === '[') return this.#class()
    const [name] = /^\w+/.exec(this.#text.slice(this.#at)) ?? []
    if (name === undefined) throw new Error(`No grammar at ${this.#at} of ${this.#text}`)
    this.#at += name.length
    return { kind: 'rule', name }
  }

  #repeated(of: Piece): Piece {
    const [all, sign, min = '', comma, max = ''] =
      /^(?:([*?])|\{(\d+)(,)?(\d*)\})/.exec(this.#text.slice(this.#at)) ?? []
    if (all === undefined) return of
    this.#at += all.length
    if (sign === '*') return { kind: 'repeat', of, min: 0, max: Number.POSITIVE_INFINITY }
    if (sign === '?') return { kind: 'repeat', of, min: 0, max: 1 }
    const most = comma ? (max === '' ? Number.POSITIVE_INFINITY : Number(max)) : Number(min)
    return { kind: 'repeat', of, min: Number(min), max: most }
  }

  #quoted(): string {
    let text = ''
    for (this.#at++; this.#text[this.#at] !== '"'; ) text += String.fromCodePoint(this.#point())
    this.#at++
    return text
  }

  #class(): Piece {
    this.#at++
    const isNegative = this.#text[this.#at] === '^'
    if (isNegative) this.#at++
    const ranges: [number, number][] = []
    while (this.#text[this.#at] !== ']') {
      const low = this.#point()
      const isRange = this.#text[this.#at] === '-'
      if (isRange) this.#at++
      ranges.push([low, isRange ? this.#point() : low])
    }
    this.#at++
    return { kind: 'class', ranges, isNegative }
  }

  #point(): number {
    const [all, hex] = /^\\(?:x(?=(..))|u(?=(....))|U(?=(.{8})))/.exec(this.#text.slice(this.#at)) ?? []
    if (all !== undefined) {
      const digits = { x: 2, u: 4, U: 8 }[all[1] ?? ''] ?? 0
      const point = Number.parseInt(hex ?? this.#text.slice(this.#at + 2, this.#at + 2 + digits), 16)
      this.#at += 2 + digits
      return point
    }
    if (this.#text[this.#at] === '\\') this.#at++
    const point = this.#text.codePointAt(this.#at) ?? 0
    const isEscaped = this.#text[this.#at - 1] === '\\'
    this.#at += point > 0xffff ? 2 : 1
    const control = { n: 10, r: 13, t: 9 }[String.fromCodePoint(point)]
    return isEscaped && control !== undefined ? control : point
  }

  #take(character: string): boolean {
    this.#skip()
    if (this.#text[this.#at] !== character) return false
    this.#at++
    return true
  }

  #skip(): void {
    while (this.#text[this.#at] === ' ') this.#at++
  }
}
