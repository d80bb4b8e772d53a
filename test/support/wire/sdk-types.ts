/*
 * Generates sample values for the types that an SDK declares. When a new version of the SDK adds a field, tests cover it without a list of
 * fields.
 *
 * The parser understands the declarations that code generators write: interfaces, aliases, unions, arrays, literals. Each sample after the first
 * differs from the first in one field.
 */
import { readFileSync } from 'node:fs'

type Shape =
  | { kind: 'value'; value: unknown }
  | { kind: 'name'; name: string }
  | { kind: 'list'; of: Shape }
  | { kind: 'union'; of: Shape[] }
  | { kind: 'object'; fields: Map<string, Shape> }

/** Sample values, by field name, of fields with a general type such as `string`, for which no valid value can be derived. */
export type Values = Readonly<Record<string, unknown>>

const TOKENS = /'(?:[^'\\]|\\.)*'|[A-Za-z_$][\w$.]*|-?\d+(?:\.\d+)?|[{}[\]()<>|&;:?,=]/g

export class SdkTypes {
  readonly #shapes = new Map<string, Shape>()
  readonly #values: Values

  /**
   * Reads the types of a file.
   *
   * @param file A `.d.ts` file
   * @param values Sample values by field name
   */
  constructor(file: string, values: Values = {}) {
    this.#values = values
    const text = readFileSync(file, 'utf8').replaceAll(/\/\*[\s\S]*?\*\//g, '')
    for (const [, name = '', rest = ''] of text.matchAll(
      /^ *(?:export )?interface (\w+)(?: extends [\w.]+)? (\{[\s\S]*?^ *\})$/gm,
    )) {
      if (!this.#shapes.has(name)) this.#shapes.set(name, new Reader(rest).read())
    }
    for (const [, name = '', rest = ''] of text.matchAll(/^ *(?:export )?type (\w+) = ([^;]+);/gm)) {
      // `type X = namespace.X` repeats an interface under a second name, so it is skipped. The first declaration of a name is used.
      if (!this.#shapes.has(name) && !rest.endsWith(`.${name}`)) this.#shapes.set(name, new Reader(rest).read())
    }
  }

  /** Returns all sample values of a type. */
  samples(name: string): unknown[] {
    return this.#samplesOf({ kind: 'name', name: name.split('.').at(-1) ?? name })
  }

  fields(name: string): string[] {
    const shape = this.#shapes.get(name)
    if (shape?.kind !== 'object') throw new Error(`${name} is not an interface`)
    return [...shape.fields.keys()]
  }

  /** Returns sample values for one field of an interface. */
  fieldSamples(name: string, field: string): unknown[] {
    const shape = this.#shapes.get(name)
    const inner = shape?.kind === 'object' ? shape.fields.get(field) : undefined
    return inner ? this.#fieldSamples(field, inner) : []
  }

  #samplesOf(shape: Shape): unknown[] {
    switch (shape.kind) {
      case 'value':
        return [shape.value]
      case 'list': {
        const inner = this.#samplesOf(shape.of)
        return inner.length > 0 ? [inner] : [[]]
      }
      case 'union':
        return unique(shape.of.flatMap((each) => this.#samplesOf(each))).filter((value) => value !== null)
      case 'name': {
        const known = this.#shapes.get(shape.name.split('.').at(-1) ?? '')
        // A type with a namespace that this file does not declare belongs to another file. Such types, for example those of model names, are
        // treated as strings.
        if (!known && shape.name.includes('.')) return [STRING]
        if (!known) throw new Error(`unknown type ${shape.name}`)
        return this.#samplesOf(known)
      }
      case 'object':
        return this.#objects(shape.fields)
    }
  }

  #objects(fields: ReadonlyMap<string, Shape>): Record<string, unknown>[] {
    const all = [...fields].map(([name, shape]) => [name, this.#fieldSamples(name, shape)] as const)
    const first = Object.fromEntries(all.map(([name, values]) => [name, values[0]]))
    return [first, ...all.flatMap(([name, [, ...others]]) => others.map((value) => ({ ...first, [name]: value })))]
  }

  #fieldSamples(name: string, shape: Shape): unknown[] {
    const isLiteral = shape.kind === 'value' && typeof shape.value === 'string' && shape.value !== STRING
    const samples = this.#samplesOf(shape)
    if (isLiteral || !Object.hasOwn(this.#values, name)) return samples
    const given = this.#values[name]
    return unique(samples.map((value) => (BASIC_SAMPLES.includes(value) ? given : value)))
  }
}

const STRING = 'some text'
const ANYTHING = { any: ['thing', 1] }
const NUMBER = 7
const BASIC_SAMPLES: readonly unknown[] = [STRING, ANYTHING, NUMBER]
const BASIC: Readonly<Record<string, unknown>> = {
  ...{ string: STRING, number: NUMBER, boolean: true, true: true, false: false, null: null, undefined: null },
  ...{ unknown: ANYTHING, any: ANYTHING },
}

function unique(values: unknown[]): unknown[] {
  return [...new Map(values.map((value) => [JSON.stringify(value), value])).values()]
}

class Reader {
  readonly #tokens: string[]
  #at = 0

  constructor(text: string) {
    this.#tokens = text.match(TOKENS) ?? []
  }

  read(): Shape {
    const of = [this.#intersection()]
    while (this.#take('|')) of.push(this.#intersection())
    return of.length === 1 ? (of[0] as Shape) : { kind: 'union', of }
  }

  /** In a type such as `string & {}`, only the first part determines the sample. */
  #intersection(): Shape {
    this.#take('|')
    const first = this.#simple()
    while (this.#take('&')) this.#simple()
    return first
  }

  #simple(): Shape {
    const token = this.#next()
    if (token === '(') return this.#until(')')
    if (token === '{') return this.#object()
    if (token === 'Array') {
      this.#take('<')
      return { kind: 'list', of: this.#until('>') }
    }
    if (token.startsWith("'")) return { kind: 'value', value: token.slice(1, -1) }
    if (/^-?\d/.test(token)) return { kind: 'value', value: Number(token) }
    if (Object.hasOwn(BASIC, token)) return { kind: 'value', value: BASIC[token] }
    return { kind: 'name', name: token }
  }

  #object(): Shape {
    const fields = new Map<string, Shape>()
    while (!this.#take('}')) {
      // An index signature such as `[key: string]` permits any field, so no field is recorded.
      const isIndex = this.#take('[')
      const name = this.#next().replaceAll("'", '')
      if (isIndex) while (this.#next() !== ']');
      this.#take('?')
      this.#take(':')
      const shape = this.read()
      this.#take(';')
      if (!isIndex) fields.set(name, shape)
    }
    return { kind: 'object', fields }
  }

  #until(end: string): Shape {
    const shape = this.read()
    if (!this.#take(end)) throw new Error(`expected ${end} at ${this.#tokens.slice(this.#at, this.#at + 5).join(' ')}`)
    return shape
  }

  #next(): string {
    const token = this.#tokens[this.#at++]
    if (token === undefined) throw new Error('unexpected end of the declaration')
    return token
  }

  #take(token: string): boolean {
    if (this.#tokens[this.#at] !== token) return false
    this.#at++
    return true
  }
}
