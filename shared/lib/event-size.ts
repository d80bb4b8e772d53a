import { ServiceError } from './error.ts'

/**
 * Size ({@link sizeOf}) from which no further output is merged into an event. The JSON of such an event is at most six times as
 * long, so a record can hold it.
 */
export const EVENT_SIZE_MAX = 64 * 1024
/**
 * Maximum JSON of an event, in bytes. The broker would reject a larger record at every attempt, which would block all later ones.
 */
const OUTPUT_BYTES_MAX = 512 * 1024

/**
 * Approximate size of an event: the length of its strings, plus a little per value. The JSON usually has about as many bytes. If
 * all characters are control characters, then the JSON has six times as many.
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

export function isUncarriable(event: unknown): boolean {
  return sizeOf(event, EVENT_SIZE_MAX) > EVENT_SIZE_MAX && Buffer.byteLength(JSON.stringify(event)) > OUTPUT_BYTES_MAX
}

/**
 * True if no other event may be merged into this one, because of its size.
 *
 * @throws ServiceError `internal_error` for an event over 512 KiB of JSON
 */
export function refuseLarge(event: unknown): boolean {
  if (sizeOf(event, EVENT_SIZE_MAX) <= EVENT_SIZE_MAX) return false
  if (isUncarriable(event))
    throw new ServiceError('internal_error', 'One event of the output exceeds the maximum size.')
  return true
}
