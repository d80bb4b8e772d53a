import { expect, it } from 'vitest'
import { coverageText, windowsOf } from '#shared/usage/comparison.ts'

const NOW = Date.parse('2030-03-20T15:20:00Z') / 1_000

it.each([
  ['seven days and today', '2030-03-13', '2030-03-20', 'day', '2030-03-13 2030-03-19', '2030-03-06 2030-03-12'],
  ['a full week', '2030-03-11', '2030-03-17', 'day', '2030-03-11 2030-03-17', '2030-03-04 2030-03-10'],
  ['today', '2030-03-20', '2030-03-20', 'hour', '2030-03-20T00 2030-03-20T14', '2030-03-19T00 2030-03-19T14'],
  ['24 hours', '2030-03-19T15', '2030-03-20T15', 'hour', '2030-03-19T15 2030-03-20T14', '2030-03-18T15 2030-03-19T14'],
  ['this month', '2030-03-01', '2030-03-20', 'day', '2030-03-01 2030-03-19', '2030-02-01 2030-02-19'],
  ['a whole month', '2030-02-01', '2030-02-28', 'day', '2030-02-01 2030-02-28', '2030-01-01 2030-01-31'],
  ['the day before', '2030-03-19', '2030-03-19', 'day', '2030-03-19 2030-03-19', '2030-03-18 2030-03-18'],
])('the comparison of %s has equally many full days or hours before it', (_, from, to, unit, now, before) => {
  const windows = windowsOf({ from, to }, NOW, '2030-03-13')
  const textOf = (window = { from: '', to: '' }) => `${window.from} ${window.to}`
  expect([windows?.unit, textOf(windows?.now), textOf(windows?.before)]).toEqual([unit, now, before])
})

it('there is no comparison without a full day or hour, or if the hours before are no longer stored', () => {
  expect(windowsOf({ from: '2030-03-21', to: '2030-03-22' }, NOW, '2030-03-13')).toBeUndefined()
  expect(windowsOf({ from: '2030-03-13T02', to: '2030-03-14T02' }, NOW, '2030-03-13')).toBeUndefined()
})

it('the coverage states that the earlier period has fewer days with usage', () => {
  const total = {
    calls: 1,
    failed: 0,
    input_tokens: 0,
    cached_input_tokens: 0,
    output_tokens: 0,
    audio_seconds: 0,
    cost_usd: 0,
  }
  const windowOf = (units_with_usage: number) => ({ from: '', to: '', total, units_with_usage })
  const textOf = (current: number, previous: number) =>
    coverageText({ unit: 'day', units: 7, current: windowOf(current), previous: windowOf(previous) })
  expect([textOf(7, 3), textOf(5, 5), textOf(0, 3)]).toEqual(['3 of 7 days with data', '', ''])
})
