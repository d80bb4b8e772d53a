import { sizeOf } from '#shared/lib/event-size.ts'

/** Returns one event that replaces both, or undefined if both are needed. */
export type MergeEvents<Event = unknown> = (previous: Event, next: Event) => Event | undefined

/** Events that wait for their reader, in order, merged if possible, with an estimate of their size in bytes. */
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
