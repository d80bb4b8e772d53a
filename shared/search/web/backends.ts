import { z } from 'zod'
import { ServiceError } from '#shared/lib/error.ts'
import type { WebService } from './web.ts'

/*
 * Web search services. Each function has a parameter `base`, the base URL, which tests replace. Prices are list prices of 2026 in US dollars per
 * search.
 */

const Text = z.string().nullish()

function post(path: string, base: string, headers: Record<string, string>, body: object) {
  return { url: new URL(path, base).href, method: 'POST', headers, body } as const
}

const BraveResult = z.looseObject({ url: z.string(), title: Text, description: Text, page_age: Text })
const BraveAnswer = z.looseObject({ web: z.looseObject({ results: z.array(BraveResult) }).nullish() })
const BRAVE_RESULTS_MAX = 20

/** Price: api-dashboard.search.brave.com/app/plans, $5 for 1,000 requests. */
export function brave(key: string, base = 'https://api.search.brave.com'): WebService<z.infer<typeof BraveAnswer>> {
  return {
    name: 'brave',
    searchUsd: 0.005,
    takesDomains: false,
    call(text, { limit, language }) {
      const url = new URL('/res/v1/web/search', base)
      url.searchParams.set('q', text)
      url.searchParams.set('count', String(Math.min(limit, BRAVE_RESULTS_MAX)))
      if (language !== undefined) url.searchParams.set('search_lang', language)
      return { url: url.href, headers: { 'x-subscription-token': key }, schema: BraveAnswer }
    },
    // Brave omits the field `web` if there are no web results, so a missing field means no hits.
    hits: ({ web }) =>
      (web?.results ?? []).map(({ url, title, description, page_age }) => {
        return { url, title, snippet: description, date: page_age }
      }),
  }
}

const ExaResult = z.looseObject({
  ...{ url: z.string(), title: Text, publishedDate: Text },
  highlights: z.array(z.string()).nullish(),
})
const ExaAnswer = z.looseObject({ results: z.array(ExaResult) })
/** Maximum results that the price of a search includes. Each further result costs a seventh of that price. */
const EXA_RESULTS_MAX = 10

/** Price: exa.ai/docs/reference/pricing, $7 for 1,000 requests, with the highlights of 10 results. */
export function exa(key: string, base = 'https://api.exa.ai'): WebService<z.infer<typeof ExaAnswer>> {
  return {
    name: 'exa',
    searchUsd: 0.007,
    takesDomains: true,
    call(query, { limit, domains: { allow, deny } }) {
      const lists = {
        ...(allow.length > 0 && { includeDomains: allow }),
        ...(deny.length > 0 && { excludeDomains: deny }),
      }
      const numResults = Math.min(limit, EXA_RESULTS_MAX)
      const body = { query, numResults, type: 'auto', ...lists, contents: { highlights: true } }
      return { ...post('/search', base, { 'x-api-key': key }, body), schema: ExaAnswer }
    },
    hits: ({ results }) =>
      results.map(({ url, title, publishedDate, highlights }) => {
        return { url, title, snippet: highlights?.[0], date: publishedDate }
      }),
  }
}

const SearxngResult = z.looseObject({ url: z.string(), title: Text, content: Text, publishedDate: Text })
const SearxngAnswer = z.looseObject({
  results: z.array(SearxngResult),
  unresponsive_engines: z.array(z.unknown()).nullish(),
})

/** SearXNG, a self-hosted search service. `base` is its address, such as `http://127.0.0.1:8888`. */
export function searxng(base: string): WebService<z.infer<typeof SearxngAnswer>> {
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
      return { url: url.href, schema: SearxngAnswer, refusedHint }
    },
    hits({ results, unresponsive_engines: failed }) {
      // SearXNG returns 200 with an empty list even if all its engines failed. Such an answer is reported as an outage.
      if (results.length === 0 && failed?.length)
        throw new ServiceError(
          'upstream_error',
          'The search engines behind the search backend searxng did not respond.',
        )
      return results.map(({ url, title, content, publishedDate }) => {
        return { url, title, snippet: content, date: publishedDate }
      })
    },
  }
}

const SerperResult = z.looseObject({ link: z.string(), title: Text, snippet: Text, date: Text })
const SerperAnswer = z.looseObject({ organic: z.array(SerperResult) })
/** Maximum results that cost one credit. A search with more results costs two. */
const SERPER_RESULTS_MAX = 10

/** Serper returns the results of Google. Price: serper.dev, $1 for 1,000 credits in the smallest package. */
export function serper(key: string, base = 'https://google.serper.dev'): WebService<z.infer<typeof SerperAnswer>> {
  return {
    name: 'serper',
    searchUsd: 0.001,
    takesDomains: false,
    call(q, { limit, language }) {
      const body = { q, num: Math.min(limit, SERPER_RESULTS_MAX), ...(language !== undefined && { hl: language }) }
      return { ...post('/search', base, { 'x-api-key': key }, body), schema: SerperAnswer }
    },
    hits: ({ organic }) => organic.map(({ link, title, snippet, date }) => ({ url: link, title, snippet, date })),
  }
}

const TavilyResult = z.looseObject({ url: z.string(), title: Text, content: Text, published_date: Text })
const TavilyAnswer = z.looseObject({ results: z.array(TavilyResult) })

/** Price: docs.tavily.com/documentation/api-credits, a basic search is one credit, $0.008 without a plan. */
export function tavily(key: string, base = 'https://api.tavily.com'): WebService<z.infer<typeof TavilyAnswer>> {
  return {
    name: 'tavily',
    searchUsd: 0.008,
    takesDomains: true,
    call(query, { limit, domains: { allow, deny } }) {
      const body = { query, max_results: limit, search_depth: 'basic', include_domains: allow, exclude_domains: deny }
      return { ...post('/search', base, { authorization: `Bearer ${key}` }, body), schema: TavilyAnswer }
    },
    hits: ({ results }) =>
      results.map(({ url, title, content, published_date }) => {
        return { url, title, snippet: content, date: published_date }
      }),
  }
}
