import { z } from 'zod'
import type { ModelConfig } from '#schemas/models.ts'
import type { Ranked, RerankCall, RerankEngine } from '#shared/engines/rerank.ts'
import { answerError } from '#shared/engines/upstream/error.ts'
import type { ModelPartition } from '#shared/engines/upstream/limit-partition.ts'
import { resultsIn, WholeCalls } from './whole.ts'

const Count = z.int().min(0).optional().catch(undefined)

/** The fields of an answer that are read. Tokens are in `usage` (vLLM, Jina) or in `meta` (Cohere). */
const Answer = z.object({
  results: z.array(z.object({ index: z.int().min(0), relevance_score: z.number() })),
  usage: z.object({ prompt_tokens: Count, total_tokens: Count }).nullish().catch(undefined),
  meta: z
    .object({ tokens: z.object({ input_tokens: Count }).nullish() })
    .nullish()
    .catch(undefined),
})

/**
 * Opens a reranking engine for a server with the POST /rerank of Cohere, Jina and vLLM, which llama.cpp, LocalAI and Infinity also support.
 *
 * @param model A model whose engine has type `openai`.
 * @param env Environment with the key that `api_key_env` names. Without `api_key_env` no key is sent.
 * @param share Shares the servers' limits with other workers if the catalogue sets one; default: no sharing.
 */
export function openUpstreamRerank(
  model: ModelConfig,
  env: Record<string, string | undefined>,
  share?: ModelPartition,
): RerankEngine {
  const calls = new WholeCalls(model, env, share)
  return {
    async rerank(call, { signal }) {
      const { query, documents, top_n } = call
      const asked = { model: calls.name, query, documents, top_n: Math.min(top_n, documents.length) }
      return await calls.call('/rerank', asked, signal, (body) => rankedOf(model.id, body, call))
    },
    close: () => calls.close(),
  }
}

function rankedOf(model: string, body: unknown, { documents, top_n }: RerankCall): Ranked {
  if (resultsIn(body) > documents.length) throw answerError(model, `ranked more than ${documents.length} documents`)
  const { data: answer } = Answer.safeParse(body)
  if (!answer) throw answerError(model, 'sent an answer of an unknown shape')
  const { results, usage, meta } = answer
  const places = new Set(results.map(({ index }) => index))
  const isSound = places.size === results.length && results.every(({ index }) => index < documents.length)
  const wanted = Math.min(top_n, documents.length)
  if (!isSound || results.length < wanted) {
    throw answerError(model, `did not rank ${wanted} of ${documents.length} documents`)
  }
  const sorted = results.toSorted((a, b) => b.relevance_score - a.relevance_score || a.index - b.index)
  const tokens = usage?.prompt_tokens ?? usage?.total_tokens ?? meta?.tokens?.input_tokens
  return { results: sorted.slice(0, wanted), tokens }
}
