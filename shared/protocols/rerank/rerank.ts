import type { EmbedEvent } from '#schemas/embeddings.ts'
import type { EncodeContext } from '#schemas/job.ts'
import type { RerankResult } from '#schemas/rerank.ts'
import { inTurns } from '#shared/in-turns.ts'
import type { Answer } from '#shared/kinds/answer.ts'
import { gather, incomplete } from '#shared/protocols/embeddings/embeddings.ts'
import { JsonText } from '#shared/protocols/encode.ts'
import { vectorFromBase64 } from '#shared/vector.ts'

/** Documents as `POST /v1/rerank` sorts them, by their vectors and, behind these, that of the query. */
export const rerankAnswer: Answer<EmbedEvent> = {
  whole(events, context) {
    const ranking = rank(events, context)
    for (;;) {
      const { done, value } = ranking.next()
      if (done) return value
    }
  },
  write: async (events, context) => new JsonText(JSON.stringify(await inTurns(rank(events, context)))),
}

/** To be run in turns: vectors may be 2,048. @throws ServiceError `upstream_error` when some are missing, or differ in length */
function* rank(events: readonly EmbedEvent[], { call_id, model, rerank }: EncodeContext): Generator<undefined, object> {
  const { vectors, usage } = gather(events)
  const query = unitOf(vectors.at(-1) ?? '')
  const found: RerankResult[] = []
  for (const [index, vector] of vectors.slice(0, -1).entries()) {
    const text = rerank?.documents?.[index]
    const relevance_score = dot(query, unitOf(vector))
    found.push({ index, ...(text !== undefined && { document: { text } }), relevance_score })
    yield
  }
  // The sort is stable: equally near ones stay in their order.
  found.sort((a, b) => b.relevance_score - a.relevance_score)
  return { id: `rerank-${call_id}`, object: 'list', model, results: found.slice(0, rerank?.top_n), usage }
}

/** A vector made as long as 1; one without direction is near to nothing. */
function unitOf(text: string): Float64Array {
  const vector = vectorFromBase64(text)
  if (!vector) throw incomplete()
  const numbers = Float64Array.from(vector)
  const length = Math.hypot(...numbers)
  return length > 0 ? numbers.map((number) => number / length) : numbers
}

/** Within its bounds whatever rounding adds. */
function dot(a: Float64Array, b: Float64Array): number {
  if (a.length !== b.length) throw incomplete()
  let sum = 0
  for (let at = 0; at < a.length; at++) sum += (a[at] ?? 0) * (b[at] ?? 0)
  return Math.max(-1, Math.min(1, sum))
}
