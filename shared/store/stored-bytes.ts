export interface HeldBytes {
  readonly isGranted: boolean
  /** Bytes that the project stores, plus the reservations of other processes. */
  readonly used: number
}

/**
 * Stored bytes per project: files, bodies and results of jobs with their blobs, and conversations. Each write or delete updates the count in the same
 * commit.
 */
export interface StoredBytes {
  /** Lifetime of a process's reservations without renewal, in ms. */
  readonly keepMs: number
  /** Sets the reservation of the process `boot` for a project. An increase is granted only if the project then stores at most `most` bytes. */
  hold(tenant: string, boot: string, bytes: number, most: number): Promise<HeldBytes>
  tidy(): Promise<void>
}

export interface HasStoredBytes {
  readonly storedBytes: StoredBytes
}
