/** Concurrent calls if the catalogue sets no `concurrency`: enough to keep a server busy, few enough to fill batches. */
export const CALLS_MAX = 4

export interface Embedded {
  /** One vector per text, in the order of the texts, all of one length. */
  readonly vectors: readonly Float32Array[]
  /** Tokens of all texts together; undefined if the engine does not count. */
  readonly tokens: number | undefined
  /** Tokens of each text; undefined if the engine does not report them. */
  readonly tokensEach: readonly number[] | undefined
}

/**
 * The embedding engine port: an engine converts texts into vectors.
 *
 * Contract of every engine:
 *
 * 1. One vector per text, in the order of the texts, of finite numbers; never fewer.
 * 2. The other texts of a call change no vector beyond the noise of float arithmetic.
 * 3. If `signal` aborts, then the work stops within a second and an upstream's socket is closed.
 * 4. An error is thrown as a ServiceError whose code says whether a retry can help.
 *
 * An error about one text names its position, either in `param` as `input[3]` or at the start of its message as `Input 3 …`. If the error
 * may be about any text, then `param` is `input`.
 */
export interface EmbeddingEngine {
  /** @throws ServiceError, or the signal's reason */
  embed(texts: readonly string[], options: { signal: AbortSignal }): Promise<Embedded>
  close(): Promise<void>
}
