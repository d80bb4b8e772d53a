import { useSignal } from '@preact/signals'
import { type Line, linesOf, type Piece } from './markdown.ts'
import type { Citation } from './run.ts'

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
