import { dayOf } from './usage.ts'

export interface Month {
  readonly name: string
  readonly from: string
  readonly to: string
  readonly endsAtMs: number
}

export function monthOf(unixMs: number): Month {
  const day = dayOf(unixMs)
  const endsAtMs = Date.UTC(Number(day.slice(0, 4)), Number(day.slice(5, 7)))
  return { name: day.slice(0, 7), from: `${day.slice(0, 7)}-01`, to: dayOf(endsAtMs - 1), endsAtMs }
}
