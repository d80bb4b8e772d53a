import { ServiceError } from '#shared/error.ts'
import { sizeOf } from '#shared/jobs/event-buffer.ts'

/** Size (event-buffer.ts) at which an event takes no further output: even as six times as many bytes of JSON it fits. */
export const EVENT_SIZE_MAX = 64 * 1024
/** Largest event of a kind, in bytes of JSON. A record that is too large would never be taken, and nothing behind it either. */
const OUTPUT_BYTES_MAX = 512 * 1024

/**
 * Whether an event is so large that no other may join it.
 *
 * @throws ServiceError `internal_error` for one over 512 KiB of JSON
 */
export function refuseLarge(event: unknown): boolean {
  const isLarge = sizeOf(event) > EVENT_SIZE_MAX
  if (isLarge && Buffer.byteLength(JSON.stringify(event)) > OUTPUT_BYTES_MAX) {
    throw new ServiceError('internal_error', 'A single piece of the output is larger than the service can carry.')
  }
  return isLarge
}
