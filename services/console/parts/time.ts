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
  const passed = Date.now() / 1_000 - seconds
  return passed < 2 ? 'now' : `${lasted(passed)} ago`
}

/** A time as this browser writes it, from unix seconds. */
export function clock(seconds: number): string {
  return new Date(seconds * 1_000).toLocaleString(undefined, { dateStyle: 'medium', timeStyle: 'medium' })
}

/** A short duration, such as `120 ms` or `2.5 s`; a dash where it is not known. */
export function brief(seconds: number | undefined): string {
  if (seconds === undefined) return '–'
  if (!Number.isFinite(seconds)) return '> 10 min'
  if (seconds < 1) return `${Math.round(seconds * 1_000)} ms`
  return seconds < 60 ? `${Number(seconds.toPrecision(2))} s` : lasted(seconds)
}
