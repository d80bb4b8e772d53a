import { type RerankEvent, RerankRequest } from '#schemas/rerank.ts'
import { rerankAnswer } from '#shared/protocols/rerank/rerank.ts'
import type { Kind } from './kind.ts'

export const rerank: Kind<RerankRequest, RerankEvent> = {
  name: 'rerank',
  pool: 'embeddings',
  request: RerankRequest,
  merge: () => undefined,
  isOutput: () => true,
  answer: () => rerankAnswer,
}
