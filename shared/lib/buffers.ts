import { ServiceError } from './error.ts'

/**
 * If an event has this size ({@link sizeOf}), then no further event is merged into it. The JSON of the event is at most six times as long, which fits
 * into a queue record.
 */
export const EVENT_SIZE_MAX = 64 * 1024
/** Maximum JSON bytes of an event. The broker would reject a larger record at every try, and all later records would wait for it. */
export const EVENT_BYTES_MAX = 512 * 1024

/**
 * Returns the approximate size of an event: the length of its strings, plus a little per value. The JSON usually has about as many bytes. If the
 * strings consist of control characters, then it has six times as many.
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
  return sizeOf(event, EVENT_SIZE_MAX) > EVENT_SIZE_MAX && Buffer.byteLength(JSON.stringify(event)) > EVENT_BYTES_MAX
}

/**
 * Whether an event is so large that no other event may be merged into it.
 *
 * @throws ServiceError `internal_error` for an event over 512 KiB of JSON
 */
export function refuseLarge(event: unknown): boolean {
  if (sizeOf(event, EVENT_SIZE_MAX) <= EVENT_SIZE_MAX) return false
  if (isUncarriable(event))
    throw new ServiceError('internal_error', `One event of the output is larger than ${EVENT_BYTES_MAX} bytes.`)
  return true
}

/** Returns one event that replaces both events. Undefined if they cannot be merged. */
export type MergeEvents<Event = unknown> = (previous: Event, next: Event) => Event | undefined

/** Events that wait for their reader, in order. Consecutive events are merged if possible. The buffer estimates its size in bytes. */
export class EventBuffer<Event = unknown> {
  readonly #merge: MergeEvents<Event>
  bytes = 0
  #events: Event[] = []

  constructor(merge: MergeEvents<Event>) {
    this.#merge = merge
  }

  get length(): number {
    return this.#events.length
  }

  get isEmpty(): boolean {
    return this.#events.length === 0
  }

  push(event: Event): void {
    this.bytes += sizeOf(event)
    const last = this.#events.length - 1
    const merged = last >= 0 ? this.#merge(this.#events[last] as Event, event) : undefined
    if (merged === undefined) this.#events.push(event)
    else this.#events[last] = merged
  }

  takeAll(): Event[] {
    const events = this.#events
    if (events.length > 0) this.#events = []
    this.bytes = 0
    return events
  }

  take(max: number): Event[] {
    if (this.#events.length <= max) return this.takeAll()
    const events = this.#events.splice(0, max)
    for (const event of events) this.bytes -= sizeOf(event)
    return events
  }
}

/**
 * Prevents a text stream from being split inside a surrogate pair. The first half is buffered until the next piece of text arrives.
 *
 * Upstreams escape characters beyond the BMP as two `\\u` escapes and may split a text between them. Half a pair is invalid text, which UTF-8
 * encoders replace with U+FFFD. If the second half never arrives, then this class also returns U+FFFD. Each text needs its own instance.
 */
export class SurrogateBuffer {
  #held = ''

  push(text: string): string {
    if (text === '') return ''
    const joined = this.#held + text
    if (!isHighSurrogate(joined.charCodeAt(joined.length - 1))) {
      this.#held = ''
      return joined.toWellFormed()
    }
    this.#held = joined.slice(-1)
    return joined.slice(0, -1).toWellFormed()
  }

  flush(): string {
    const rest = this.#held === '' ? '' : '\uFFFD'
    this.#held = ''
    return rest
  }
}

export function isHighSurrogate(unit: number): boolean {
  return unit >= 0xd800 && unit <= 0xdbff
}

export function isLowSurrogate(unit: number): boolean {
  return unit >= 0xdc00 && unit <= 0xdfff
}
