import {
  type ResearchAnnotation,
  type ResearchEvent,
  ResearchRequest,
  type ResearchSource,
} from '#schemas/kinds/research.ts'
import { type ResearchSetup, runResearch } from '#services/research/loop.ts'
import { openLocalCorpus } from '#shared/search/local/local.ts'
import { type SearchBackend, type Snapshot, sha256Of } from '#shared/search/search.ts'
import { TextBuilder } from '#shared/search/text/builder.ts'
import { readMarkdown } from '#shared/search/text/markdown.ts'
import { MemoryComposition } from './composition.ts'

type EndEvent = Extract<ResearchEvent, { type: 'end' }>

/** Complete result of a research. */
export interface RunResult {
  readonly report: string
  readonly annotations: readonly ResearchAnnotation[]
  readonly results: readonly ResearchSource[]
  readonly end: EndEvent
  readonly usage: Extract<ResearchEvent, { type: 'usage' }>['usage'] | undefined
  readonly events: readonly ResearchEvent[]
}

/**
 * Runs a research to its end.
 *
 * @throws The error of the run
 */
export async function researched(
  setup: Omit<ResearchSetup, 'project'>,
  request: Partial<ResearchRequest> & { question: string },
  composition = new MemoryComposition(),
  signal = new AbortController().signal,
): Promise<RunResult> {
  const events: ResearchEvent[] = []
  const parsed = ResearchRequest.parse({ model: 'dr', ...request })
  for await (const event of runResearch({ ...setup, project: 'prj_1' }, parsed, composition, signal)) events.push(event)
  const end = events.at(-1)
  if (end?.type !== 'end') throw new Error('The run did not yield an end.')
  return {
    report: events.map((event) => (event.type === 'text' ? event.text : '')).join(''),
    annotations: events.flatMap((event) => (event.type === 'annotations' ? event.annotations : [])),
    results: events.flatMap((event) => (event.type === 'search_results' ? event.results : [])),
    usage: events.flatMap((event) => (event.type === 'usage' ? [event.usage] : []))[0],
    end,
    events,
  }
}

/** A search backend whose pages are given by the test: Markdown texts by URL. A search returns every page that has a word of the query. */
export class PagesBackend implements SearchBackend {
  readonly name = 'pages'
  readonly searchUsd: number
  readonly queries: string[] = []
  readonly #pages: Readonly<Record<string, string>>

  constructor(pages: Readonly<Record<string, string>>, searchUsd = 0) {
    this.#pages = pages
    this.searchUsd = searchUsd
  }

  async search(query: string) {
    this.queries.push(query)
    const words = query.toLowerCase().match(/\w{3,}/g) ?? []
    const found = Object.entries(this.#pages).filter(([, page]) =>
      words.some((word) => page.toLowerCase().includes(word)),
    )
    return found.map(([url]) => ({ url, title: url, snippet: '' }))
  }

  async read({ url }: { url: string }): Promise<Snapshot> {
    return snapshotOf(url, this.#pages[url] ?? '')
  }

  async close(): Promise<void> {}
}

/** Converts a Markdown text to a page, as the page reader does. */
export function snapshotOf(url: string, markdown: string): Snapshot {
  const builder = new TextBuilder(48 * 1024)
  readMarkdown(markdown, builder)
  const { title, text, blocks } = builder.build()
  return { url, title: title || url, text, blocks, sha256: sha256Of(text) }
}

/**
 * Returns two texts for each citation of a report. `marker` is the text between the offsets of the citation, which should be the citation
 * marker. `quote` is the quote of the source.
 */
export function spansOf({ report, annotations }: RunResult): { marker: string; quote: string }[] {
  const points = Array.from(report)
  return annotations.map(({ url_citation: { start_index, end_index, quote } }) => ({
    marker: points.slice(start_index, end_index).join(''),
    quote,
  }))
}

/**
 * A search backend over a folder, indexed once.
 *
 * @param index Folder for the index
 */
export async function openFolder(directory: string, index: string): Promise<SearchBackend> {
  const corpus = openLocalCorpus({ corpus: { directory, paths: ['.'] }, directory: index })
  await corpus.refresh()
  return corpus
}
