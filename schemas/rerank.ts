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

/** A request to rerank, as it travels to a worker. */
export const RerankRequest = z.strictObject({
  model: z.string(),
  query: z.string(),
  documents: z.array(z.string()).min(1).max(DOCUMENTS_MAX),
  top_n: z.int().min(1).describe('Results at most'),
})
export type RerankRequest = z.infer<typeof RerankRequest>

/** What a job of reranking yields: the documents, the nearest first, and what they took. */
export const RerankEvent = z.discriminatedUnion('type', [
  z.strictObject({
    type: z.literal('ranked'),
    results: z.array(
      z.strictObject({
        index: z.int().min(0).describe('Place among the documents of the call'),
        relevance_score: z.number().describe('Higher is nearer'),
      }),
    ),
  }),
  z.strictObject({
    type: z.literal('usage'),
    usage: z.strictObject({ input_tokens: z.int().min(0), output_tokens: z.literal(0) }),
  }),
])
export type RerankEvent = z.infer<typeof RerankEvent>

/** What an answer tells beside its results. */
export const RerankForm = z.strictObject({
  documents: z.array(z.string()).optional().describe('Texts to repeat; absent: results name them by their index'),
})
export type RerankForm = z.infer<typeof RerankForm>
