import type { UsageReport } from '#schemas/usage.ts'
import { isOperator } from '#services/console/api/client.ts'
import { countText, dayText, serviceNow, usdText } from '#services/console/api/clock.ts'
import { queryParam } from '#services/console/parts/router.ts'
import { DAY_SECONDS, dayOf, HOUR_SECONDS, hourOf, monthStart, startOf, type Window } from '#shared/usage/comparison.ts'

const HOURS_MAX = 7
export type Report = UsageReport
export type Row = Report['data'][number]

/**
 * Ranges by id, in the order of the buttons. A range of N hours or days contains N full hours or days, and the current one. Changes compare only the
 * full ones, because the current one would look like a decrease.
 */
export const RANGES: ReadonlyMap<string, string> = new Map([
  ['24h', 'Last 24 hours'],
  ['1', 'Today'],
  ['7', '7 days'],
  ['30', '30 days'],
  ['90', '90 days'],
  ['last-week', 'Last week'],
  ['month', 'This month'],
  ['last-month', 'Last month'],
  ['custom', 'Custom'],
])
export const GROUPS = { project: 'Project', key: 'API key', model: 'Model', endpoint: 'Endpoint' } as const
export type Group = keyof typeof GROUPS

export const METRICS = {
  cost: { name: 'Cost', of: ({ cost_usd }: Row) => cost_usd, textOf: usdText },
  calls: { name: 'Requests', of: ({ calls }: Row) => calls, textOf: countText },
  tokens: {
    name: 'Tokens',
    of: ({ input_tokens, output_tokens }: Row) => input_tokens + output_tokens,
    textOf: countText,
  },
  failed: { name: 'Failed', of: ({ failed }: Row) => failed, textOf: countText },
} as const
type MetricName = keyof typeof METRICS

export interface View {
  readonly range: string
  readonly from: string
  readonly to: string
  /** Start and end in Unix seconds. */
  readonly since: number
  readonly until: number
  readonly unit: 'hour' | 'day'
  readonly by: Group
  readonly metric: MetricName
  readonly filters: Readonly<Record<string, string>>
}

export function viewOf(): View {
  const today = dayOf(serviceNow())
  const asked = queryParam('range')
  const range = RANGES.has(asked) ? asked : '7'
  const isHours = range === '24h'
  const [from, to] = boundsOf(range, today)
  const [by, metric] = [queryParam('by'), queryParam('metric')]
  const named = ['project', 'key', 'model', 'endpoint'].map((name) => [name, queryParam(name)] as const)
  const hasHours = isHours || (from === to && from >= dayOf(serviceNow() - HOURS_MAX * DAY_SECONDS))
  return {
    ...{ range, from, to, unit: hasHours ? 'hour' : 'day' },
    ...{ since: startOf(from), until: startOf(to) + (isHours ? HOUR_SECONDS : DAY_SECONDS) },
    by: Object.hasOwn(GROUPS, by) ? (by as Group) : isOperator.value ? 'project' : 'model',
    metric: Object.hasOwn(METRICS, metric) ? (metric as MetricName) : 'cost',
    filters: Object.fromEntries(named.filter(([, value]) => value !== '')),
  }
}

/** First and last day of a range. For the range of 24 hours, the first hour and the current hour. */
function boundsOf(range: string, today: string): readonly [from: string, to: string] {
  const now = serviceNow()
  if (range === '24h') return [hourOf(now - DAY_SECONDS), hourOf(now)]
  if (range === 'month') return [monthStart(today, 0), today]
  if (range === 'last-month') return [monthStart(today, -1), dayOf(startOf(monthStart(today, 0)) - 1)]
  if (range === 'last-week') {
    const monday = startOf(today) - ((new Date(today).getUTCDay() + 6) % 7) * DAY_SECONDS
    return [dayOf(monday - 7 * DAY_SECONDS), dayOf(monday - DAY_SECONDS)]
  }
  if (range === '1') return [today, today]
  if (range !== 'custom') return [dayOf(now - Number(range) * DAY_SECONDS), today]
  const to = queryParam('to') || today
  return [queryParam('from') || to, to]
}

/** A UTC hour, such as `26 Nov 2026, 15:00`. @param later Seconds that are added */
function hourText(hour: string, later = 0): string {
  const text = hourOf(startOf(hour) + later)
  return `${dayText(text.slice(0, 10))}, ${text.slice(11, 13)}:00`
}

export function periodText({ from, to }: Window): string {
  if (from.length > 10) return `${hourText(from)} to ${hourText(to, HOUR_SECONDS)}`
  return from === to ? dayText(from) : `${dayText(from)} to ${dayText(to)}`
}

/** The time of a view as filters of the request log, so that a list has the requests that this screen counts. */
export function windowOf({ since, until }: View): Readonly<Record<string, string>> {
  return { since: String(since), until: String(until) }
}
