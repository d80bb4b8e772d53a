import { z } from 'zod'
import type { RawHit } from '#shared/search/web/web.ts'
import { failed } from './failure.ts'
import type { ToolAnswer } from './session.ts'

/** Results that are looked at. */
const RESULTS_MAX = 100
const ID_CHARS_MAX = 2_048

const Id = z.union([z.string().min(1).max(ID_CHARS_MAX), z.number()]).transform(String)

/** A result as OpenAI's deep research wants it of MCP servers, and what many add. */
const Result = z.looseObject({
  id: Id.optional().catch(undefined),
  url: z.string(),
  title: z.string().nullish().catch(null),
  text: z.string().nullish().catch(null),
  snippet: z.string().nullish().catch(null),
  date: z.string().nullish().catch(null),
})
const Results = z.union([z.looseObject({ results: z.array(z.unknown()) }), z.array(z.unknown())])

/** A document, by the same agreement. */
const Document = z.looseObject({
  title: z.string().nullish().catch(null),
  text: z.string(),
})
export type McpDocument = z.infer<typeof Document>

/**
 * The results that a tool which searches gives: `{results: [{id, title, url}]}`, as JSON in its text or as structured content.
 *
 * @throws ServiceError `upstream_error` where it gives something else, or results without addresses
 */
export function resultsOf(answer: ToolAnswer): RawHit[] {
  const all = Results.safeParse(dataOf(answer))
  if (!all.success) throw failed('answers something else than results', all.error)
  const given = Array.isArray(all.data) ? all.data : all.data.results
  const results = given.slice(0, RESULTS_MAX).flatMap((each) => Result.safeParse(each).data ?? [])
  if (given.length > 0 && results.length === 0) throw failed('gives results without addresses')
  return results.map(({ id, url, title, text, snippet, date }) => {
    return { url, title, snippet: snippet ?? text, date, ...(id !== undefined && { id }) }
  })
}

/** The document that `fetch` gives. @throws ServiceError `upstream_error` where it gives something else */
export function documentOf(answer: ToolAnswer): McpDocument {
  const document = Document.safeParse(dataOf(answer))
  if (!document.success) throw failed('answers something else than a document', document.error)
  return document.data
}

/** The result of a tool, parsed as JSON. Text that is not JSON is returned as a string, which every schema rejects. */
function dataOf({ isError, structuredContent, content }: ToolAnswer): unknown {
  const text = content.find((part) => part.type === 'text')?.text ?? ''
  if (isError) throw failed('says that the call has failed', new Error(text.slice(0, 300)))
  if (structuredContent !== undefined) return unwrapped(structuredContent)
  try {
    return JSON.parse(text)
  } catch {
    return text
  }
}

/** Some frameworks put what a function returns under `result`. */
function unwrapped(content: unknown): unknown {
  const { result, ...rest } = content as { result?: unknown }
  return result !== undefined && Object.keys(rest).length === 0 ? result : content
}
