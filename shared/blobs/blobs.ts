import type { Readable } from 'node:stream'

/**
 * The blob port stores values by key that are too large for a queue or database record. One adapter stores them in a directory, the other one in an
 * S3 bucket.
 *
 * Guarantees of every adapter (test/shared/blobs/blobs.test.ts):
 * 1. After `put` resolves, `get` returns the complete value in every process.
 * 2. `get` never returns a partial value.
 * 3. A missing key throws `not_found`.
 * 4. A second `put` of a key replaces the value.
 */
export interface Blobs {
  /**
   * @param key Letters, digits, `_` and `-` only
   * @param value A stream is stored piece by piece. If the stream fails, then `put` rejects and stores nothing
   */
  put(key: string, value: Buffer | AsyncIterable<Buffer>): Promise<void>
  copy(from: string, to: string): Promise<void>
  /**
   * Opens a stream over a blob. The caller must read the stream to its end or destroy it.
   *
   * @param range Bytes from `start` to before `end`. Default: all
   * @throws ServiceError `not_found` if the blob is missing
   */
  open(key: string, range?: { readonly start: number; readonly end: number }): Promise<Readable>
  size(key: string): Promise<number>
  get(key: string): Promise<Buffer>
  delete(key: string): Promise<void>
  /**
   * Deletes blobs that are older than `ageMs`, and incomplete files that processes left when they crashed during `put`. Returns the number of deleted
   * files.
   *
   * @param choose Receives a few hundred old blobs at a time, and returns the keys to delete. Default: all
   */
  sweep(ageMs: number, choose?: (old: readonly OldBlob[]) => Promise<readonly string[]>): Promise<number>
  /** Random id of the store, equal in all processes that use the same store. */
  identity(): Promise<string>
}

export interface OldBlob {
  readonly key: string
  readonly ageMs: number
}

const KEY = /^[A-Za-z0-9_-]{1,200}$/

export function isKey(key: string): boolean {
  return KEY.test(key)
}

/** @throws Error for a malformed key. Sluice creates all keys itself, so such a key is a defect of the code */
export function requireKey(key: string): string {
  if (!isKey(key)) throw new Error('malformed blob key')
  return key
}
