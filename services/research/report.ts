import type { ResearchAnnotation } from '#schemas/research/research.ts'
import type { Snapshot } from '#shared/search/search.ts'
import { type Claim, claimsOf, type Draft, withoutLast } from './draft.ts'
import type { Quote } from './evidence/evidence.ts'
import { escapeMarkdown, linkTo } from './markdown.ts'

/** Citations of a report: all of them travel in one event, which may have 512 KiB, and one takes 4.4 KiB at most. */
const CITATIONS_MAX = 100
/** UTF-16 units that a token stands for, where a length is given in tokens. */
const CHARS_PER_TOKEN = 4
const GAPS_MAX = 12
/** UTF-16 units of each. */
const GAP_CHARS_MAX = 80
/** Words that with "how" ask for a measure: no source has to say them. */
const MEASURES = 'long|far|old|big|large|small|high|tall|deep|wide|fast|quickly|slow|soon|early|late|heavy|well|likely'

/** A report as it is sent. */
export interface Report {
  readonly content: string
  /** Sorted by where they stand. */
  readonly annotations: readonly ResearchAnnotation[]
  /** Sources in the order of their numbers. */
  readonly sources: readonly Snapshot[]
  readonly claims: number
  /** It did not fit into the length that was asked for. */
  readonly isCut: boolean
}

/** What is said beside the claims. */
export interface ReportNotes {
  /** Whether there was time to search: a source that nobody has asked says neither yes nor no. */
  readonly isSearched: boolean
  /** Whether the question could be divided into words. If not, no statement about the sources is possible. */
  readonly isDivided: boolean
  /** Sentences on how the run went that a reader must know of: searches that failed, a bound that ended it. */
  readonly remarks: readonly string[]
}

/** Puts a draft into Markdown, with numbers, annotations and sources, within a length: as many of its claims as fit. */
export function assemble(draft: Draft, notes: ReportNotes, tokensMax = Number.POSITIVE_INFINITY): Report {
  const shorter = shorterOnes(draft)
  const places: Places = new Map()
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

/** What of a question no source speaks of, without words that belong to its asking, and each no longer than a line. */
export function gapsWorthTelling(question: string, gaps: readonly string[]): string[] {
  const asking = new Set([...question.matchAll(new RegExp(`\\bhow (${MEASURES})\\b`, 'gi'))].map(([, word]) => word))
  const shown = gaps.filter((gap) => !asking.has(gap))
  return shown.map((gap) => (gap.length <= GAP_CHARS_MAX ? gap : `${gap.slice(0, GAP_CHARS_MAX - 1).toWellFormed()}…`))
}

/** The draft, and what is left of it without its last claim, its last two, and so on. */
function shorterOnes(draft: Draft): Draft[] {
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

/** Where quotes stand in code points; counted once, however often a report is written. */
type Places = Map<Quote, { readonly source_start: number; readonly source_end: number }>

function write(draft: Draft, notes: ReportNotes, isCut: boolean, places: Places): Report {
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
  writeGaps(text, draft, notes.remarks)
  text.sources()
  return { ...text.build(), claims: claimsOf(draft).length, isCut }
}

function writeNothingFound(text: ReportText, isCut: boolean, { isSearched, isDivided }: ReportNotes): void {
  if (!isSearched) return text.line('No source was searched, so nothing is known of an answer.')
  if (!isDivided)
    return text.line(
      'No answer was found. Search does not support the script of the question, so sources may have one.',
    )
  text.line(
    isCut
      ? 'The sources answer the question, but no sentence of them fits into the length that was asked for.'
      : 'The sources that were searched do not answer this question.',
  )
}

function writeGaps(text: ReportText, { gaps }: Draft, remarks: readonly string[]): void {
  if (gaps.length === 0 && remarks.length === 0) return
  text.heading('Not found')
  if (gaps.length > 0) {
    const named = gaps.slice(0, GAPS_MAX).map((gap) => `“${escapeMarkdown(gap)}”`)
    text.item(`No source that was read mentions ${named.join(', ')}.`)
  }
  for (const remark of remarks) text.item(remark)
}

/** Where not even the plain words fit, they are cut; there is nothing in them to cite. */
function cut(report: Report, charsMax: number): Report {
  return {
    ...report,
    content: report.content.slice(0, charsMax).toWellFormed(),
    annotations: [],
    sources: [],
    isCut: true,
  }
}

/** Writes Markdown, and remembers which of its code points are citations. */
class ReportText {
  readonly #parts: string[] = []
  readonly #annotations: ResearchAnnotation[] = []
  readonly #sources: Snapshot[] = []
  readonly #places: Places
  #points = 0

  constructor(places: Places) {
    this.#places = places
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

  /** Claims one after the other, each with its citations. */
  paragraph(claims: readonly Claim[]): void {
    for (const [at, claim] of claims.entries()) this.#claim(claim, at === 0 ? '' : ' ')
    this.#push('\n')
  }

  /** A heading with claims as a list; nothing if there are none. */
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
    const place = this.#placeOf(quote)
    const span = { start_index, end_index: this.#points, title, url }
    this.#annotations.push({
      type: 'url_citation',
      url_citation: { ...span, quote: text, source_sha256: sha256, ...place },
    })
  }

  #placeOf(quote: Quote) {
    const known = this.#places.get(quote)
    if (known) return known
    const { source, start, text } = quote
    const source_start = pointsOf(source.text, start)
    const place = { source_start, source_end: source_start + pointsOf(text, text.length) }
    this.#places.set(quote, place)
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

/** Code points of a text before an offset in UTF-16 units. */
function pointsOf(text: string, end: number): number {
  let points = 0
  for (let at = 0; at < end; at++) {
    // The second half of a pair counts with the first.
    if ((text.charCodeAt(at) & 0xfc00) !== 0xdc00) points++
  }
  return points
}
