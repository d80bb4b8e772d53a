import type { ResearchAnnotation } from '#schemas/kinds/research.ts'
import type { Snapshot } from '#shared/search/search.ts'
import { lineOf } from '#shared/search/text/builder.ts'
import { type Claim, claimsOf, type Draft, withoutLast } from './evidence/draft.ts'
import type { Quote } from './evidence/evidence.ts'

/** Maximum citations of a report. All citations share one event of at most 512 KiB, and one citation takes up to 4.4 KiB. */
const CITATIONS_MAX = 100
const CHARS_PER_TOKEN = 4
/** Maximum gaps (unanswered parts and missing words of the question) that a report lists, and maximum UTF-16 units of each gap. */
const GAPS_MAX = 12
const GAP_CHARS_MAX = 80
/**
 * Words after "how" that ask for a measure, as in "how long". An answer such as "5 m" need not contain the word "long",
 * so such a missing word is not reported as a gap.
 */
const MEASURES = 'long|far|old|big|large|small|high|tall|deep|wide|fast|quickly|slow|soon|early|late|heavy|well|likely'

export interface Report {
  readonly content: string
  readonly annotations: readonly ResearchAnnotation[]
  /** The cited sources. A marker `[n]` in the text cites the source with index `n - 1`. */
  readonly sources: readonly Snapshot[]
  readonly claims: number
  readonly isCut: boolean
}

export interface ReportNotes {
  /** Whether at least one search ran. If false, then the report makes no statement about the contents of sources. */
  readonly isSearched: boolean
  /**
   * Whether the script of the question puts spaces between words. If false, as in Chinese, then the report makes no statement about missing
   * words.
   */
  readonly isDivided: boolean
  readonly caveats: readonly string[]
}

/**
 * Renders a draft as Markdown with numbered citations and a list of sources.
 *
 * If the text is too long, then the least important claims are removed. A binary search finds the largest number of claims that fits.
 *
 * @param tokensMax Maximum length in tokens, each estimated as 4 UTF-16 units. Default: unlimited.
 */
export function assemble(draft: Draft, notes: ReportNotes, tokensMax = Number.POSITIVE_INFINITY): Report {
  const shorter = shorterDrafts(draft)
  const places: QuotePositions = new Map()
  const reportOf = (at: number) => write(shorter[at] ?? draft, notes, at > 0, places)
  const charsMax = tokensMax * CHARS_PER_TOKEN
  let [low, high] = [0, shorter.length - 1]
  while (low < high) {
    const middle = (low + high) >> 1
    if (fits(shorter[middle] ?? draft, reportOf(middle), charsMax)) high = middle
    else low = middle + 1
  }
  const report = reportOf(low)
  return report.content.length <= charsMax ? report : cut(report, charsMax)
}

/**
 * Returns the gaps (unanswered parts and missing words of the question) to report, each truncated to 80 UTF-16 units. Measure words, such
 * as "long" in "how long", are omitted.
 */
export function reportableGaps(question: string, gaps: readonly string[]): string[] {
  const asking = new Set([...question.matchAll(new RegExp(`\\bhow (${MEASURES})\\b`, 'gi'))].map(([, word]) => word))
  const shown = gaps.filter((gap) => !asking.has(gap))
  return shown.map((gap) => (gap.length <= GAP_CHARS_MAX ? gap : `${gap.slice(0, GAP_CHARS_MAX - 1).toWellFormed()}…`))
}

function shorterDrafts(draft: Draft): Draft[] {
  const drafts = [draft]
  for (let last = draft; claimsOf(last).length > 0; ) {
    last = withoutLast(last)
    drafts.push(last)
  }
  return drafts
}

function fits(draft: Draft, { content }: Report, charsMax: number): boolean {
  return content.length <= charsMax && claimsOf(draft).flatMap(({ quotes }) => quotes).length <= CITATIONS_MAX
}

/** Cached position of each quote in its source, in code points. All renderings of one report share the cache. */
type QuotePositions = Map<Quote, { readonly source_start: number; readonly source_end: number }>

function write(draft: Draft, notes: ReportNotes, isCut: boolean, places: QuotePositions): Report {
  const text = new ReportText(places)
  if (claimsOf(draft).length === 0) writeNothingFound(text, isCut, notes)
  else {
    if (draft.summary.length > 0) {
      text.heading('In short')
      text.paragraph(draft.summary)
    }
    for (const { title, claims } of draft.sections) text.section(title, claims)
    text.section('Sources differ', draft.differences ?? [])
  }
  writeGaps(text, draft, notes.caveats)
  text.sources()
  return { ...text.build(), claims: claimsOf(draft).length, isCut }
}

function writeNothingFound(text: ReportText, isCut: boolean, { isSearched, isDivided }: ReportNotes): void {
  if (!isSearched) return text.line('No source was searched, so the report has no answer.')
  if (!isDivided)
    return text.line(
      'No answer was found. The sources may have an answer, because search does not support the script of the question.',
    )
  text.line(
    isCut
      ? 'The sources answer the question, but none of their sentences fits into the requested length.'
      : 'The sources that were searched do not answer this question.',
  )
}

function writeGaps(text: ReportText, { gaps }: Draft, caveats: readonly string[]): void {
  if (gaps.length === 0 && caveats.length === 0) return
  text.heading('Not found')
  if (gaps.length > 0) {
    const named = gaps.slice(0, GAPS_MAX).map((gap) => `“${escapeMarkdown(gap)}”`)
    text.item(`No source that was read mentions ${named.join(', ')}.`)
  }
  for (const remark of caveats) text.item(remark)
}

function cut(report: Report, charsMax: number): Report {
  return {
    ...report,
    content: report.content.slice(0, charsMax).toWellFormed(),
    annotations: [],
    sources: [],
    isCut: true,
  }
}

class ReportText {
  readonly #parts: string[] = []
  readonly #annotations: ResearchAnnotation[] = []
  readonly #sources: Snapshot[] = []
  readonly #quotePositions: QuotePositions
  #points = 0

  constructor(places: QuotePositions) {
    this.#quotePositions = places
  }

  heading(title: string): void {
    this.#push(`${this.#points === 0 ? '' : '\n'}## ${escapeMarkdown(title)}\n\n`)
  }

  line(text: string): void {
    this.#push(`${text}\n`)
  }

  item(text: string): void {
    this.#push(`- ${text}\n`)
  }

  paragraph(claims: readonly Claim[]): void {
    for (const [at, claim] of claims.entries()) this.#claim(claim, at === 0 ? '' : ' ')
    this.#push('\n')
  }

  section(title: string, claims: readonly Claim[]): void {
    if (claims.length === 0) return
    this.heading(title)
    for (const claim of claims) {
      this.#claim(claim, '- ')
      this.#push('\n')
    }
  }

  #claim({ text, quotes, context }: Claim, before: string): void {
    const about = context === undefined ? '' : `${escapeMarkdown(context)}: `
    this.#push(`${before}${about}${escapeMarkdown(text)}`)
    for (const quote of quotes) this.#cite(quote)
  }

  sources(): void {
    if (this.#sources.length === 0) return
    this.heading('Sources')
    for (const [at, { title, url }] of this.#sources.entries()) this.line(`${at + 1}. ${linkTo(title, url)}`)
  }

  build(): Pick<Report, 'content' | 'annotations' | 'sources'> {
    return { content: this.#parts.join(''), annotations: this.#annotations, sources: this.#sources }
  }

  #cite(quote: Quote): void {
    const { source, text } = quote
    this.#push(' ')
    const start_index = this.#points
    this.#push(`[${this.#numberOf(source)}]`)
    const { title, url, sha256 } = source
    const place = this.#positionOf(quote)
    const span = { start_index, end_index: this.#points, title, url }
    this.#annotations.push({
      type: 'url_citation',
      url_citation: { ...span, quote: text, source_sha256: sha256, ...place },
    })
  }

  #positionOf(quote: Quote) {
    const known = this.#quotePositions.get(quote)
    if (known) return known
    const { source, start, text } = quote
    const source_start = pointsOf(source.text, start)
    const place = { source_start, source_end: source_start + pointsOf(text, text.length) }
    this.#quotePositions.set(quote, place)
    return place
  }

  #numberOf(source: Snapshot): number {
    const at = this.#sources.findIndex(({ url, sha256 }) => url === source.url && sha256 === source.sha256)
    return at < 0 ? this.#sources.push(source) : at + 1
  }

  #push(text: string): void {
    this.#parts.push(text)
    this.#points += pointsOf(text, text.length)
  }
}

function pointsOf(text: string, end: number): number {
  let points = 0
  for (let at = 0; at < end; at++) {
    if ((text.charCodeAt(at) & 0xfc00) !== 0xdc00) points++
  }
  return points
}

/* Escaping of untrusted text (sources, models) for Markdown. Untrusted text never becomes markup, a link, an image, HTML or a citation marker. */

/** Joins a text to one line and escapes Markdown syntax. Table cells separated by tabs become cells separated by ` | `. */
export function escapeMarkdown(text: string): string {
  return lineOf(text.replaceAll('\t', ' | '))
    .replace(/[\\`*[\]<>~|&$]/g, '\\$&')
    .replace(/(?<![\p{L}\p{N}])_|_(?![\p{L}\p{N}])/gu, '\\_')
    .replace(/:\/\//g, '\\://')
    .replace(/\b(www|mailto|ftp)([.:])/gi, '$1\\$2')
    .replace(/@/g, '\\@')
    .replace(/^(\s*)([#+=-])/, '$1\\$2')
    .replace(/^(\s*\d{1,9})([.)])/, '$1\\$2')
}

export function linkTo(title: string, url: string): string {
  const address = url.replace(/[<>\s\\]/g, (found) => encodeURIComponent(found))
  return `[${escapeMarkdown(title)}](<${address}>)`
}
