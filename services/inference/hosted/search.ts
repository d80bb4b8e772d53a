import type { GenerateRequest } from '#schemas/generate.ts'
import { QUERY_CHARS_MAX, type SearchRequest, SearchResults } from '#schemas/search.ts'
import { tolerant } from '#shared/tolerant.ts'
import { type HostedRunner, notRun, textField } from './tool.ts'

const RESULTS_USUAL = 8
/** Maximum time of a search, including reading the pages found. */
const SEARCH_MS_MAX = 60_000
/** Maximum characters of one search's results for the model. */
const READ_CHARS_MAX = 32 * 1024

const Found = tolerant(SearchResults)

/** The `web_search` and `file_search` tools, run by the research pool. */
export const searching: HostedRunner = {
  read(text) {
    const query = textField(text, 'query')?.trim()
    if (!query) return { input: query ?? text, problem: 'The arguments must be a JSON object with the text "query".' }
    return { input: query.slice(0, QUERY_CHARS_MAX).toWellFormed() }
  },
  child(query, tool, { hosted }: GenerateRequest) {
    const search = hosted?.search
    const limits = { limit: search?.results_max ?? RESULTS_USUAL, domains: search?.domains ?? { allow: [], deny: [] } }
    const body: SearchRequest = { query, in: tool === 'web_search' ? 'web' : 'documents', ...limits }
    // A search has no endpoint of its own. This one selects the pool and model that search.
    const endpoint = '/v1/deep-research'
    const model = search?.model ?? ''
    return { endpoint, kind: 'search', pool: 'research', model, body, deadlineInMs: SEARCH_MS_MAX }
  },
  result({ result }) {
    const read = Found.safeParse(result)
    if (!read.success) return notRun('The result could not be read.')
    const { results } = read.data
    const entries = results.map(({ url, title, excerpt, date }, at) => {
      return `[${at + 1}] ${title}\n${url}${date === undefined ? '' : ` (${date})`}\n${excerpt}`
    })
    const text = entries.join('\n\n') || 'Nothing was found.'
    return { status: 'completed', output: results, text: text.slice(0, READ_CHARS_MAX).toWellFormed() }
  },
}
