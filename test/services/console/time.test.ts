import { expect, it } from 'vitest'
import { dateText, dateTimeText, minuteText, monthText, offsetText } from '#services/console/api/clock.ts'
import { durationText } from '#shared/lib/duration.ts'

it.each([
  [-1, '+0 s'],
  [42.9, '+42 s'],
  [60, '+1 min'],
  [185, '+3 min 5 s'],
  [7_500, '+2 h 5 min'],
  [90_000, '+1 d 1 h'],
])('the console formats an offset of %d seconds as %s', (seconds, text) => {
  expect(offsetText(seconds)).toBe(text)
})

it.each([
  [0.4, '< 1 s'],
  [59.9, '59 s'],
  [131, '2 min 11 s'],
  [120, '2 min'],
  [7_261, '2 h 1 min'],
])('the console and the command line format a duration of %d seconds as %s', (seconds, text) => {
  expect(durationText(seconds)).toBe(text)
})

it('the console formats a time with its time zone', () => {
  const [, zone = ''] = /\s(\S+)$/.exec(dateTimeText(1_800_000_000)) ?? []
  expect(zone).toMatch(/^[A-Z]{3,5}$|^GMT[+-]/)
  expect(minuteText(1_800_000_000).endsWith(zone)).toBe(true)
})

it('the console formats a date in the same form in every browser', () => {
  // The console shows local times, so the test accepts both days that this time can have in any time zone.
  expect(minuteText(1_800_000_000)).toMatch(/^1[45] Jan 2027, \d\d:\d\d /)
  expect(dateText(1_800_000_000)).toMatch(/^1[45] Jan 2027$/)
  expect(monthText('2026-11')).toBe('November 2026')
})
