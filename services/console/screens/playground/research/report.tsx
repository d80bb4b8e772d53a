import { useSignal } from '@preact/signals'
import type { Citation } from './run.ts'

/**
 * Private-use characters that delimit citation markers during parsing. The parser first removes these characters from the report, so that
 * they cannot occur in it.
 */
const [OPEN, CLOSE] = ['\uE000', '\uE001']

/** A delimited citation marker, or a Markdown link. */
const PARTS = new RegExp(`${OPEN}(\\d+) ([^${CLOSE}]*)${CLOSE}|\\[((?:\\\\.|[^\\]\\\\])*)\\]\\(<([^>]*)>\\)`, 'g')

interface ReportProps {
  readonly text: string
  readonly citations: readonly Citation[]
}

/** A report with the quoted sentence of each citation next to it. */
export function Report({ text, citations }: ReportProps) {
  const chosen = useSignal<number | undefined>(undefined)
  const choose = (nth: number) => {
    chosen.value = nth
    document.getElementById(`quote-${nth}`)?.scrollIntoView({ block: 'nearest' })
  }
  return (
    <div class="report">
      <article class="card" aria-label="Report">
        {linesOf(text, citations).map((line, nth) => (
          <ReportLine key={nth} line={line} onChoose={choose} />
        ))}
      </article>
      {citations.length > 0 && (
        <section class="quotes" aria-label="Citations">
          <h2>Citations</h2>
          {/* biome-ignore lint/a11y/noNoninteractiveTabindex: a scrollable area must be reachable by keyboard. */}
          <ol tabIndex={0} aria-label="Quotes">
            {citations.map((citation, nth) => (
              <li
                key={`${nth}-${citation.start_index}`}
                id={`quote-${nth}`}
                class={`card ${chosen.value === nth ? 'chosen' : ''}`}
              >
                <Quote citation={citation} marker={markerOf(text, citation)} />
              </li>
            ))}
          </ol>
        </section>
      )}
    </div>
  )
}

function ReportLine({ line, onChoose }: { readonly line: Line; readonly onChoose: (nth: number) => void }) {
  const pieces = line.pieces.map((piece, nth) => <ReportPiece key={nth} piece={piece} onChoose={onChoose} />)
  if (line.type === 'heading') return <h2>{pieces}</h2>
  return <p class={line.type}>{pieces}</p>
}

function ReportPiece({ piece, onChoose }: { readonly piece: Piece; readonly onChoose: (nth: number) => void }) {
  if (piece.type === 'text') return <>{piece.text}</>
  if (piece.type === 'link') return <Link url={piece.url} text={piece.text} />
  return (
    <button type="button" class="marker" aria-label={`Citation ${piece.text}`} onClick={() => onChoose(piece.nth)}>
      {piece.text}
    </button>
  )
}

function Quote({ citation, marker }: { readonly citation: Citation; readonly marker: string }) {
  return (
    <>
      <p class="dim">
        {marker} <Link url={citation.url} text={citation.title} />
      </p>
      <blockquote>{citation.quote}</blockquote>
    </>
  )
}

/** Web pages are links. A local document is plain text, because a browser cannot open it. */
function Link({ url, text }: { readonly url: string; readonly text: string }) {
  if (!/^https?:\/\//.test(url)) return <span title={url}>{text}</span>
  return (
    <a href={url} target="_blank" rel="noopener nofollow noreferrer">
      {text}
    </a>
  )
}

function markerOf(report: string, { start_index, end_index }: Citation): string {
  return [...report].slice(start_index, end_index).join('')
}

/** A part of a line: text, a link, or a citation marker with the index of its citation. */
type Piece =
  | { readonly type: 'text'; readonly text: string }
  | { readonly type: 'link'; readonly text: string; readonly url: string }
  | { readonly type: 'marker'; readonly text: string; readonly nth: number }

interface Line {
  readonly type: 'heading' | 'item' | 'paragraph'
  readonly pieces: readonly Piece[]
}

/** Parses the Markdown subset of reports: headings, list items, links and citation markers. Everything else is text. */
function linesOf(report: string, citations: readonly Citation[]): readonly Line[] {
  return marked(report, citations)
    .split('\n')
    .flatMap((line) => (line.trim() === '' ? [] : [lineOf(line)]))
}

/** Delimits the citation markers. Annotation indices count code points. */
function marked(report: string, citations: readonly Citation[]): string {
  const points = [...report.replaceAll(OPEN, ' ').replaceAll(CLOSE, ' ')]
  const parts: string[] = []
  let at = 0
  for (const [nth, { start_index, end_index }] of citations.entries()) {
    parts.push(points.slice(at, start_index).join(''))
    parts.push(`${OPEN}${nth} ${points.slice(start_index, end_index).join('')}${CLOSE}`)
    at = end_index
  }
  return parts.join('') + points.slice(at).join('')
}

function lineOf(line: string): Line {
  const [, heading] = /^#{1,6} (.*)$/.exec(line) ?? []
  if (heading !== undefined) return { type: 'heading', pieces: piecesOf(heading) }
  const [, item] = /^[-*] (.*)$/.exec(line) ?? []
  if (item !== undefined) return { type: 'item', pieces: piecesOf(item) }
  return { type: 'paragraph', pieces: piecesOf(line) }
}

function piecesOf(line: string): readonly Piece[] {
  const pieces: Piece[] = []
  let at = 0
  for (const found of line.matchAll(PARTS)) {
    const [whole, nth, marker = '', title = '', url = ''] = found
    pieces.push({ type: 'text', text: plain(line.slice(at, found.index)) })
    if (nth === undefined) pieces.push({ type: 'link', text: plain(title), url })
    else pieces.push({ type: 'marker', text: marker, nth: Number(nth) })
    at = found.index + whole.length
  }
  pieces.push({ type: 'text', text: plain(line.slice(at)) })
  return pieces.filter(({ text }) => text !== '')
}

function plain(text: string): string {
  return text.replace(/\\([!-/:-@[-`{-~])/g, '$1')
}
