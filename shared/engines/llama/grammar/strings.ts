import { numberOf, type Schema } from '#shared/json-schema/json-schema.ts'
import {
  contains,
  type Language,
  type Languages,
  type Ranges,
  STATES_MAX,
  type State,
  tooLarge,
  union,
  without,
} from './language.ts'
import { patternLanguage } from './pattern.ts'

/** If the automaton for `maxLength` is too large, then the maximum becomes `minLength` plus the first of these numbers of characters that fits. */
const SHORTER_MAX = [256, 64]

const [SURROGATES, CONTROL, QUOTE, BACKSLASH] = [[0xd800, 0xdfff], [0, 0x1f], 0x22, 0x5c] as const
/** Characters that JSON must escape, with their escapes. Other control characters are never generated. */
const ESCAPES: ReadonlyMap<number, string> = new Map([
  [QUOTE, '"'],
  [BACKSLASH, '\\'],
  [0x08, 'b'],
  [0x0c, 'f'],
  [0x0a, 'n'],
  [0x0d, 'r'],
  [0x09, 't'],
])
const NOT_PLAIN: Ranges = union([CONTROL, SURROGATES], [[QUOTE, QUOTE]], [[BACKSLASH, BACKSLASH]], [[0x7f, 0x7f]])

const DATE = String.raw`\d{4}-(0[1-9]|1[0-2])-(0[1-9]|1\d|2[0-8])`
const TIME = String.raw`([01]\d|2[0-3]):[0-5]\d:[0-5]\dZ`
// The last label of a generated host name has no digits, because URL parsers read a name with a numeric end as an IPv4 address. Adjacent hyphens,
// which mark Punycode, are not generated either.
const HOST = String.raw`([a-z0-9]+(-[a-z0-9]+)*\.)*[a-z]+`
const EMAIL = String.raw`[A-Za-z0-9_+-]+(\.[A-Za-z0-9_+-]+)*@([a-z0-9]+(-[a-z0-9]+)*\.)+[a-z]{2,}`
/** Formats with labels. A label has at most 63 characters (RFC 1035 §2.3.4), so whole texts of these formats are limited to this length. */
const LABELLED = new Set(['email', 'idn-email', 'hostname', 'idn-hostname'])
const LABEL_CHARS_MAX = 63
const OCTET = String.raw`(25[0-5]|2[0-4]\d|1\d\d|[1-9]?\d)`
const POINTER = '(/[A-Za-z0-9_.-]+)*'
const PATH = `${POINTER}/?`

/** Formats of JSON Schema (draft 2020-12, Validation §7.3) as patterns. Each pattern generates only valid texts, but not all of them. */
export const FORMATS: ReadonlyMap<string, string> = new Map([
  ['date', DATE],
  ['time', TIME],
  ['date-time', `${DATE}T${TIME}`],
  [
    'duration',
    String.raw`P(\d{1,3}W|\d{1,3}D|(\d{1,3}D)?T(\d{1,3}H(\d{1,2}M(\d{1,2}S)?)?|\d{1,3}M(\d{1,2}S)?|\d{1,3}S))`,
  ],
  ['uuid', '[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}'],
  ['email', EMAIL],
  ['idn-email', EMAIL],
  ['hostname', HOST],
  ['idn-hostname', HOST],
  ['ipv4', String.raw`(${OCTET}\.){3}${OCTET}`],
  ['ipv6', '([0-9a-f]{1,4}:){7}[0-9a-f]{1,4}'],
  ['uri', `https?://${HOST}${PATH}`],
  ['iri', `https?://${HOST}${PATH}`],
  ['uri-reference', `(https?://${HOST})?${PATH}`],
  ['iri-reference', `(https?://${HOST})?${PATH}`],
  ['uri-template', `https?://${HOST}${PATH}`],
  ['json-pointer', POINTER],
  ['relative-json-pointer', String.raw`(0|[1-9]\d{0,2})${POINTER}`],
  ['regex', '[A-Za-z0-9 _-]*'],
])

export function hasLanguage(schema: Schema): boolean {
  return textsOf(schema.pattern).length > 0 || textsOf(schema.format).some((format) => FORMATS.has(format))
}

export function stringLanguage(languages: Languages, schema: Schema): Language {
  const formats = textsOf(schema.format).flatMap((format) => FORMATS.get(format) ?? [])
  const patterns = [...textsOf(schema.pattern), ...formats.map((source) => `^(?:${source})$`)]
  return languages.all(patterns.map((pattern) => patternLanguage(languages, pattern)))
}

export function lengthsOf(schema: Schema): { min: number; max: number } {
  const most = textsOf(schema.format).some((format) => LABELLED.has(format))
    ? LABEL_CHARS_MAX
    : Number.POSITIVE_INFINITY
  return {
    min: Math.max(0, Math.ceil(numberOf(schema, 'minLength') ?? 0)),
    max: Math.min(most, Math.floor(numberOf(schema, 'maxLength') ?? most)),
  }
}

/**
 * Returns the automaton of the texts that a schema accepts, as JSON. If the automaton is too large, then the maximum length is reduced.
 *
 * @returns An empty list if no text is accepted.
 * @throws SchemaProblem
 */
export function stringAutomaton(languages: Languages, schema: Schema): State[] {
  const states = productive(languages.automaton(stringLanguage(languages, schema)))
  const { min, max } = lengthsOf(schema)
  if (states.length === 0 || (min === 0 && max === Number.POSITIVE_INFINITY)) return states
  const shorter =
    max === Number.POSITIVE_INFINITY ? [] : SHORTER_MAX.map((more) => min + more).filter((length) => length < max)
  for (const length of [max, ...shorter]) {
    const counted = countedStates(languages, states, min, length)
    if (counted) return productive(counted)
  }
  throw tooLarge()
}

/**
 * Returns an automaton that accepts the same texts, but only with `min` to `max` characters. Each new state is a pair of a state and the
 * number of characters that were read so far. Undefined if there are too many states.
 */
function countedStates(languages: Languages, states: readonly State[], min: number, max: number): State[] | undefined {
  const countMax = max === Number.POSITIVE_INFINITY ? min : max
  const keyOf = (state: number, count: number) => state * (countMax + 1) + Math.min(count, countMax)
  const found = [{ state: 0, count: 0 }]
  const indexes = new Map([[keyOf(0, 0), 0]])
  const counted: State[] = []
  for (const { state, count } of found) {
    const { isAccepting = false, edges = [] } = states[state] ?? {}
    const open = count < max ? edges : []
    for (const { to } of open) {
      const key = keyOf(to, count + 1)
      if (indexes.has(key)) continue
      indexes.set(key, found.length)
      found.push({ state: to, count: Math.min(count + 1, countMax) })
    }
    languages.spend(1)
    if (found.length > STATES_MAX) return undefined
    const toIndex = (to: number) => indexes.get(keyOf(to, count + 1)) ?? 0
    counted.push({
      isAccepting: isAccepting && count >= min,
      edges: open.map(({ set, to }) => ({ set, to: toIndex(to) })),
    })
  }
  return counted
}

function productive(states: readonly State[]): State[] {
  const sources = states.map((): number[] => [])
  const written = states.map(({ edges }) => edges.filter(({ set }) => charactersOf(set).length > 0))
  for (const [index, edges] of written.entries()) for (const { to } of edges) sources[to]?.push(index)
  const ending = new Set(states.flatMap(({ isAccepting }, index) => (isAccepting ? [index] : [])))
  for (const index of ending) for (const source of sources[index] ?? []) ending.add(source)
  if (!ending.has(0)) return []
  const kept = [0, ...[...ending].filter((index) => index !== 0)]
  const numbers = new Map(kept.map((index, number) => [index, number]))
  return kept.map((index) => ({
    isAccepting: states[index]?.isAccepting ?? false,
    edges: (written[index] ?? []).flatMap(({ set, to }) => {
      const number = numbers.get(to)
      return number === undefined ? [] : [{ set, to: number }]
    }),
  }))
}

const WRITTEN = new WeakMap<Ranges, readonly string[]>()

/** Returns the GBNF alternatives that generate one character of a set as JSON. Empty if no character of the set is ever generated. */
export function charactersOf(set: Ranges): readonly string[] {
  const known = WRITTEN.get(set) ?? writeCharacters(set)
  WRITTEN.set(set, known)
  return known
}

function writeCharacters(set: Ranges): string[] {
  const plain = without(set, NOT_PLAIN)
  const escapes = [...ESCAPES].flatMap(([point, letter]) => (contains(set, point) ? [letter] : []))
  const parts: string[] = []
  if (plain.length > 0) parts.push(`[${plain.map(([low, high]) => rangeText(low, high)).join('')}]`)
  if (escapes.length > 0) parts.push(`"\\\\" [${escapes.map((letter) => letter.replace('\\', '\\\\')).join('')}]`)
  return parts
}

function rangeText(low: number, high: number): string {
  return low === high ? pointText(low) : `${pointText(low)}-${pointText(high)}`
}

function pointText(point: number): string {
  const character = String.fromCodePoint(point)
  if (/^[A-Za-z0-9]$/.test(character)) return character
  const hex = point.toString(16).toUpperCase()
  if (point < 0x100) return `\\x${hex.padStart(2, '0')}`
  return point < 0x1_0000 ? `\\u${hex.padStart(4, '0')}` : `\\U${hex.padStart(8, '0')}`
}

function textsOf(value: unknown): string[] {
  return [value].flat().filter((text) => typeof text === 'string')
}
