/*
 * What a piece of a grammar costs while it runs. llama.cpp keeps a stack for each way in which the text so far may go on,
 * and holds each one against each token of the vocabulary. Alternatives that begin alike go on side by side; of two that
 * both contain themselves there are twice as many ways at each level, so that a few dozen tokens are minutes of a core
 * that nothing can interrupt. So both are counted while the grammar is written.
 */

/** Most ways to go on at one place. 1,000 cost 20 ms to set up and 0.3 s a token; both grow with the square. */
const WAYS_MAX = 1_000
/** Ways to begin that are assumed of a rule that is not written yet, and must hold when it is. */
const STARTS_ASSUMED = 50
/** Characters of an opening that are compared. */
const OPENING_CHARS_MAX = 200

/** Why a schema gets no grammar; its message ends a sentence that begins with "The JSON schema". */
export class SchemaProblem extends Error {
  /** Path of the part that has the problem, such as `.properties.a`; empty: the schema as a whole. */
  readonly path: string

  constructor(message: string, path = '') {
    super(message)
    this.path = path
  }
}

/** No value fits a schema. An alternative, an optional property or an item that has the problem is left out. */
export class Impossible extends SchemaProblem {
  constructor(path: string) {
    super('accepts no value', path)
  }
}

/** A rule that a reference names. It is open while it is written: what leads back to it then is a cycle. */
export interface Reference {
  readonly name: string
  /** How many were open before it. */
  readonly order: number
  /** Objects and arrays around it. */
  readonly depth: number
  isOpen: boolean
  isAssumed: boolean
  match?: Match
}

/** A piece of a grammar, and what is known of the text it matches. */
export interface Match {
  /** GBNF: the name of a rule, or a body. */
  readonly text: string
  /** What every match begins with, as far as it is known. */
  readonly opening: string
  /** The opening is all there is. */
  readonly isWhole: boolean
  /** Ways to begin. */
  readonly starts: number
  /** Most ways at once at any place. */
  readonly ways: number
  /** The first of the open rules that it leads back to. */
  readonly cycle: Reference | undefined
}

/** A piece with a known opening, around others. */
export function matchOf(text: string, opening: string, inner: readonly Match[] = [], ways = 1): Match {
  return {
    text,
    opening: opening.slice(0, OPENING_CHARS_MAX),
    isWhole: false,
    starts: 1,
    ways: bounded(inner.reduce((most, match) => Math.max(most, match.ways), ways)),
    cycle: firstCycle(inner),
  }
}

/** Exactly this text, which is JSON. Both notations escape in the same way. */
export function literal(json: string): Match {
  const text = JSON.stringify(json)
  return { ...matchOf(text, json), isWhole: json.length <= OPENING_CHARS_MAX }
}

/** One of these, which is written in so many ways. */
export function alike(text: string, ways: number): Match {
  return { ...matchOf(text, '', [], ways), starts: ways }
}

/** One of several pieces. @throws SchemaProblem when too many go on side by side */
export function choice(alternatives: readonly Match[]): Match {
  const distinct = [...new Map(alternatives.map((match) => [match.text, match])).values()]
  const [only] = distinct
  if (only !== undefined && distinct.length === 1) return only
  const starts = bounded(distinct.reduce((total, match) => total + match.starts, 0))
  return {
    text: distinct.map((match) => match.text).join(' | '),
    opening: '',
    isWhole: false,
    starts,
    ways: Math.max(starts, countSideBySide(distinct)),
    cycle: firstCycle(distinct),
  }
}

/** What is known of a rule that is not written yet. */
export function openMatch(reference: Reference): Match {
  reference.isAssumed = true
  return { ...alike(reference.name, STARTS_ASSUMED), ways: 1, cycle: reference }
}

/** Ends the writing of a referenced rule. @throws SchemaProblem when it begins in more ways than was assumed */
export function close(reference: Reference, match: Match): void {
  reference.isOpen = false
  reference.match = { ...match, text: reference.name }
  if (reference.isAssumed && match.starts > STARTS_ASSUMED) throw tooManyWays()
}

/** Most ways at once where alternatives begin with the same text. */
function countSideBySide(alternatives: readonly Match[]): number {
  const sorted = alternatives.toSorted((a, b) => (a.opening < b.opening ? -1 : 1))
  const path: { opening: string; ways: number; cycles: number }[] = []
  let most = 0
  for (const { opening, ways, cycle } of sorted) {
    while (path.length > 0 && !opening.startsWith(path.at(-1)?.opening ?? '')) path.pop()
    const { ways: before = 0, cycles = 0 } = path.at(-1) ?? {}
    const here = { opening, ways: before + ways, cycles: cycles + (cycle?.isOpen ? 1 : 0) }
    if (here.cycles > 1) throw new SchemaProblem('has alternatives that begin alike and all contain themselves')
    path.push(here)
    most = Math.max(most, here.ways)
  }
  return bounded(most)
}

function firstCycle(matches: readonly Match[]): Reference | undefined {
  const open = matches.flatMap(({ cycle }) => (cycle?.isOpen ? [cycle] : []))
  return open.reduce<Reference | undefined>((first, one) => (first && first.order < one.order ? first : one), undefined)
}

function bounded(ways: number): number {
  if (ways > WAYS_MAX) throw tooManyWays()
  return ways
}

function tooManyWays(): SchemaProblem {
  return new SchemaProblem(`leaves more than ${WAYS_MAX} ways to go on at one place`)
}
