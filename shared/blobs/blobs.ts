import type { Readable } from 'node:stream'

/**
 * The blob port: values too large for a record, by key. A directory by default.
 *
 * Promises every adapter keeps (test/shared/blobs/blobs.test.ts).
 * 1. After `put` resolves, `get` returns the complete value in every process.
 * 2. A reader never sees a partial value.
 * 3. A missing key throws `not_found`.
 * 4. A second `put` of a key replaces the value.
 */
export interface Blobs {
  /**
   * @param key Letters, digits, `_` and `-` only.
   * @param value A stream is stored as it arrives; if it fails, then `put` rejects and stores nothing.
   */
  put(key: string, value: Buffer | AsyncIterable<Buffer>): Promise<void>
  /** Copies a blob to another key. @throws ServiceError `not_found` */
  copy(from: string, to: string): Promise<void>
  /**
   * Opens a stream over a blob. The caller reads it to its end or destroys it.
   *
   * @param range Bytes from `start` up to, not including, `end`; default: all.
   * @throws ServiceError `not_found`
   */
  open(key: string, range?: { readonly start: number; readonly end: number }): Promise<Readable>
  /** Size of a blob in bytes. @throws ServiceError `not_found` */
  size(key: string): Promise<number>
  /** @throws ServiceError `not_found` */
  get(key: string): Promise<Buffer>
  delete(key: string): Promise<void>
  /**
   * Deletes blobs older than `ageMs`, and remains of crashed `put` calls. Returns the number of deleted files.
   *
   * @param choose Selects the blobs to delete, some hundred at a time; default: all.
   */
  sweep(ageMs: number, choose?: (old: readonly OldBlob[]) => Promise<readonly string[]>): Promise<number>
}

export interface OldBlob {
  readonly key: string
  readonly ageMs: number
}
