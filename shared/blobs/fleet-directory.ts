/**
 * Detects that processes of a fleet use different BLOB_DIRs.
 *
 * The first process in a directory writes a file with a random id. All processes renew one lease in the store, under the id of
 * their directory. If a process has another id, then the store refuses the lease. The process then logs that other processes cannot
 * find its blobs. The lease expires after the last process has ended, so a stopped fleet may use another directory.
 */
import { randomBytes } from 'node:crypto'
import { readFile, utimes, writeFile } from 'node:fs/promises'
import { join } from 'node:path'
import { atAlignedInterval } from '#shared/lib/aligned-interval.ts'
import type { Log } from '#shared/log/log.ts'
import type { Leases } from '#shared/store/jobs.ts'

export const BLOBS_LEASE = 'blobs'
const ID_FILE = '.directory-id'
const ID = /^[0-9a-f]{32}$/
const RENEW_MS = 15_000
const LEASE_MS = 60_000

export type StopWatching = () => void

/** Renews the lease until stopped. Logs if other processes use another directory. Never rejects. */
export async function watchFleetDirectory(
  directory: string,
  leases: Pick<Leases, 'holdLease'>,
  log: Log,
): Promise<StopWatching> {
  let id: string | undefined
  let wasShared = true
  let isRenewing = false
  const renew = async () => {
    if (isRenewing) return
    isRenewing = true
    try {
      id = await keepId(directory, id)
      const isShared = await leases.holdLease(BLOBS_LEASE, id, LEASE_MS)
      const fields = {
        blob_dir: directory,
        remediation: 'Give every process the same BLOB_DIR, such as a network file system.',
      }
      if (!isShared && wasShared)
        log.error(
          fields,
          'BLOB_DIR differs from that of other processes; processes cannot read the bodies and files of each other',
        )
      if (isShared && !wasShared) log.info({ blob_dir: directory }, 'BLOB_DIR is shared with the other processes again')
      wasShared = isShared
    } catch (error) {
      log.debug({ err: error }, 'BLOB_DIR could not be compared with that of other processes; retrying')
    } finally {
      isRenewing = false
    }
  }
  await renew()
  return atAlignedInterval(RENEW_MS, () => void renew(), { keepsAlive: false })
}

export async function findDirectoryId(directory: string): Promise<string | undefined> {
  const text = await readFile(join(directory, ID_FILE), 'utf8').catch(() => '')
  return ID.test(text) ? text : undefined
}

/** Reads or creates the id. The file's mtime is renewed, because the blob sweep deletes old files. @param before Id from an earlier read */
async function keepId(directory: string, before: string | undefined): Promise<string> {
  const path = join(directory, ID_FILE)
  const made = before ?? randomBytes(16).toString('hex')
  await writeFile(path, made, { flag: 'wx', mode: 0o600 }).catch((error: NodeJS.ErrnoException) => {
    if (error.code !== 'EEXIST') throw error
  })
  const id = await findDirectoryId(directory)
  // The file exists but is incomplete, because another process is writing it.
  if (id === undefined) throw new Error(`${path} has no id yet`)
  const now = new Date()
  await utimes(path, now, now)
  return id
}
