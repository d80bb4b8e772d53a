import { z } from 'zod'
import type { WebService } from '#shared/search/web/web.ts'

const Answer = z.looseObject({
  organic: z.array(
    z.looseObject({
      link: z.string(),
      title: z.string().nullish(),
      snippet: z.string().nullish(),
      date: z.string().nullish(),
    }),
  ),
})

/** Maximum results that cost one credit. A search with more results costs two. */
const RESULTS_MAX = 10

/** @param base Base URL of Serper, which returns the results of Google; tests set another one. */
export function serper(key: string, base = 'https://google.serper.dev'): WebService<z.infer<typeof Answer>> {
  return {
    name: 'serper',
    // Price from serper.dev, 2026: $1 for 1,000 credits in the smallest package.
    searchUsd: 0.001,
    takesDomains: false,
    call(q, { limit, language }) {
      const body = { q, num: Math.min(limit, RESULTS_MAX), ...(language !== undefined && { hl: language }) }
      return { url: new URL('/search', base).href, method: 'POST', headers: { 'x-api-key': key }, body, schema: Answer }
    },
    hits({ organic }) {
      return organic.map(({ link, title, snippet, date }) => ({ url: link, title, snippet, date }))
    },
  }
}
