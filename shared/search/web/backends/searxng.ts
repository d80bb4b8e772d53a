import { z } from 'zod'
import { ServiceError } from '#shared/lib/error.ts'
import type { WebService } from '#shared/search/web/web.ts'

const Answer = z.looseObject({
  results: z.array(
    z.looseObject({
      url: z.string(),
      title: z.string().nullish(),
      content: z.string().nullish(),
      publishedDate: z.string().nullish(),
    }),
  ),
  unresponsive_engines: z.array(z.unknown()).nullish(),
})

/** SearXNG, a self-hosted search service. @param base Base URL, such as `http://127.0.0.1:8888` */
export function searxng(base: string): WebService<z.infer<typeof Answer>> {
  return {
    name: 'searxng',
    searchUsd: 0,
    takesDomains: false,
    call(text, { language }) {
      const url = new URL('search', base.endsWith('/') ? base : `${base}/`)
      url.searchParams.set('q', text)
      url.searchParams.set('format', 'json')
      if (language !== undefined) url.searchParams.set('language', language)
      const refusedHint = 'SearXNG returns JSON only if its settings.yml lists json in search.formats.'
      return { url: url.href, schema: Answer, refusedHint }
    },
    hits({ results, unresponsive_engines }) {
      // SearXNG returns 200 with an empty list even if all its engines failed. That is an outage, not an empty result.
      if (results.length === 0 && (unresponsive_engines?.length ?? 0) > 0)
        throw new ServiceError(
          'upstream_error',
          'The search engines behind the search backend searxng did not respond.',
        )
      return results.map(({ url, title, content, publishedDate }) => ({
        url,
        title,
        snippet: content,
        date: publishedDate,
      }))
    },
  }
}
