import { z } from 'zod'
import { ResearchDomains } from './research.ts'

/*
 * Search as a tool that Sluice runs for a model (docs/guides/responses.md, Hosted tools). The excerpt of each result is the passage that
 * matches the query best.
 */

export const RESULTS_MAX = 20
export const QUERY_CHARS_MAX = 1_000

export const SearchRequest = z.strictObject({
  query: z.string().min(1).max(QUERY_CHARS_MAX),
  in: z.enum(['web', 'documents']).describe('web: search services. documents: the local corpus'),
  limit: z.int().min(1).max(RESULTS_MAX),
  domains: ResearchDomains.default({ allow: [], deny: [] }),
})
export type SearchRequest = z.infer<typeof SearchRequest>

export const SearchResult = z.strictObject({
  url: z.string(),
  title: z.string(),
  excerpt: z.string().describe('Passage about the query. For an unreadable page, the snippet of the search service'),
  date: z.string().optional().describe('ISO 8601 date, if known'),
})
export type SearchResult = z.infer<typeof SearchResult>

/** Only event of a search job: the results, best first. */
export const SearchResults = z.strictObject({
  results: z.array(SearchResult),
  usage: z.strictObject({
    input_tokens: z.literal(0),
    output_tokens: z.literal(0),
    cost_usd: z.number().min(0).describe('Cost of the search services'),
  }),
})
export type SearchResults = z.infer<typeof SearchResults>
