import { serviceNow } from '#services/console/api/clock.ts'

const UNITS = [
  ['d', 86_400],
  ['h', 3_600],
  ['min', 60],
] as const

export function durationText(seconds: number): string {
  if (seconds < 1) return '< 1 s'
  for (const [unit, length] of UNITS) if (seconds >= length) return `${Math.floor(seconds / length)} ${unit}`
  return `${Math.floor(seconds)} s`
}

/** The age of a time in unix seconds, such as `3 min ago`. */
export function ageText(seconds: number): string {
  const passed = serviceNow() - seconds
  return passed < 2 ? 'now' : `${durationText(passed)} ago`
}

export function dateTimeText(seconds: number): string {
  return new Date(seconds * 1_000).toLocaleString(undefined, { ...DAY, ...TIME, second: '2-digit' })
}

/** Like {@link dateTimeText}, without seconds. */
export function minuteText(seconds: number): string {
  return new Date(seconds * 1_000).toLocaleString(undefined, { ...DAY, ...TIME })
}

const DAY = { year: 'numeric', month: 'short', day: 'numeric' } as const
const TIME = { hour: 'numeric', minute: '2-digit', timeZoneName: 'short' } as const

/** An offset in its two largest units, such as `+42 s` or `+2 h 5 min`. */
export function offsetText(seconds: number): string {
  if (seconds < 60) return `+${Math.max(0, Math.floor(seconds))} s`
  const nth = UNITS.findIndex(([, length]) => seconds >= length)
  const [unit, length] = UNITS[nth] ?? ['s', 1]
  const [below, part] = UNITS[nth + 1] ?? ['s', 1]
  const rest = Math.floor((seconds % length) / part)
  return `+${Math.floor(seconds / length)} ${unit}${rest > 0 ? ` ${rest} ${below}` : ''}`
}

/** A latency, such as `120 ms` or `2.5 s`; a dash if unknown. */
export function latencyText(seconds: number | undefined): string {
  if (seconds === undefined) return '–'
  if (!Number.isFinite(seconds)) return '> 10 min'
  if (seconds < 1) return `${Math.round(seconds * 1_000)} ms`
  return seconds < 60 ? `${Number(seconds.toPrecision(2))} s` : durationText(seconds)
}
