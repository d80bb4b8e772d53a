import { signal, useSignal } from '@preact/signals'
import type { z } from 'zod'
import type { ResearchAnnotation, ResearchEvent, ResearchSource } from '#schemas/kinds/research.ts'
import type { Call } from './call/call.ts'
import { optionsOf } from './call/catalog.ts'
import { CallForm, TextField } from './call/form.tsx'
import { Run, streamed } from './call/run.ts'

const PATH = '/v1/deep-research'

type Citation = z.infer<typeof ResearchAnnotation>['url_citation']
type Progress = Omit<Extract<ResearchEvent, { type: 'progress' }>, 'type'>
type Source = z.infer<typeof ResearchSource>

interface Chunk {
  readonly choices?: readonly {
    readonly delta: {
      readonly content?: string | null
      readonly annotations?: readonly { readonly url_citation: Citation }[]
    }
  }[]
  readonly research_progress?: Progress
  readonly search_results?: readonly Source[]
  readonly research?: { readonly stop_reason: string; readonly searches: number; readonly pages: number }
}

interface Research {
  readonly progress: readonly Progress[]
  readonly report: string
  readonly citations: readonly Citation[]
  readonly note: string
}

const run = new Run()
const research = signal<Research | undefined>(undefined)

async function startResearch(
  model: string,
  question: string,
  options: Readonly<Record<string, unknown>>,
): Promise<void> {
  const body = { model, messages: [{ role: 'user', content: question }], ...options, stream: true }
  const call: Call = { name: model, path: PATH, body }
  let now: Research = { progress: [], report: '', citations: [], note: '' }
  research.value = now
  const startedAt = performance.now()
  const end = await run.start([call], async (abort) => {
    for await (const chunk of streamed<Chunk>(call, abort, run)) {
      now = applyChunk(now, chunk)
      research.value = now
    }
  })
  if (end === 'failed') return
  const seconds = ((performance.now() - startedAt) / 1_000).toFixed(1)
  research.value = { ...now, note: end === 'stopped' ? 'stopped' : `${now.note} in ${seconds} s` }
}

function applyChunk(now: Research, { choices = [], research_progress: progress, research: how }: Chunk): Research {
  const { content, annotations } = choices[0]?.delta ?? {}
  return {
    progress: progress ? [...now.progress, progress] : now.progress,
    report: now.report + (content ?? ''),
    citations: annotations ? annotations.map(({ url_citation }) => url_citation) : now.citations,
    note: how
      ? `Searches: ${how.searches}, pages: ${how.pages}, stop reason: ${how.stop_reason.replace('_', ' ')}`
      : now.note,
  }
}

const OPTIONS = ['reasoning_effort', 'max_sources', 'max_tool_calls', 'max_duration_seconds', 'max_tokens']

const model = signal('')
const question = signal('How are webhooks signed?')
const values = signal<Readonly<Record<string, string>>>({ reasoning_effort: 'low' })

export function ResearchForm() {
  const now = research.value
  return (
    <CallForm
      run={run}
      model={{ capability: 'deep_research', chosen: model }}
      fields={optionsOf('/v1/deep-research', OPTIONS)}
      values={values}
      shown={3}
      verb="Research"
      isReady={question.value.trim() !== ''}
      send={(options) => startResearch(model.value, question.value.trim(), options)}
      outcome={
        now && (
          <>
            <Steps progress={now.progress} isWhole={!run.isBusy.value && now.report !== ''} />
            <p class="dim took">{now.note}</p>
          </>
        )
      }
      hint={
        <p class="dim">
          Without a search backend, sources come from the folder RESEARCH_CORPUS or, if unset, from the Sluice
          documentation.
        </p>
      }
      below={now?.report && <Report text={now.report} citations={now.citations} />}
    >
      <TextField label="Question" text={question} rows={3} />
    </CallForm>
  )
}

function Steps({ progress, isWhole }: { readonly progress: readonly Progress[]; readonly isWhole: boolean }) {
  const last = progress.at(-1)
  if (!last) return run.isBusy.value ? <p class="dim">Waiting for a worker…</p> : null
  return (
    <div class="steps">
      <progress max={100} value={isWhole ? 100 : last.percent} aria-label="Progress" />
      <p class="dim">
        Queries: {last.queries}, sources found: {last.sources_found}, read: {last.sources_read}
      </p>
      <ol aria-live="polite">
        {progress.map(({ sequence, phase, message }) => (
          <li key={sequence} class="step-row">
            <span class="phase">{phase}</span>
            <span>{message}</span>
          </li>
        ))}
      </ol>
    </div>
  )
}

/**
 * Private-use characters that delimit citation markers during parsing. The parser first removes these characters from the report, so that
 * they cannot occur in it.
 */
const [OPEN, CLOSE] = ['\uE000', '\uE001']

const PARTS = new RegExp(`${OPEN}(\\d+) ([^${CLOSE}]*)${CLOSE}|\\[((?:\\\\.|[^\\]\\\\])*)\\]\\(<([^>]*)>\\)`, 'g')

interface ReportProps {
  readonly text: string
  readonly citations: readonly Citation[]
}

function Report({ text, citations }: ReportProps) {
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

/** Shows a source. A web page is a link, and a local document is plain text, because a browser cannot open it. */
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

type Piece =
  | { readonly type: 'text'; readonly text: string }
  | { readonly type: 'link'; readonly text: string; readonly url: string }
  | { readonly type: 'marker'; readonly text: string; readonly nth: number }

interface Line {
  readonly type: 'heading' | 'item' | 'paragraph'
  readonly pieces: readonly Piece[]
}

/**
 * Parses the Markdown subset of reports: headings, list items, links and citation markers. All other syntax is plain
 * text.
 */
function linesOf(report: string, citations: readonly Citation[]): readonly Line[] {
  return marked(report, citations)
    .split('\n')
    .flatMap((line) => (line.trim() === '' ? [] : [lineOf(line)]))
}

/** Puts delimiters around each citation marker. The indices of a citation count code points, so the report is split into code points. */
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
