import type { SearchRequest, SearchResult, SearchResults } from '#schemas/kinds/search.ts'
import { ServiceError } from '#shared/lib/error.ts'
import { runYielding } from '#shared/lib/yielding.ts'
import { type Hit, LOCAL_HOST, type ReadOptions, type SearchBackend, type Snapshot } from '#shared/search/search.ts'
import { type Passage, passagesOf } from '#shared/search/text/passages.ts'
import { languageOf, QueryTerms, queryTermsOf } from '#shared/search/text/query-terms.ts'

/** Maximum hits whose page is read for an excerpt. For further hits, the snippet of the backend is returned. */
const READ_MAX = 5
/** Maximum time in ms for reading all pages. For a page that is not read in time, the snippet is returned. */
const READ_MS_MAX = 15_000
const PASSAGES_MAX = 3

interface BackendHit {
  readonly hit: Hit
  readonly backend: SearchBackend
}

/**
 * Runs one search on all backends of the requested kind (web or documents), and reads the best hits for excerpts.
 *
 * @param project Id of the calling project.
 * @throws ServiceError `unsupported_value` if no such backend is configured. The first backend's error if every search failed
 */
export async function searchOnce(
  backends: readonly SearchBackend[],
  request: SearchRequest,
  project: string,
  signal: AbortSignal,
): Promise<SearchResults> {
  const asked = backends.filter(({ name }) => (name === 'local') === (request.in === 'documents'))
  if (asked.length === 0) {
    const what = request.in === 'web' ? 'no web search service is configured' : 'no documents are configured'
    throw new ServiceError('unsupported_value', `No search is possible: ${what} in this deployment.`)
  }
  const found = await findAll(asked, request, signal)
  const best = found.slice(0, request.limit)
  const reading = AbortSignal.any([signal, AbortSignal.timeout(READ_MS_MAX)])
  const results = await Promise.all(
    best.map((each, at) => resultOf(each, at < READ_MAX, request, { project, signal: reading })),
  )
  signal.throwIfAborted()
  const cost_usd = asked.reduce((sum, { searchUsd }) => sum + searchUsd, 0)
  return { results, usage: { input_tokens: 0, output_tokens: 0, cost_usd } }
}

/** Interleaves the hits of the backends by rank (round robin), so that the best hits of each backend come first. */
async function findAll(
  backends: readonly SearchBackend[],
  request: SearchRequest,
  signal: AbortSignal,
): Promise<BackendHit[]> {
  const { query, limit } = request
  // All local documents have one pseudo host, so only that host is allowed. The domain rules of the request apply only to the web.
  const domains = request.in === 'documents' ? { allow: [LOCAL_HOST], deny: [] } : request.domains
  const ends = await Promise.allSettled(backends.map((backend) => backend.search(query, { limit, domains, signal })))
  signal.throwIfAborted()
  const lists = ends.map((end) => (end.status === 'fulfilled' ? end.value : []))
  if (ends.every(({ status }) => status === 'rejected')) throw (ends[0] as PromiseRejectedResult).reason
  const found = new Map<string, BackendHit>()
  for (let at = 0; at < limit; at++) {
    for (const [n, backend] of backends.entries()) {
      const hit = lists[n]?.[at]
      if (hit && !found.has(hit.url)) found.set(hit.url, { hit, backend })
    }
  }
  return [...found.values()]
}

async function resultOf(
  { hit, backend }: BackendHit,
  reads: boolean,
  { query, domains, in: where }: SearchRequest,
  reading: Omit<ReadOptions, 'domains'>,
): Promise<SearchResult> {
  const { url, title, snippet, date } = hit
  const known = { url, title, ...(date !== undefined && { date }) }
  if (!reads) return { ...known, excerpt: snippet }
  const rules = where === 'documents' ? { allow: [LOCAL_HOST], deny: [] } : domains
  try {
    const snapshot = await backend.read(hit, { ...reading, domains: rules })
    return {
      ...known,
      excerpt: (await runYielding(excerptOf(snapshot, query), reading.signal, reading.project)) || snippet,
    }
  } catch {
    return { ...known, excerpt: snippet }
  }
}

/** Returns the passages with the most terms of the query. Passages are in the order of the document. */
function* excerptOf(snapshot: Snapshot, query: string): Generator<undefined, string> {
  const plain = query.normalize('NFC')
  const terms = new Set([...queryTermsOf(plain, languageOf(plain))].map(({ term }) => term))
  const asked = new QueryTerms(terms)
  const ranked: { readonly passage: Passage; readonly text: string; readonly score: number }[] = []
  for (const passage of passagesOf(snapshot)) {
    const text = snapshot.text.slice(passage.start, passage.end)
    const held = asked.termsIn(`${passage.heading} ${text}`)
    ranked.push({ passage, text, score: [...terms].filter((term) => held.has(term)).length })
    yield
  }
  const best = ranked.sort((a, b) => b.score - a.score || a.passage.start - b.passage.start).slice(0, PASSAGES_MAX)
  const told = best.filter(({ score }) => score > 0).sort((a, b) => a.passage.start - b.passage.start)
  return told.map(({ passage, text }) => (passage.heading ? `${passage.heading}\n${text}` : text)).join('\n…\n')
}
