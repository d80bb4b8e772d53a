import { z } from 'zod'
import type { WebService } from '#shared/search/web/web.ts'

const Answer = z.looseObject({
  web: z
    .looseObject({
      results: z.array(
        z.looseObject({
          url: z.string(),
          title: z.string().nullish(),
          description: z.string().nullish(),
          page_age: z.string().nullish(),
        }),
      ),
    })
    .nullish(),
})

const COUNT_MAX = 20

/** @param base Base URL of Brave's search API; tests set another one. */
export function brave(key: string, base = 'https://api.search.brave.com'): WebService<z.infer<typeof Answer>> {
  return {
    name: 'brave',
    // Price from api-dashboard.search.brave.com/app/plans, 2026: $5 for 1,000 requests.
    searchUsd: 0.005,
    takesDomains: false,
    call(text, { limit, language }) {
      const url = new URL('/res/v1/web/search', base)
      url.searchParams.set('q', text)
      url.searchParams.set('count', String(Math.min(limit, COUNT_MAX)))
      if (language !== undefined) url.searchParams.set('search_lang', language)
      return { url: url.href, headers: { 'x-subscription-token': key }, schema: Answer }
    },
    // Brave omits the field `web` if it has no web results.
    hits({ web }) {
      return (web?.results ?? []).map(({ url, title, description, page_age }) => {
        return { url, title, snippet: description, date: page_age }
      })
    },
  }
}
