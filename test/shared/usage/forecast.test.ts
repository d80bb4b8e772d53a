import { expect, it } from 'vitest'
import { forecastOf, forecastText, monthForecastText, spentPartText } from '#shared/usage/forecast.ts'

const NOW = Date.parse('2030-12-05T12:00:00Z')
const RESET = Date.parse('2031-01-01') / 1_000
/** $9 are spent, and $3.64 follow on each of the remaining 26.5 days. */
const MONTH_END = 'about $105.36 at the end of the month'
const week = new Map(['2030-11-30', '2030-12-01', '2030-12-02', '2030-12-05'].map((day) => [day, 5]))

it.each([
  // The first day with spending began 5.5 days ago, so $20 are $3.64 per day.
  ['names the day on which the budget is used up', week, 21, '2030-12-11', `${MONTH_END}; lasts until about 11 Dec`],
  ['names only the spending at the end of the month if the budget lasts', week, 1_000, null, MONTH_END],
  ['says that the budget is used up', week, 0, '2030-12-05', 'used up until the reset on 1 Jan'],
])('a forecast of a budget %s', (_, days, remaining_usd, day, text) => {
  const forecast = forecastOf({ spent_usd: 9, remaining_usd, resets_at: RESET }, days, NOW)
  expect(forecast?.usd_per_day).toBeCloseTo(20 / 5.5)
  expect(monthForecastText({ forecast })).toBe(`${MONTH_END}, at the rate of the last 6 days`)
  expect(forecast?.used_up_at && new Date(forecast.used_up_at * 1_000).toISOString().slice(0, 10)).toBe(day)
  expect(forecastText({ spent_usd: 9, remaining_usd, resets_at: RESET, forecast })).toBe(text)
})

it.each([
  ['no spending', new Map()],
  ['spending on one day only', new Map([['2030-12-05', 5]])],
  [
    'one day with spending and one without',
    new Map([
      ['2030-12-04', 0],
      ['2030-12-05', 5],
    ]),
  ],
])('there is no forecast with %s', (_, days) => {
  expect(forecastOf({ spent_usd: 9, remaining_usd: 5, resets_at: RESET }, days, NOW)).toBeNull()
  expect(forecastText({ spent_usd: 9, remaining_usd: 5, resets_at: RESET, forecast: null })).toBe(
    'too little spending for a forecast',
  )
})

it('the spent part of a budget is rounded down, so that 100 % means that the budget is used up', () => {
  const partOf = (spent_usd: number, budget_usd = 10) => spentPartText({ spent_usd, budget_usd })
  expect([partOf(0), partOf(9.99), partOf(10), partOf(0, 0), partOf(0.29, 1)]).toEqual([
    '0 %',
    '99 %',
    '100 %',
    '100 %',
    '29 %',
  ])
})

it('a forecast without a budget has no day on which the budget is used up', () => {
  const forecast = forecastOf({ spent_usd: 9, resets_at: RESET }, week, NOW)
  expect(forecast).toMatchObject({ used_up_at: null, days: 6 })
})
