/** What lets the metadata of a job be changed after its creation: nothing that the job does depends on it. */
export interface HasMetadata {
  /** Puts other metadata in the place of a job's own. False: there is no such job, or it is kept no longer. */
  setMetadata(tenant: string, id: string, metadata: Readonly<Record<string, string>>): Promise<boolean>
}
