import type { UsageComparison } from '#schemas/usage.ts'
import { dayText } from './forecast.ts'

/*
 * Comparison of a period with the period before it.
 *
 * Both windows have equally many full days or hours, so that the running day or hour does not count as a decrease. Examples:
 *
 * 1. At 15:20, the hours from 00:00 to 14:59 of today are compared with the same hours of yesterday.
 * 2. The full days of this month are compared with the same days of the month before, at most until its end.
 * 3. Seven days are compared with the seven days before them.
 *
 * A service that was started within the earlier window has no usage on its first days, so that a change looks like growth. Both windows therefore
 * have the number of days or hours with usage.
 */

export const DAY_SECONDS = 86_400
export const HOUR_SECONDS = 3_600

/** Numbers of calls in a time, and of those that failed. */
export interface FailureCount {
  readonly failed: number
  readonly calls: number
}

export interface Window {
  /** First and last UTC day (`2030-01-31`) or hour (`2030-01-31T08`), both included. */
  readonly from: string
  readonly to: string
}

export interface Windows {
  readonly unit: 'day' | 'hour'
  readonly now: Window
  readonly before: Window
}

/**
 * The windows that a change compares. Undefined if the period has no full day or hour.
 *
 * @param oldestHour Oldest hour that the ledger has. If the earlier window has older hours, then there is no comparison
 */
export function windowsOf({ from, to }: Window, nowSeconds: number, oldestHour: string): Windows | undefined {
  const since = startOf(from)
  const isByHour = from.length > 10 || to.length > 10
  const until = startOf(to) + (to.length > 10 ? HOUR_SECONDS : DAY_SECONDS)
  const isRunningDay = !isByHour && from === to && until > nowSeconds
  const unit = isByHour || isRunningDay ? 'hour' : 'day'
  const textOf = unit === 'hour' ? hourOf : dayOf
  const end = Math.min(until, startOf(textOf(nowSeconds)))
  if (end <= since) return undefined
  const now = { from: textOf(since), to: textOf(end - 1) }
  if (unit === 'day' && from === monthStart(from, 0) && from.slice(0, 7) === to.slice(0, 7)) {
    const isWholeMonth = end === startOf(monthStart(from, 1))
    const [first, limit] = [monthStart(from, -1), since]
    const last = isWholeMonth ? limit : Math.min(startOf(first) + end - since, limit)
    return { unit, now, before: { from: first, to: dayOf(last - 1) } }
  }
  const shift = isRunningDay ? DAY_SECONDS : end - since
  const before = { from: textOf(since - shift), to: textOf(end - shift - 1) }
  return unit === 'hour' && before.from < oldestHour ? undefined : { unit, now, before }
}

/** First day of the month of a day. @param months Months that are added */
export function monthStart(day: string, months: number): string {
  return dayOf(Date.UTC(Number(day.slice(0, 4)), Number(day.slice(5, 7)) - 1 + months) / 1_000)
}

export function dayOf(seconds: number): string {
  return new Date(seconds * 1_000).toISOString().slice(0, 10)
}

export function hourOf(seconds: number): string {
  return new Date(seconds * 1_000).toISOString().slice(0, 13)
}

/** Start of a UTC day or hour, in Unix seconds. */
export function startOf(time: string): number {
  return (Date.parse(time.length > 10 ? `${time}:00:00Z` : time) || 0) / 1_000
}

/** Change of a value in percent, such as `+12 %`. @param before Earlier value, above 0 */
export function growthText(now: number, before: number): string {
  const percent = Math.round((now / before - 1) * 100)
  return `${percent < 0 ? '−' : '+'}${Math.abs(percent)} %`
}

/** The part of the earlier window that has usage, such as `3 of 7 days with data`. Empty if it is not smaller than that of the later window. */
export function coverageText({ unit, units, current, previous }: UsageComparison): string {
  if (previous.units_with_usage >= current.units_with_usage) return ''
  return `${previous.units_with_usage} of ${units === 1 ? `1 ${unit}` : `${units} ${unit}s`} with data`
}

/**
 * The change of a sum with both values, such as `+12 % from 1,100`. If the total includes an incomplete day or hour, which the comparison leaves
 * out, then the compared sum is shown too: `+12 %: 1,232 after 1,100`. Empty if there is no earlier value.
 */
export function changeText(
  comparison: UsageComparison,
  field: keyof UsageComparison['current']['total'],
  total: number,
  textOf: (value: number) => string,
): string {
  const [now, before] = [comparison.current.total[field], comparison.previous.total[field]]
  if (before === 0) return ''
  const values = now === total ? ` from ${textOf(before)}` : `: ${textOf(now)} after ${textOf(before)}`
  return growthText(now, before) + values
}

/**
 * The failures that the ledger has and the request log does not, because the log stores requests for a shorter time. Example: `request log since 21 Nov;
 * 12 older failures are not listed`. Empty if the log has all failures of the period.
 *
 * @param since Start of the period, in Unix seconds
 */
export function logCoverageText(logSince: number | null, since: number, missing: number): string {
  if (logSince === null || since >= logSince || missing <= 0) return ''
  const failures = missing === 1 ? '1 older failure is' : `${missing.toLocaleString('en')} older failures are`
  return `request log since ${dayText(logSince)}; ${failures} not listed`
}

/** A note for a list of requests whose period begins before the request log. Empty if the log has the whole period. */
export function logStartText(logSince: number | null, since: number): string {
  if (logSince === null || since >= logSince) return ''
  return `The request log begins on ${dayText(logSince)}. Older requests are counted in the usage report only.`
}

/** Labels for the change of the failed share from the hour before to the last hour. */
export const VERDICTS = {
  new: 'New',
  worse: 'Getting worse',
  better: 'Getting better',
  steady: 'Steady',
} as const

/** Minimum change of the failed share, in percentage points, that counts as a change. */
const VERDICT_POINTS_MIN = 10

interface Hours {
  readonly lastHour: FailureCount
  /** Null if the failures began later. */
  readonly previousHour: FailureCount | null
}

export function verdictOf({ lastHour, previousHour }: Hours): keyof typeof VERDICTS {
  if (!previousHour || previousHour.calls === 0) return 'new'
  const points = percentOf(lastHour) - percentOf(previousHour)
  return Math.abs(points) < VERDICT_POINTS_MIN ? 'steady' : points > 0 ? 'worse' : 'better'
}

/** The failed share of both hours, such as `85 % of the calls failed in the last hour, 53 % in the hour before`. */
export function verdictText({ lastHour, previousHour }: Hours): string {
  const last = `${percentOf(lastHour)} % of the calls failed in the last hour`
  if (!previousHour) return last
  return previousHour.calls === 0
    ? `${last}, no calls in the hour before`
    : `${last}, ${percentOf(previousHour)} % in the hour before`
}

export function percentOf({ failed, calls }: FailureCount): number {
  return calls === 0 ? 0 : Math.round((100 * failed) / calls)
}
