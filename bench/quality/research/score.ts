import type { ResearchAnnotation } from '#schemas/kinds/research.ts'

export interface QualityQuestion {
  readonly id: string
  readonly question: string
  /** Groups of documents. A report must cite one document of each group. Empty if no document answers the question. */
  readonly documents: readonly (readonly string[])[]
  /** Texts that a correct answer must contain: words, or regular expressions in the form `/…/`. */
  readonly facts: readonly string[]
}

export interface QualityScore {
  readonly question: QualityQuestion
  readonly isGoldCited: boolean
  readonly hasAllFacts: boolean
  /**
   * Fields for the first three statements of the report. `someFirst`: at least one fact is stated. `allFirst`: all facts are stated.
   * `inFirst`: the first statement has a fact.
   */
  readonly someFirst: boolean
  readonly allFirst: boolean
  readonly inFirst: boolean
  readonly citations: number
  readonly chars: number
  readonly contained: number
  readonly milliseconds: number
}

const STATEMENT = /^(?:- )?(.*\[\d+\])$/
const FIRST = 3

export function scoreReport(
  question: QualityQuestion,
  { report, annotations }: { readonly report: string; readonly annotations: readonly ResearchAnnotation[] },
  milliseconds: number,
): QualityScore {
  const text = shown(report)
  const first = statementsOf(report).slice(0, FIRST).map(shown)
  const { documents, facts } = question
  const cited = new Set(annotations.map(({ url_citation }) => documentOf(url_citation.url)))
  const holds = (texts: readonly string[]) => (fact: string) => texts.some((each) => patternOf(fact).test(each))
  return {
    question,
    isGoldCited: documents.length > 0 && documents.every((group) => group.some((name) => cited.has(name))),
    hasAllFacts: facts.length > 0 && facts.every(holds([text])),
    someFirst: facts.some(holds(first)),
    allFirst: facts.length > 0 && facts.every(holds([first.join('\n')])),
    inFirst: facts.some(holds(first.slice(0, 1))),
    citations: annotations.length,
    chars: report.length,
    contained: containedIn(annotations.map(({ url_citation }) => url_citation.quote)),
    milliseconds,
  }
}

/** Returns the lines of a report that end with a citation, in order. A line with several statements is split. */
export function statementsOf(report: string): string[] {
  return report
    .split('\n')
    .filter((line) => STATEMENT.test(line))
    .flatMap((line) => line.split(/(?<=(?<!\\)\[\d+\])\s+(?!\[\d)/))
}

function containedIn(quotes: readonly string[]): number {
  const plain = quotes.map((quote) => quote.replace(/\s+/g, ' '))
  return plain.filter((quote, at) => plain.some((other, n) => n !== at && other.includes(quote))).length
}

function documentOf(url: string): string {
  return decodeURIComponent(url.replace(/#.*$/, ''))
}

function shown(text: string): string {
  return text
    .replace(/\\([!-/:-@[-`{-~])/g, '$1')
    .replace(/\s+/g, ' ')
    .replace(/[‘’]/g, "'")
    .replace(/[“”]/g, '"')
    .replace(/[‐‑]/g, '-')
}

function patternOf(fact: string): RegExp {
  const regular = /^\/(.+)\/$/s.exec(fact)?.[1]
  if (regular !== undefined) return new RegExp(regular, 'iu')
  const literal = shown(fact).replace(/[.*+?^${}()|[\]\\/]/g, '\\$&')
  return new RegExp(`(?<![\\p{L}\\p{N}_])${literal}(?![\\p{L}\\p{N}_])`, 'iu')
}
