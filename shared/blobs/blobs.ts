import type { Readable } from 'node:stream'

/**
 * The blob port: bytes too large for a record, by key. A directory by default.
 *
 * Promises every adapter keeps (test/shared/blobs/blobs.test.ts): `put` resolves once `get` anywhere gives the whole; a reader
 * never sees half of one; a missing key is `not_found`; a second `put` of a key replaces it.
 */
export interface Blobs {
  /**
   * @param key Letters, digits, `_` and `-` only.
   * @param value A stream is stored as it comes; when it fails, so does the call, and nothing is kept.
   */
  put(key: string, value: Buffer | AsyncIterable<Buffer>): Promise<void>
  /** The same bytes under another key. @throws ServiceError `not_found` */
  copy(from: string, to: string): Promise<void>
  /**
   * Reads a blob piece by piece. The caller reads it to its end, or destroys it.
   *
   * @param range Some of its bytes, those from `start` up to `end`; default: all.
   * @throws ServiceError `not_found`
   */
  open(key: string, range?: { readonly start: number; readonly end: number }): Promise<Readable>
  /** How many bytes a blob has. @throws ServiceError `not_found` */
  size(key: string): Promise<number>
  /** @throws ServiceError `not_found` */
  get(key: string): Promise<Buffer>
  /** Deletes a blob; one that is not there is fine. */
  delete(key: string): Promise<void>
  /**
   * Deletes what is older than `ageMs`, and what crashed in the middle of a `put`. Gives how many.
   *
   * @param choose Says which of them to delete, some hundred at a time; default: all.
   */
  sweep(ageMs: number, choose?: (old: readonly OldBlob[]) => Promise<readonly string[]>): Promise<number>
}

/** A blob that a sweep has found. */
export interface OldBlob {
  readonly key: string
  /** Since it was put. */
  readonly ageMs: number
}
