import { dayOf } from './cost.ts'

/** A month of UTC. */
export interface Month {
  /** Such as 2030-01. */
  readonly name: string
  /** Its first and last day. */
  readonly from: string
  readonly to: string
  /** When the next one begins, in unix milliseconds. */
  readonly endsAtMs: number
}

/** The month that a time is in. */
export function monthOf(unixMs: number): Month {
  const day = dayOf(unixMs)
  const endsAtMs = Date.UTC(Number(day.slice(0, 4)), Number(day.slice(5, 7)))
  return { name: day.slice(0, 7), from: `${day.slice(0, 7)}-01`, to: dayOf(endsAtMs - 1), endsAtMs }
}
