import type { CodeFile } from '#schemas/code.ts'
import type { Blobs } from '#shared/blobs/blobs.ts'
import { ServiceError } from '#shared/error.ts'
import type { SandboxFile } from '#shared/sandbox/sandbox.ts'

/** Reads the input files of a run. @throws ServiceError `not_found` for a file that was deleted after the run was submitted */
export async function readFiles(blobs: Blobs, files: readonly CodeFile[]): Promise<SandboxFile[]> {
  const read: SandboxFile[] = []
  for (const { id, name } of files) read.push({ name, bytes: await readFile(blobs, id, name) })
  return read
}

async function readFile(blobs: Blobs, id: string, name: string): Promise<Buffer> {
  try {
    return await blobs.get(id)
  } catch (cause) {
    if (ServiceError.from(cause).code !== 'not_found') throw cause
    throw new ServiceError('not_found', `The file ${JSON.stringify(name)} (${id}) was deleted, or has expired.`, {
      cause,
    })
  }
}
