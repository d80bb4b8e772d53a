/*
 * Estimates the offset between the clocks of the service and the browser, which may be hours apart. Pages compute ages from times of the
 * service, so the browser's clock alone would give wrong ages.
 *
 * A `date` header has whole seconds and was written while the request was in flight. Both facts give a lower and an upper bound of the
 * offset. The value closest to zero within these bounds is used, so clocks that may be equal are treated as equal.
 */

let aheadMs = 0

export function serviceNow(): number {
  return (Date.now() + aheadMs) / 1_000
}

/**
 * Updates the offset from a response.
 *
 * @param date The `date` header (RFC 9110 §6.6.1)
 * @param sentAtMs When the request was sent, by the browser's clock
 */
export function syncClock(date: string | null, sentAtMs: number): void {
  const dateMs = Date.parse(date ?? '')
  if (Number.isNaN(dateMs)) return
  const [least, most] = [dateMs - Date.now(), dateMs + 1_000 - sentAtMs]
  aheadMs = Math.min(Math.max(0, least), most)
}

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

export function ageText(seconds: number): string {
  const passed = serviceNow() - seconds
  return passed < 2 ? 'now' : `${durationText(passed)} ago`
}

export function dateTimeText(seconds: number): string {
  return new Date(seconds * 1_000).toLocaleString(LOCALE, { ...DAY, ...TIME, second: '2-digit' })
}

export function minuteText(seconds: number): string {
  return new Date(seconds * 1_000).toLocaleString(LOCALE, { ...DAY, ...TIME })
}

/**
 * Locale of all dates, such as `26 Nov 2026, 20:03`. Fixed instead of taken from the browser, because all texts of the
 * console are English.
 */
const LOCALE = 'en-GB'
const DAY = { year: 'numeric', month: 'short', day: 'numeric' } as const
const CLOCK = { hour: '2-digit', minute: '2-digit', hourCycle: 'h23' } as const
const TIME = { ...CLOCK, timeZoneName: 'short' } as const

/** Time of day for axes, such as `20:03`, in the time zone of the browser. */
export function clockText(seconds: number): string {
  return new Date(seconds * 1_000).toLocaleTimeString(LOCALE, CLOCK)
}

/** A month such as `2026-11`, as `November 2026`. */
export function monthText(month: string): string {
  return new Date(`${month}-01T00:00:00Z`).toLocaleDateString(LOCALE, {
    month: 'long',
    year: 'numeric',
    timeZone: 'UTC',
  })
}

export function dateText(seconds: number): string {
  return new Date(seconds * 1_000).toLocaleDateString(LOCALE, DAY)
}

/** A UTC day such as `2030-01-31`, in the format of all dates. */
export function dayText(day: string): string {
  return new Date(`${day}T00:00:00Z`).toLocaleDateString(LOCALE, { ...DAY, timeZone: 'UTC' })
}

/** US dollars; amounts below a cent get two significant digits. */
export function usdText(amount: number): string {
  if (amount === 0) return '$0'
  return amount < 0.01 ? `$${Number(amount.toPrecision(2))}` : `$${amount.toFixed(2)}`
}

/** Cost of one call or job in US dollars, with four decimals. */
export function costText(usd: number): string {
  if (usd === 0) return '$0'
  return usd < 0.00005 ? '< $0.0001' : `$${usd.toFixed(4)}`
}

export function offsetText(seconds: number): string {
  if (seconds < 60) return `+${Math.max(0, Math.floor(seconds))} s`
  const nth = UNITS.findIndex(([, length]) => seconds >= length)
  const [unit, length] = UNITS[nth] ?? ['s', 1]
  const [below, part] = UNITS[nth + 1] ?? ['s', 1]
  const rest = Math.floor((seconds % length) / part)
  return `+${Math.floor(seconds / length)} ${unit}${rest > 0 ? ` ${rest} ${below}` : ''}`
}

/** Formats a latency, such as `120 ms` or `2.5 s`. A dash if unknown. */
export function latencyText(seconds: number | undefined): string {
  if (seconds === undefined) return '–'
  if (!Number.isFinite(seconds)) return '> 10 min'
  if (seconds < 1) return `${Math.round(seconds * 1_000)} ms`
  return seconds < 60 ? `${Number(seconds.toPrecision(2))} s` : durationText(seconds)
}
