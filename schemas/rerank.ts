import { z } from 'zod'
import { INPUTS_MAX } from './embeddings.ts'

/**
 * The wire shape of `POST /v1/rerank` (docs/embeddings.md, Reranking) but for `documents`, which are looked at one by one. Cohere's,
 * Jina's and vLLM's are the same in these fields; others are ignored.
 */
export const RerankBody = z.looseObject({
  model: z.string(),
  query: z.string().min(1),
  documents: z.unknown(),
  top_n: z.int().min(1).nullish(),
  return_documents: z.boolean().nullish(),
})
export type RerankBody = z.infer<typeof RerankBody>

/** Most documents of a call: the query is an input as well. */
export const DOCUMENTS_MAX = INPUTS_MAX - 1

/** Which documents an answer tells, and how. */
export const RerankForm = z.strictObject({
  top_n: z.int().min(1).describe('Results at most'),
  documents: z.array(z.string()).optional().describe('Texts to repeat; absent: results name them by their index'),
})
export type RerankForm = z.infer<typeof RerankForm>

/** One document of an answer. */
export interface RerankResult {
  /** Its place among those of the call. */
  index: number
  document?: { text: string }
  /** Cosine to the query, -1 to 1. */
  relevance_score: number
}
