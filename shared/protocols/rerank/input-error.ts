import { ServiceError } from '#shared/lib/error.ts'

/**
 * Rewrites an embedding error for a rerank call. Embedding errors name an input by its index (`shared/engines/embedding.ts`). In a rerank
 * call the inputs are the documents, followed by the query.
 *
 * @param count Number of documents in the call
 */
export function aboutDocuments(error: unknown, count: number): unknown {
  if (!(error instanceof ServiceError) || !/^input\b/.test(error.param ?? '')) return error
  const { code, cause, message, isUndone, retryAfterMs } = error
  const place = /^input\[(\d+)\]/.exec(error.param ?? '')?.[1] ?? /^Input (\d+)\b/.exec(message)?.[1]
  const named = place === undefined ? undefined : nameOf(Number(place), count)
  const text = message.replace(/^The inputs have\b/, 'The query and the documents have')
  return new ServiceError(code, named ? text.replace(/^Input \d+\b/, named.subject) : text, {
    ...{ cause, isUndone, param: named?.param ?? 'documents' },
    ...(retryAfterMs !== undefined && { retryAfterMs }),
  })
}

function nameOf(index: number, count: number): { param: string; subject: string } {
  const isQuery = index >= count
  return isQuery
    ? { param: 'query', subject: 'The query' }
    : { param: `documents[${index}]`, subject: `Document ${index}` }
}
