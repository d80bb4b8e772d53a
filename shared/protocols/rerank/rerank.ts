import type { EncodeContext } from '#schemas/job.ts'
import type { RerankEvent } from '#schemas/rerank.ts'
import type { Answer } from '#shared/kinds/answer.ts'
import { unfinished } from '#shared/protocols/encode.ts'

/** The answer of `POST /v1/rerank`: documents by descending relevance. */
export const rerankAnswer: Answer<RerankEvent> = { whole: encodeRanking }

/** @throws ServiceError `upstream_error` if results or usage are missing */
function encodeRanking(events: readonly RerankEvent[], { call_id, model, rerank }: EncodeContext): object {
  const ranked = events.find((event) => event.type === 'ranked')
  const used = events.find((event) => event.type === 'usage')
  if (!ranked || !used) throw unfinished()
  const results = ranked.results.map(({ index, relevance_score }) => {
    const text = rerank?.documents?.[index]
    return { index, ...(text !== undefined && { document: { text } }), relevance_score }
  })
  const tokens = used.usage.input_tokens
  const usage = {
    prompt_tokens: tokens,
    completion_tokens: 0,
    total_tokens: tokens,
    prompt_tokens_details: null,
    completion_tokens_details: null,
  }
  return { id: `rerank-${call_id}`, object: 'list', model, results, usage }
}
