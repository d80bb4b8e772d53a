import { expect, it } from 'vitest'
import { clock, clockToMinute, later } from '#services/console/parts/time.ts'

it.each([
  [-1, '+0 s'],
  [42.9, '+42 s'],
  [60, '+1 min'],
  [185, '+3 min 5 s'],
  [7_500, '+2 h 5 min'],
  [90_000, '+1 d 1 h'],
])('formats an offset of %d seconds as %s', (seconds, text) => {
  expect(later(seconds)).toBe(text)
})

it('formats a time with its time zone', () => {
  const [, zone = ''] = /\s(\S+)$/.exec(clock(1_800_000_000)) ?? []
  expect(zone).toMatch(/^[A-Z]{3,5}$|^GMT[+-]/)
  expect(clockToMinute(1_800_000_000).endsWith(zone)).toBe(true)
})
