import { durationText } from '#shared/lib/duration.ts'

/*
 * Estimates the offset between the clocks of the service and the browser, which may be hours apart. Pages compute ages from times of the
 * service, so the browser's clock alone would give wrong ages.
 *
 * The service writes the `date` header after the request was sent and before the response arrives, and rounds it down to a second. The
 * header therefore gives a lower and an upper bound of the offset. The offset within these bounds that is closest to zero is used, so
 * clocks that may be equal are treated as equal.
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

/** An age in its largest unit, such as `3 min ago`. */
export function ageText(seconds: number): string {
  const passed = serviceNow() - seconds
  if (passed < 2) return 'now'
  const [unit, length] = UNITS.find(([, one]) => passed >= one) ?? (['s', 1] as const)
  return `${Math.floor(passed / length)} ${unit} ago`
}

/** @param hasMs Whether the time has milliseconds, as for the start and end of a short request */
export function dateTimeText(seconds: number, hasMs = false): string {
  const fraction = hasMs ? ({ fractionalSecondDigits: 3 } as const) : {}
  return formatted(seconds * 1_000, { ...DAY, ...TIME, second: '2-digit', ...fraction })
}

export function minuteText(seconds: number): string {
  return formatted(seconds * 1_000, { ...DAY, ...TIME })
}

/**
 * Locale of all dates, such as `26 Nov 2026, 20:03`. Fixed instead of taken from the browser, because all texts of the
 * console are English.
 */
const LOCALE = 'en-GB'
const DAY = { year: 'numeric', month: 'short', day: 'numeric' } as const
const CLOCK = { hour: '2-digit', minute: '2-digit', hourCycle: 'h23' } as const
const TIME = { ...CLOCK, timeZoneName: 'short' } as const

const formats = new Map<string, Intl.DateTimeFormat>()

/** The format of equal options is created once. Creating one per time took most of the time of a rendering. */
function formatted(atMs: number, options: Intl.DateTimeFormatOptions): string {
  const key = JSON.stringify(options)
  const format = formats.get(key) ?? new Intl.DateTimeFormat(LOCALE, options)
  formats.set(key, format)
  return format.format(atMs)
}

/** Time of day for axes, such as `20:03`, in the time zone of the browser. */
export function clockText(seconds: number, hasSeconds = false): string {
  return formatted(seconds * 1_000, hasSeconds ? { ...CLOCK, second: '2-digit' } : CLOCK)
}

/** Formats a month: `2026-11` becomes `November 2026`. */
export function monthText(month: string): string {
  return formatted(Date.parse(`${month}-01T00:00:00Z`), { month: 'long', year: 'numeric', timeZone: 'UTC' })
}

/** A date on an axis, such as `26 Nov`. */
export function dayOfMonthText(seconds: number, timeZone?: 'UTC'): string {
  return formatted(seconds * 1_000, { month: 'short', day: 'numeric', ...(timeZone && { timeZone }) })
}

export function dateText(seconds: number): string {
  return formatted(seconds * 1_000, DAY)
}

/** Formats a UTC day: `2030-01-31` becomes `31 Jan 2030`. */
export function dayText(day: string): string {
  return formatted(Date.parse(`${day}T00:00:00Z`), { ...DAY, timeZone: 'UTC' })
}

export function countText(value: number): string {
  return value.toLocaleString('en')
}

/** A sum in US dollars, with two decimals. A sum below a cent has two significant digits. */
export function usdText(amount: number): string {
  return amount > 0 && amount < 0.01 ? `$${Number(amount.toPrecision(2))}` : `$${amount.toFixed(2)}`
}

/** Cost of one call or job in US dollars, with four decimals. */
export function costText(usd: number): string {
  return usd > 0 && usd < 0.00005 ? '< $0.0001' : `$${usd.toFixed(4)}`
}

export function offsetText(seconds: number): string {
  return seconds < 1 ? '+0 s' : `+${durationText(seconds)}`
}

/** Formats a duration in seconds, such as `120 ms`, `2.0 s` or `45 s`. A dash if undefined. */
export function latencyText(seconds: number | undefined): string {
  if (seconds === undefined) return '–'
  if (seconds < 1) return `${Math.round(seconds * 1_000)} ms`
  return seconds < 60 ? `${seconds.toPrecision(2)} s` : durationText(seconds)
}
