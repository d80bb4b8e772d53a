import { SchemaProblem } from './match.ts'

/*
 * Regular languages by derivatives (Brzozowski 1964; Owens, Reppy and Turon 2009). The derivative of a language by a character is the set of texts
 * that may follow the character. Each derivative is one state of a deterministic automaton.
 *
 * Derivatives support intersection and complement without extra cost. Several patterns, a format, lengths and lookaheads can therefore become one
 * automaton. A grammar of one automaton has a single continuation after each text, which llama.cpp needs to be fast.
 *
 * Each text is enclosed in the two marks START and END. The anchors `^` and `$` are then characters like any other. Example: the pattern `^a` is the
 * language Σ* START a Σ*.
 */

export const START = 0x11_0000
export const END = 0x11_0001

/**
 * Maximum computation steps for one grammar. Each derivative and each automaton state is one step. This number of steps
 * takes about 60 ms.
 */
const STEPS_MAX = 22_000
/** Maximum different languages that are stored for one grammar. */
const LANGUAGES_MAX = 20_000
/** Reading this many characters of a text counts as one computation step of {@link STEPS_MAX}. */
const READ_CHARS = 32
/** Maximum states of the automaton of one string. */
export const STATES_MAX = 2_000

export interface Language {
  readonly id: number
  readonly isNullable: boolean
  readonly form:
    | { readonly kind: 'chars'; readonly set: Ranges }
    | { readonly kind: 'empty' }
    | { readonly kind: 'concat'; readonly first: Language; readonly rest: Language }
    | { readonly kind: 'repeat'; readonly of: Language; readonly min: number; readonly max: number }
    | { readonly kind: 'any' | 'all'; readonly parts: readonly Language[] }
    | { readonly kind: 'not'; readonly of: Language }
}

export interface State {
  readonly isAccepting: boolean
  readonly edges: readonly { readonly set: Ranges; readonly to: number }[]
}

export function tooLarge(): SchemaProblem {
  return new SchemaProblem('has a string whose pattern, format and length limits are too complex')
}

export class Languages {
  readonly #known = new Map<string, Language>()
  readonly #derived = new Map<Language, Map<number, Language>>()
  readonly #automata = new Map<Language, State[]>()
  readonly patterns = new Map<string, Language>()
  #steps = 0

  readonly none = this.chars([])
  readonly empty = this.#make('', { kind: 'empty' }, true)
  readonly every = this.repeat(this.chars([[0, END]]), 0)

  chars(set: Ranges): Language {
    return this.#make(`c${set.join(';')}`, { kind: 'chars', set }, false)
  }

  concat(first: Language, rest: Language): Language {
    if (first === this.none || rest === this.none) return this.none
    if (first === this.empty) return rest
    if (rest === this.empty) return first
    const { form } = first
    if (form.kind === 'concat') return this.concat(form.first, this.concat(form.rest, rest))
    return this.#make(`t${first.id},${rest.id}`, { kind: 'concat', first, rest }, first.isNullable && rest.isNullable)
  }

  repeat(of: Language, min: number, max = Number.POSITIVE_INFINITY): Language {
    const least = of.isNullable ? 0 : min
    if (max === 0 || of === this.empty) return this.empty
    if (of === this.none) return least === 0 ? this.empty : this.none
    if (least === 1 && max === 1) return of
    if (of.form.kind === 'repeat' && of.form.min === 0 && of.form.max === max && max === Number.POSITIVE_INFINITY)
      return of
    return this.#make(`r${of.id},${least},${max}`, { kind: 'repeat', of, min: least, max }, least === 0)
  }

  any(languages: readonly Language[]): Language {
    const flat = this.#flatten('any', languages, this.none)
    if (flat.includes(this.every)) return this.every
    const sets = flat.flatMap(({ form }) => (form.kind === 'chars' ? [form.set] : []))
    const others = flat.filter(({ form }) => form.kind !== 'chars')
    const of = sets.length > 1 ? this.#sorted([...others, this.chars(union(...sets))]) : flat
    return this.#several('any', of, this.none)
  }

  all(languages: readonly Language[]): Language {
    const of = this.#flatten('all', languages, this.every)
    return of.includes(this.none) ? this.none : this.#several('all', of, this.every)
  }

  not(of: Language): Language {
    if (of === this.none) return this.every
    if (of === this.every) return this.none
    if (of.form.kind === 'not') return of.form.of
    return this.#make(`n${of.id}`, { kind: 'not', of }, !of.isNullable)
  }

  accepts(language: Language, text: string): boolean {
    this.spend(text.length / READ_CHARS)
    let state = this.#derive(language, START)
    for (const character of text) state = this.#derive(state, character.codePointAt(0) ?? 0)
    return this.#derive(state, END).isNullable
  }

  automaton(language: Language): State[] {
    const known = this.#automata.get(language)
    if (known) return known
    const classes = classesOf(setsOf(language))
    const found = [this.#derive(language, START)]
    const indexes = new Map(found.map((state) => [state, 0]))
    const states: State[] = []
    for (const state of found) {
      const edges = new Map<Language, Ranges[]>()
      for (const set of classes) {
        const next = this.#derive(state, set[0]?.[0] ?? 0)
        if (next === this.none) continue
        const sets = edges.get(next)
        if (sets) sets.push(set)
        else edges.set(next, [set])
      }
      for (const next of edges.keys()) {
        if (indexes.has(next)) continue
        indexes.set(next, found.length)
        found.push(next)
      }
      if (found.length > STATES_MAX) throw tooLarge()
      const isAccepting = this.#derive(state, END).isNullable
      states.push({
        isAccepting,
        edges: [...edges].map(([next, sets]) => ({ set: union(...sets), to: indexes.get(next) ?? 0 })),
      })
    }
    this.spend(states.length)
    this.#automata.set(language, states)
    return states
  }

  spend(steps: number): void {
    this.#steps += steps
    if (this.#steps > STEPS_MAX) throw new SchemaProblem('has patterns that are too complex')
  }

  #derive(language: Language, character: number): Language {
    const all = this.#derived.get(language) ?? new Map<number, Language>()
    if (all.size === 0) this.#derived.set(language, all)
    const known = all.get(character)
    if (known) return known
    if (++this.#steps > STEPS_MAX) throw new SchemaProblem('has patterns that are too complex')
    const derived = this.#derivative(language, character)
    all.set(character, derived)
    return derived
  }

  #derivative({ form }: Language, character: number): Language {
    switch (form.kind) {
      case 'empty':
        return this.none
      case 'chars':
        return contains(form.set, character) ? this.empty : this.none
      case 'concat': {
        const derived = this.concat(this.#derive(form.first, character), form.rest)
        return form.first.isNullable ? this.any([derived, this.#derive(form.rest, character)]) : derived
      }
      case 'repeat': {
        const rest = this.repeat(form.of, Math.max(0, form.min - 1), form.max - 1)
        return this.concat(this.#derive(form.of, character), rest)
      }
      case 'not':
        return this.not(this.#derive(form.of, character))
      default:
        return this[form.kind](form.parts.map((inner) => this.#derive(inner, character)))
    }
  }

  #flatten(kind: 'any' | 'all', languages: readonly Language[], unit: Language): Language[] {
    const flat = languages.flatMap((one) => (one.form.kind === kind ? one.form.parts : [one]))
    return this.#sorted([...new Set(flat)].filter((one) => one !== unit))
  }

  #sorted(languages: readonly Language[]): Language[] {
    return languages.toSorted((a, b) => a.id - b.id)
  }

  #several(kind: 'any' | 'all', of: readonly Language[], unit: Language): Language {
    if (of.length <= 1) return of[0] ?? unit
    this.spend(of.length / 8)
    const isNullable = kind === 'any' ? of.some((one) => one.isNullable) : of.every((one) => one.isNullable)
    return this.#make(`${kind}${of.map(({ id }) => id).join(',')}`, { kind, parts: of }, isNullable)
  }

  #make(key: string, form: Language['form'], isNullable: boolean): Language {
    const known = this.#known.get(key)
    if (known) return known
    if (this.#known.size > LANGUAGES_MAX) throw new SchemaProblem('has patterns that are too complex')
    const language: Language = { id: this.#known.size, form, isNullable }
    this.#known.set(key, language)
    return language
  }
}

function setsOf(language: Language): Ranges[] {
  const all = new Set([language])
  for (const { form } of all) {
    if (form.kind === 'concat') all.add(form.first).add(form.rest)
    else if (form.kind === 'repeat' || form.kind === 'not') all.add(form.of)
    else if (form.kind === 'any' || form.kind === 'all') for (const part of form.parts) all.add(part)
  }
  return [...all].flatMap(({ form }) => (form.kind === 'chars' ? [form.set] : []))
}

/** Divides the code points into classes, such that each set contains all or none of the code points of a class. */
function classesOf(sets: readonly Ranges[]): Ranges[] {
  const cuts = new Set(sets.flatMap((set) => set.flatMap(([low, high]) => [low, high + 1])))
  const sorted = [0, ...[...cuts].filter((cut) => cut > 0 && cut < START).sort((a, b) => a - b), START]
  const classes = new Map<string, [number, number][]>()
  for (const [index, low] of sorted.slice(0, -1).entries()) {
    const key = sets.map((set) => (contains(set, low) ? 1 : 0)).join('')
    const piece: [number, number] = [low, (sorted[index + 1] ?? 0) - 1]
    const known = classes.get(key)
    if (known) known.push(piece)
    else classes.set(key, [piece])
  }
  return [...classes.values()].map((pieces) => union(pieces))
}

/** A set of code points as sorted ranges. The ranges neither overlap nor touch, and each includes both of its ends. */
export type Ranges = readonly (readonly [number, number])[]

const CODE_POINT_MAX = 0x10_ffff
export const EVERY_CODE_POINT: Ranges = [[0, CODE_POINT_MAX]]

export function union(...sets: readonly Ranges[]): Ranges {
  const sorted = sets.flat().toSorted((a, b) => a[0] - b[0])
  const joined: [number, number][] = []
  for (const [low, high] of sorted) {
    const last = joined.at(-1)
    if (last && low <= last[1] + 1) last[1] = Math.max(last[1], high)
    else joined.push([low, high])
  }
  return joined
}

export function complement(set: Ranges): Ranges {
  const gaps: [number, number][] = []
  let next = 0
  for (const [low, high] of set) {
    if (low > next) gaps.push([next, low - 1])
    next = high + 1
  }
  if (next <= CODE_POINT_MAX) gaps.push([next, CODE_POINT_MAX])
  return gaps
}

export function without(set: Ranges, other: Ranges): Ranges {
  return complement(union(complement(set), other))
}

export function contains(set: Ranges, codePoint: number): boolean {
  return set.some(([low, high]) => low <= codePoint && codePoint <= high)
}

export function setOf(...characters: readonly string[]): Ranges {
  return union(characters.map((character) => [character.codePointAt(0) ?? 0, character.codePointAt(0) ?? 0] as const))
}
