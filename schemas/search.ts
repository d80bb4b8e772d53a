import { z } from 'zod'
import { ResearchDomains } from './research/research.ts'

/** One search for a model that answers (docs/responses.md, Hosted tools): what was found, with what it says of the query. */

/** Results of one search. */
export const RESULTS_MAX = 20
/** Characters of a query. */
export const QUERY_CHARS_MAX = 1_000

/** A search, as it travels to a worker. */
export const SearchRequest = z.strictObject({
  query: z.string().min(1).max(QUERY_CHARS_MAX),
  in: z.enum(['web', 'documents']).describe('The services of the web, or the local corpus'),
  limit: z.int().min(1).max(RESULTS_MAX),
  domains: ResearchDomains.default({ allow: [], deny: [] }),
})
export type SearchRequest = z.infer<typeof SearchRequest>

/** One thing that was found. */
export const SearchResult = z.strictObject({
  url: z.string(),
  title: z.string(),
  excerpt: z.string().describe('What it says of the query; of a page that could not be read what the search said'),
  date: z.string().optional().describe('ISO 8601, where it is known'),
})
export type SearchResult = z.infer<typeof SearchResult>

/** The one event of a search, and its answer: best first. */
export const SearchResults = z.strictObject({
  results: z.array(SearchResult),
  usage: z.strictObject({
    input_tokens: z.literal(0),
    output_tokens: z.literal(0),
    cost_usd: z.number().min(0).describe('What the searches were paid'),
  }),
})
export type SearchResults = z.infer<typeof SearchResults>
