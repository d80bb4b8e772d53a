/** How near one document is to the query. */
export interface RankedDocument {
  /** Its place among those of the call. */
  readonly index: number
  readonly relevance_score: number
}

/** What a reranking model made of some documents. */
export interface Ranked {
  /** The nearest first. */
  readonly results: readonly RankedDocument[]
  /** Tokens of the query and all documents; undefined where the engine does not count. */
  readonly tokens: number | undefined
}

/** What is to be ranked. */
export interface RerankCall {
  readonly query: string
  readonly documents: readonly string[]
  /** Documents that are told at most, the nearest. */
  readonly top_n: number
}

/**
 * The reranking engine port: a model that reads query and document together.
 *
 * Promises every engine keeps:
 * - As many results as were asked for and there are documents, each document once at most; never a short answer.
 * - Aborting `signal` stops the work within a second: an upstream's socket is closed.
 * - A failure is thrown as a ServiceError whose code says whether another try can help.
 */
export interface RerankEngine {
  /** @throws ServiceError, or the signal's reason */
  rerank(call: RerankCall, options: { signal: AbortSignal }): Promise<Ranked>
  /** Releases memory and sockets. */
  close(): Promise<void>
}
