import type { EncodeContext } from '#schemas/job.ts'
import { type RerankEvent, RerankRequest } from '#schemas/kinds/rerank.ts'
import type { Answer } from '#shared/kinds/answer.ts'
import { promptUsage } from '#shared/kinds/embed/embed.ts'
import { unfinished } from '#shared/kinds/encode.ts'
import type { Kind } from '#shared/kinds/kind.ts'
import { ServiceError } from '#shared/lib/error.ts'

export const rerank: Kind<RerankRequest, RerankEvent> = {
  name: 'rerank',
  pool: 'embeddings',
  request: RerankRequest,
  merge: () => undefined,
  isOutput: () => true,
  answer: () => rerankAnswer,
}

const rerankAnswer: Answer<RerankEvent> = { whole: encodeRanking }

function encodeRanking(events: readonly RerankEvent[], { call_id, model, rerank }: EncodeContext): object {
  const ranked = events.find((event) => event.type === 'ranked')
  const used = events.find((event) => event.type === 'usage')
  if (!ranked || !used) throw unfinished()
  const results = ranked.results.map(({ index, relevance_score }) => {
    const text = rerank?.documents?.[index]
    return { index, ...(text !== undefined && { document: { text } }), relevance_score }
  })
  const usage = promptUsage(used.usage.input_tokens)
  return { id: `rerank-${call_id}`, object: 'list', model, results, usage }
}

/**
 * Rewrites an embedding error for a rerank call. The error names an input by its index (`shared/engines/engine.ts`). In a rerank call, the inputs are
 * the documents, followed by the query.
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
