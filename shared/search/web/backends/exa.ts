import { z } from 'zod'
import type { WebService } from '#shared/search/web/web.ts'

const Answer = z.looseObject({
  results: z.array(
    z.looseObject({
      url: z.string(),
      title: z.string().nullish(),
      publishedDate: z.string().nullish(),
      highlights: z.array(z.string()).nullish(),
    }),
  ),
})

/** Maximum results that the price of a search includes. Each further result costs a seventh of that price. */
const RESULTS_MAX = 10

/** @param base Base URL of Exa's search API; tests set another one. */
export function exa(key: string, base = 'https://api.exa.ai'): WebService<z.infer<typeof Answer>> {
  return {
    name: 'exa',
    // Price from exa.ai/docs/reference/pricing, 2026: $7 for 1,000 requests, with the highlights of 10 results.
    searchUsd: 0.007,
    takesDomains: true,
    call(query, { limit, domains }) {
      const { allow, deny } = domains
      const lists = {
        ...(allow.length > 0 && { includeDomains: allow }),
        ...(deny.length > 0 && { excludeDomains: deny }),
      }
      const body = {
        query,
        numResults: Math.min(limit, RESULTS_MAX),
        type: 'auto',
        ...lists,
        contents: { highlights: true },
      }
      return { url: new URL('/search', base).href, method: 'POST', headers: { 'x-api-key': key }, body, schema: Answer }
    },
    hits({ results }) {
      return results.map(({ url, title, publishedDate, highlights }) => {
        return { url, title, snippet: highlights?.[0], date: publishedDate }
      })
    },
  }
}
