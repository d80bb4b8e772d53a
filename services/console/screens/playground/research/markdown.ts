import type { Citation } from './run.ts'

/** A part of a line: text, a link, or a citation marker with the index of its citation. */
export type Piece =
  | { readonly type: 'text'; readonly text: string }
  | { readonly type: 'link'; readonly text: string; readonly url: string }
  | { readonly type: 'marker'; readonly text: string; readonly nth: number }

export interface Line {
  readonly type: 'heading' | 'item' | 'paragraph'
  readonly pieces: readonly Piece[]
}

/** Private-use characters that delimit citation markers during parsing. The parser first removes these characters from the report. */
const [OPEN, CLOSE] = ['\uE000', '\uE001']
/** A delimited citation marker, or a Markdown link. */
const PARTS = new RegExp(`${OPEN}(\\d+) ([^${CLOSE}]*)${CLOSE}|\\[((?:\\\\.|[^\\]\\\\])*)\\]\\(<([^>]*)>\\)`, 'g')

/** Parses the Markdown subset of reports: headings, list items, links and citation markers. Everything else is text. */
export function linesOf(report: string, citations: readonly Citation[]): readonly Line[] {
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
