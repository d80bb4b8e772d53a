/**
 * Detects that processes of a fleet use different blob stores.
 *
 * Each store has a random id, which its first process writes. All processes renew one lease in the job store, with the id of their blob
 * store as the holder of the lease. The lease is refused to a process with another id. That process then logs that it and the other
 * processes cannot read each other's blobs. The lease expires after the last process has ended, so a stopped fleet may use another store.
 */
import { atAlignedInterval } from '#shared/lib/aligned-interval.ts'
import type { Log } from '#shared/log/log.ts'
import type { Leases } from '#shared/store/jobs.ts'
import type { Blobs } from './blobs.ts'

export const BLOBS_LEASE = 'blobs'
export const SHARE_REMEDIATION =
  'Give every process the same BLOB_URL (S3), or the same BLOB_DIR, such as a network file system.'
const RENEW_MS = 15_000
const LEASE_MS = 60_000

export type StopWatching = () => void

/**
 * Renews the lease until stopped. If other processes use another blob store, then an error is logged. Never rejects.
 *
 * @param place Name of this process's blob store for the log: its directory or URL
 */
export async function watchFleetBlobs(
  blobs: Pick<Blobs, 'identity'>,
  place: string,
  leases: Pick<Leases, 'holdLease'>,
  log: Log,
): Promise<StopWatching> {
  let wasShared = true
  let isRenewing = false
  const renew = async () => {
    if (isRenewing) return
    isRenewing = true
    try {
      const isShared = await leases.holdLease(BLOBS_LEASE, await blobs.identity(), LEASE_MS)
      if (!isShared && wasShared)
        log.error(
          { blobs: place, remediation: SHARE_REMEDIATION },
          'blob store differs from that of other processes; processes cannot read the bodies and files of each other',
        )
      if (isShared && !wasShared)
        log.info({ blobs: place }, 'this process uses the same blob store as the other processes again')
      wasShared = isShared
    } catch (error) {
      log.debug({ err: error }, 'could not check that all processes use the same blob store; retrying')
    } finally {
      isRenewing = false
    }
  }
  await renew()
  return atAlignedInterval(RENEW_MS, () => void renew(), { keepsAlive: false })
}
