export interface RankedDocument {
  /** Position among the documents of the call. */
  readonly index: number
  readonly relevance_score: number
}

export interface Ranked {
  /** Most relevant first. */
  readonly results: readonly RankedDocument[]
  /** Tokens of the query and all documents; undefined if the engine does not count. */
  readonly tokens: number | undefined
}

export interface RerankCall {
  readonly query: string
  readonly documents: readonly string[]
  /** Maximum number of results: the most relevant documents. */
  readonly top_n: number
}

/**
 * The reranking engine port: a model that reads query and document together.
 *
 * Contract of every engine:
 *
 * 1. There are `top_n` results, or one per document if there are fewer documents; each document occurs at most once.
 * 2. If `signal` aborts, then the work stops within a second and an upstream's socket is closed.
 * 3. An error is thrown as a ServiceError whose code says whether a retry can help.
 */
export interface RerankEngine {
  /** @throws ServiceError, or the signal's reason */
  rerank(call: RerankCall, options: { signal: AbortSignal }): Promise<Ranked>
  close(): Promise<void>
}
