import { afterEach, expect, it, vi } from 'vitest'
import {
  ageText,
  costText,
  dateTimeText,
  latencyText,
  serviceNow,
  syncClock,
  usdText,
} from '#services/console/api/clock.ts'

const NOW = Date.UTC(2030, 0, 1, 12)
const dateAt = (ms: number) => new Date(ms).toUTCString()

afterEach(() => void vi.useRealTimers())

it.each([
  ['an hour ahead', 3_600_000, 'now'],
  ['an hour behind', -3_600_000, 'now'],
  ['equal to that of the browser', 0, 'now'],
])('the console computes ages correctly if the clock of the service is %s', (_, aheadMs, age) => {
  vi.useFakeTimers({ now: NOW })
  syncClock(dateAt(NOW + aheadMs), NOW - 50)
  expect(ageText((NOW + aheadMs) / 1_000)).toBe(age)
  expect(ageText((NOW + aheadMs) / 1_000 - 180)).toBe('3 min ago')
})

it('the console formats a time with milliseconds only if the caller requests milliseconds', () => {
  expect(dateTimeText(NOW / 1_000 + 0.047)).toMatch(/:00:00 /)
  expect(dateTimeText(NOW / 1_000 + 0.047, true)).toMatch(/:00:00\.047 /)
})

it("the console uses the browser's clock if the response time alone could explain the clock difference", () => {
  vi.useFakeTimers({ now: NOW })
  // The request took ten seconds, so a date header that is seven seconds old proves no clock difference.
  syncClock(dateAt(NOW - 7_000), NOW - 10_000)
  expect(serviceNow()).toBe(NOW / 1_000)
})

it.each([null, '', 'yesterday'])('the console ignores a response whose date header is %j', (date) => {
  vi.useFakeTimers({ now: NOW })
  syncClock(dateAt(NOW), NOW)
  syncClock(date, NOW)
  expect(serviceNow()).toBe(NOW / 1_000)
})

it('the console formats durations with two digits, sums with two decimals and single costs with four', () => {
  expect([0.0456, 1.96, 2, 45.2, 75].map(latencyText)).toEqual(['46 ms', '2.0 s', '2.0 s', '45 s', '1 min 15 s'])
  expect([0, 0.0034, 10, 1_234.5].map(usdText)).toEqual(['$0.00', '$0.0034', '$10.00', '$1234.50'])
  expect([0, 0.00001, 0.5].map(costText)).toEqual(['$0.0000', '< $0.0001', '$0.5000'])
})
