/** Calls at once when the catalogue sets no `concurrency`: enough to keep a server busy, few enough to fill batches. */
export const CALLS_MAX = 4

/** What an engine made of some texts. */
export interface Embedded {
  /** One for each text, in their order, all of one length. */
  readonly vectors: readonly Float32Array[]
  /** Tokens of all texts together; undefined where the engine does not count. */
  readonly tokens: number | undefined
  /** Tokens of each text, where the engine tells. */
  readonly tokensEach: readonly number[] | undefined
}

/**
 * The embedding engine port: something that turns texts into vectors.
 *
 * Promises every engine keeps:
 * - One vector for each text, in their order, of finite numbers; never a short answer.
 * - Which texts share a call changes no vector beyond the noise of float arithmetic.
 * - Aborting `signal` stops the work within a second: an upstream's socket is closed.
 * - A failure is thrown as a ServiceError whose code says whether another try can help. One that is about a text names
 *   its place among those of the call in `param`, as `input[3]`, or at the start of its message, as `Input 3 …`. Where it
 *   may be about any of them, `param` is `input`.
 */
export interface EmbeddingEngine {
  /** @throws ServiceError, or the signal's reason */
  embed(texts: readonly string[], options: { signal: AbortSignal }): Promise<Embedded>
  /** Releases memory and sockets. */
  close(): Promise<void>
}
