/** A store that can change the metadata of a job. The work of a job never depends on its metadata. */
export interface HasMetadata {
  /** Replaces the metadata of a job. @returns False if the job does not exist or its retention has ended */
  setMetadata(tenant: string, id: string, metadata: Readonly<Record<string, string>>): Promise<boolean>
}
