import { ServiceError } from './error.ts'

/**
 * Size ({@link sizeOf}) at which no further output is merged into an event. Even six times as many bytes of JSON fit into a
 * record.
 */
export const EVENT_SIZE_MAX = 64 * 1024
/** Maximum event size in bytes of JSON. A record above the broker's limit is never accepted and would block all later ones. */
const OUTPUT_BYTES_MAX = 512 * 1024

/**
 * Approximate size of an event for limits: the length of its strings, plus a little per value. The JSON has usually about as many
 * bytes, and at most six times as many (all control characters).
 *
 * @param enough Counting stops above this size
 */
export function sizeOf(value: unknown, enough = Number.POSITIVE_INFINITY): number {
  if (typeof value === 'string') return value.length
  let size = 8
  if (typeof value !== 'object' || value === null) return size
  if (Array.isArray(value)) {
    for (const item of value) {
      if (size > enough) break
      size += 8 + sizeOf(item, enough - size)
    }
    return size
  }
  for (const key in value) {
    if (size > enough) break
    size += 8 + sizeOf((value as Record<string, unknown>)[key], enough - size)
  }
  return size
}

/** True if the JSON of an event exceeds the size of a record. */
export function isUncarriable(event: unknown): boolean {
  return sizeOf(event, EVENT_SIZE_MAX) > EVENT_SIZE_MAX && Buffer.byteLength(JSON.stringify(event)) > OUTPUT_BYTES_MAX
}

/**
 * True if an event is so large that no other may be merged into it.
 *
 * @throws ServiceError `internal_error` for an event over 512 KiB of JSON
 */
export function refuseLarge(event: unknown): boolean {
  if (sizeOf(event, EVENT_SIZE_MAX) <= EVENT_SIZE_MAX) return false
  if (isUncarriable(event))
    throw new ServiceError('internal_error', 'One event of the output exceeds the maximum size.')
  return true
}
