/** What a project stores, and what a process may store of it. */
export interface HeldBytes {
  readonly isGranted: boolean
  /** Bytes that the project stores, with those that other processes have reserved. */
  readonly used: number
}

/**
 * Bytes that each project stores: files, bodies and results of jobs with their blobs, and conversations. Whatever writes or deletes
 * one counts it in the same commit.
 */
export interface StoredBytes {
  /** Reservations of a process end after this, unless it renews them, in milliseconds. */
  readonly keepMs: number
  /**
   * Sets what the process `boot` is about to store of a project. More than before is granted only as far as the project then stores
   * at most `most`.
   */
  hold(tenant: string, boot: string, bytes: number, most: number): Promise<HeldBytes>
  /** Keeps the counts short. */
  tidy(): Promise<void>
}

/** What counts the bytes of its projects. */
export interface HasStoredBytes {
  readonly storedBytes: StoredBytes
}
