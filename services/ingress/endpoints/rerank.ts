import { z } from 'zod'
import { DOCUMENTS_MAX, RerankBody } from '#schemas/kinds/rerank.ts'
import type { ModelConfig } from '#schemas/models.ts'
import { readInputs, refuse } from '#services/ingress/body/decode.ts'
import { parseBody } from '#services/ingress/body/validate.ts'
import type { JobEndpoint } from '#services/ingress/calls/call.ts'
import { getModel } from '#services/ingress/calls/endpoint.ts'
import { aboutDocuments, rerank as kind } from '#shared/kinds/rerank/rerank.ts'
import { requireShort } from './embeddings.ts'

/**
 * Maximum bytes of the documents as JSON if the answer must repeat them (`return_documents`). The queue record then
 * contains the documents twice: as inputs, and for the answer.
 */
const REPEATED_BYTES_MAX = 48 * 1024

/**
 * POST /v1/rerank (docs/guides/embeddings.md, Reranking): ranks documents with a reranking model, or by the vectors of
 * an embedding model.
 */
export const rerank: JobEndpoint = {
  path: '/v1/rerank',
  async describe() {
    const { RerankAnswer } = await import('#schemas/answers/tools.ts')
    const documents = z.array(z.union([z.string(), z.looseObject({ text: z.string() })])).min(1)
    return {
      id: 'rerank',
      tag: 'Embeddings',
      summary: 'Rerank documents by relevance to a query',
      guide: 'embeddings#reranking',
      body: { RerankRequest: RerankBody.extend({ documents }) },
      answer: { description: 'The documents, most relevant first.', json: { Reranked: RerankAnswer } },
    }
  },
  format: 'openai',
  kind,
  fields: RerankBody.shape,
  requireModel: (context, caller, model) => void getModel(context, caller, model, 'rerank', 'embeddings'),
  prepare(context, caller, body) {
    const asked = parseBody(RerankBody, body, 'openai')
    const model = getModel(context, caller, asked.model, 'rerank', 'embeddings')
    const documents = readDocuments(asked.documents)
    const query = asked.query.toWellFormed()
    if (model.task !== 'rerank') requireShortTexts(documents, query, model)
    return {
      model: model.id,
      named: asked.model,
      body: { model: model.id, query, documents, top_n: asked.top_n ?? documents.length },
      stream: false,
      timeoutMs: context.config.requestTimeoutMs,
      encode: { rerank: asked.return_documents ? { documents: repeatable(documents) } : {} },
    }
  },
}

function requireShortTexts(documents: readonly string[], query: string, model: ModelConfig): void {
  try {
    requireShort([...documents, query], model)
  } catch (error) {
    throw aboutDocuments(error, documents.length)
  }
}

function readDocuments(given: unknown): string[] {
  const texts = Array.isArray(given) ? given.map(textOf) : given
  if (texts !== undefined && texts !== null && !Array.isArray(texts)) {
    refuse('invalid_type', 'documents', "Invalid type for 'documents': expected an array of texts.")
  }
  const documents = readInputs(texts, 'documents').map((text, index) => {
    if (typeof text === 'string') return text
    return refuse('invalid_type', `documents[${index}]`, 'Documents must be texts; token lists are not supported.')
  })
  if (documents.length <= DOCUMENTS_MAX) return documents
  const message = `Invalid 'documents': array too long. Expected an array with maximum length ${DOCUMENTS_MAX}, but got an array with length ${documents.length} instead.`
  return refuse('array_above_max_length', 'documents', message)
}

function textOf(document: unknown): unknown {
  const isObject = typeof document === 'object' && document !== null && 'text' in document
  const text = isObject ? document.text : document
  return typeof text === 'string' ? text.toWellFormed() : text
}

function repeatable(documents: string[]): string[] {
  if (documents.reduce((sum, { length }) => sum + length, 0) <= REPEATED_BYTES_MAX) {
    if (Buffer.byteLength(JSON.stringify(documents)) <= REPEATED_BYTES_MAX) return documents
  }
  const problem = `If the documents have more than ${REPEATED_BYTES_MAX} bytes of JSON, then 'return_documents' must be false.`
  return refuse('invalid_value', 'return_documents', `${problem} Results name each document by its index.`)
}
