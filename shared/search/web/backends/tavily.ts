import { z } from 'zod'
import type { WebService } from '#shared/search/web/web.ts'

const Answer = z.looseObject({
  results: z.array(
    z.looseObject({
      url: z.string(),
      title: z.string().nullish(),
      content: z.string().nullish(),
      published_date: z.string().nullish(),
    }),
  ),
})

/** @param base Base URL of Tavily's search API; tests set another one. */
export function tavily(key: string, base = 'https://api.tavily.com'): WebService<z.infer<typeof Answer>> {
  return {
    name: 'tavily',
    // Price from docs.tavily.com/documentation/api-credits, 2026: a basic search is one credit, $0.008 without a plan.
    searchUsd: 0.008,
    takesDomains: true,
    call(query, { limit, domains }) {
      const body = {
        query,
        max_results: limit,
        search_depth: 'basic',
        include_domains: domains.allow,
        exclude_domains: domains.deny,
      }
      const headers = { authorization: `Bearer ${key}` }
      return { url: new URL('/search', base).href, method: 'POST', headers, body, schema: Answer }
    },
    hits({ results }) {
      return results.map(({ url, title, content, published_date }) => ({
        url,
        title,
        snippet: content,
        date: published_date,
      }))
    },
  }
}
