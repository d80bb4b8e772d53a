import { ServiceError } from './error.ts'

/** Size ({@link sizeOf}) at which an event takes no further output: even as six times as many bytes of JSON it fits. */
export const EVENT_SIZE_MAX = 64 * 1024
/** Largest event of a kind, in bytes of JSON. A record that is too large would never be taken, and nothing behind it either. */
const OUTPUT_BYTES_MAX = 512 * 1024

/**
 * Size of an event, near enough for bounds: the length of its strings and a little for all else. Its JSON has at most six
 * times as many bytes (all control characters), mostly about as many.
 */
export function sizeOf(value: unknown): number {
  if (typeof value === 'string') return value.length
  let size = 8
  if (typeof value !== 'object' || value === null) return size
  for (const key in value) size += 8 + sizeOf((value as Record<string, unknown>)[key])
  return size
}

/** Whether an event has more JSON than a record can carry. */
export function isUncarriable(event: unknown): boolean {
  return sizeOf(event) > EVENT_SIZE_MAX && Buffer.byteLength(JSON.stringify(event)) > OUTPUT_BYTES_MAX
}

/**
 * Whether an event is so large that no other may join it.
 *
 * @throws ServiceError `internal_error` for one over 512 KiB of JSON
 */
export function refuseLarge(event: unknown): boolean {
  if (isUncarriable(event)) {
    throw new ServiceError('internal_error', 'A single piece of the output is larger than the service can carry.')
  }
  return sizeOf(event) > EVENT_SIZE_MAX
}
