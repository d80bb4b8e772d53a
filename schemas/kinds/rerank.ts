import { z } from 'zod'
import { INPUTS_MAX } from './embeddings.ts'

/**
 * Body of `POST /v1/rerank` (docs/guides/embeddings.md, Reranking): the fields that the APIs of Cohere, Jina and vLLM have in common. The decoder
 * checks `documents` one at a time. Unknown fields are ignored.
 */
export const RerankBody = z.looseObject({
  model: z.string().describe('Model id or alias'),
  query: z.string().min(1).describe('Text to which the documents are compared'),
  documents: z.unknown(),
  top_n: z.int().min(1).nullish().describe('Maximum results. Default: all documents'),
  return_documents: z.boolean().nullish().describe('Include the text of each document in the results'),
})
export type RerankBody = z.infer<typeof RerankBody>

/** Maximum documents per request. The query is embedded together with the documents, so it takes one of the {@link INPUTS_MAX} inputs. */
export const DOCUMENTS_MAX = INPUTS_MAX - 1

export const RerankRequest = z.strictObject({
  model: z.string(),
  query: z.string(),
  documents: z.array(z.string()).min(1).max(DOCUMENTS_MAX),
  top_n: z.int().min(1).describe('Maximum results'),
})
export type RerankRequest = z.infer<typeof RerankRequest>

/** Events of a rerank job: the results, most relevant first, then the usage. */
export const RerankEvent = z.discriminatedUnion('type', [
  z.strictObject({
    type: z.literal('ranked'),
    results: z.array(
      z.strictObject({
        index: z.int().min(0).describe('Index of the document in the request'),
        relevance_score: z.number().describe('Higher is more relevant'),
      }),
    ),
  }),
  z.strictObject({
    type: z.literal('usage'),
    usage: z.strictObject({ input_tokens: z.int().min(0), output_tokens: z.literal(0) }),
  }),
])
export type RerankEvent = z.infer<typeof RerankEvent>

export const RerankForm = z.strictObject({
  documents: z
    .array(z.string())
    .optional()
    .describe('Document texts to include in the results. Absent: results contain only the index'),
})
export type RerankForm = z.infer<typeof RerankForm>
