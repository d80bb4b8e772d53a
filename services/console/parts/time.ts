import { serviceNow } from '#services/console/api/clock.ts'

const UNITS = [
  ['d', 86_400],
  ['h', 3_600],
  ['min', 60],
] as const

/** A time that passed, such as `3 min`. @param seconds Of it */
export function lasted(seconds: number): string {
  if (seconds < 1) return '< 1 s'
  for (const [unit, length] of UNITS) if (seconds >= length) return `${Math.floor(seconds / length)} ${unit}`
  return `${Math.floor(seconds)} s`
}

/** How long ago a time was, in unix seconds. */
export function ago(seconds: number): string {
  const passed = serviceNow() - seconds
  return passed < 2 ? 'now' : `${lasted(passed)} ago`
}

/** A time as this browser writes it, with the zone that it is told in, from unix seconds. */
export function clock(seconds: number): string {
  return new Date(seconds * 1_000).toLocaleString(undefined, { ...DAY, ...TIME, second: '2-digit' })
}

/** The same to the minute. */
export function clockToMinute(seconds: number): string {
  return new Date(seconds * 1_000).toLocaleString(undefined, { ...DAY, ...TIME })
}

const DAY = { year: 'numeric', month: 'short', day: 'numeric' } as const
const TIME = { hour: 'numeric', minute: '2-digit', timeZoneName: 'short' } as const

/** How long after something else it was, such as `+42 s` or `+2 h 5 min`. @param seconds Between them */
export function later(seconds: number): string {
  if (seconds < 60) return `+${Math.max(0, Math.floor(seconds))} s`
  const nth = UNITS.findIndex(([, length]) => seconds >= length)
  const [unit, length] = UNITS[nth] ?? ['s', 1]
  const [below, part] = UNITS[nth + 1] ?? ['s', 1]
  const rest = Math.floor((seconds % length) / part)
  return `+${Math.floor(seconds / length)} ${unit}${rest > 0 ? ` ${rest} ${below}` : ''}`
}

/** A short duration, such as `120 ms` or `2.5 s`; a dash where it is not known. */
export function brief(seconds: number | undefined): string {
  if (seconds === undefined) return '–'
  if (!Number.isFinite(seconds)) return '> 10 min'
  if (seconds < 1) return `${Math.round(seconds * 1_000)} ms`
  return seconds < 60 ? `${Number(seconds.toPrecision(2))} s` : lasted(seconds)
}
