import type { BudgetForecast, CurrentMonth } from '#schemas/usage.ts'

/*
 * Forecast of the spending of a month, if spending continues as in the last days. The forecast has the spending at the end of the month. For a budget,
 * the forecast also has the day on which the budget is used up.
 *
 * The rate is the cost since the start of the first day with spending, at most FORECAST_DAYS days ago, divided by the time since then. A
 * whole week includes a weekend. A forecast needs spending on at least two days, because one day says little about the others.
 *
 *     Budget $30, spent $9, $1.20 per day over the last 7 days: 21 / 1.20 = 17.5 days. If the month ends in 3 days, then the budget lasts.
 */

export const FORECAST_DAYS = 7
const DAYS_MIN = 2
const DAY_MS = 86_400_000

interface State {
  readonly spent_usd: number
  /** Undefined without a budget. */
  readonly remaining_usd?: number
  readonly resets_at: number
}

/** @param days Cost by UTC day, such as `2030-01-31`, of the last {@link FORECAST_DAYS} days */
export function forecastOf(
  { spent_usd, remaining_usd = Number.POSITIVE_INFINITY, resets_at }: State,
  days: ReadonlyMap<string, number>,
  nowMs: number,
): BudgetForecast | null {
  const spent = [...days].filter(([, usd]) => usd > 0)
  const first = spent.map(([day]) => Date.parse(day)).toSorted((a, b) => a - b)[0]
  if (first === undefined || spent.length < DAYS_MIN) return null
  const rateDays = (nowMs - first) / DAY_MS
  const usd_per_day = spent.reduce((sum, [, usd]) => sum + usd, 0) / rateDays
  const usedUpMs = nowMs + (remaining_usd / usd_per_day) * DAY_MS
  const month_end_usd = spent_usd + (usd_per_day * Math.max(0, resets_at * 1_000 - nowMs)) / DAY_MS
  return {
    usd_per_day,
    days: Math.min(FORECAST_DAYS, Math.ceil(rateDays)),
    month_end_usd,
    used_up_at: usedUpMs < resets_at * 1_000 ? Math.floor(usedUpMs / 1_000) : null,
  }
}

interface Forecasted extends Required<State> {
  readonly forecast: BudgetForecast | null
}

const NO_FORECAST = 'too little spending for a forecast'

/** Text of the forecast of a budget, such as `about $52.00 at the end of the month; lasts until about 12 Dec`. Days are in UTC. */
export function forecastText({ remaining_usd, resets_at, forecast }: Forecasted): string {
  if (remaining_usd === 0) return `used up until the reset on ${dayText(resets_at)}`
  if (!forecast) return NO_FORECAST
  const usedUp = forecast.used_up_at === null ? '' : `lasts until about ${dayText(forecast.used_up_at)}`
  return (
    [monthEndText(forecast), usedUp].filter(Boolean).join('; ') ||
    `not used up before the reset on ${dayText(resets_at)}`
  )
}

/** The forecast of all spending of a month, with its rate: `about $52.00 at the end of the month, at the rate of the last 7 days`. */
export function monthForecastText({ forecast }: Pick<CurrentMonth, 'forecast'>): string {
  if (!forecast) return NO_FORECAST
  return `${monthEndText(forecast)}, at the rate of the last ${forecast.days ?? FORECAST_DAYS} days`
}

function monthEndText({ month_end_usd }: BudgetForecast): string {
  return month_end_usd == null ? '' : `about $${month_end_usd.toFixed(2)} at the end of the month`
}

/** The spent part of a budget, such as `79 %`. Rounded down, so that 100 % means that the budget is used up. */
export function spentPartText({
  spent_usd,
  budget_usd,
}: {
  readonly spent_usd: number
  readonly budget_usd: number
}): string {
  return `${budget_usd === 0 ? 100 : Math.floor((spent_usd / budget_usd) * 100 + 1e-9)} %`
}

/** A UTC day such as `12 Dec`. */
export function dayText(seconds: number): string {
  return new Date(seconds * 1_000).toLocaleDateString('en-GB', { day: 'numeric', month: 'short', timeZone: 'UTC' })
}
