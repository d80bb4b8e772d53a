import { afterEach, expect, it, vi } from 'vitest'
import { ageText, serviceNow, syncClock } from '#services/console/api/clock.ts'

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

it("the console uses the browser's clock if the response time alone could explain the clock difference", () => {
  vi.useFakeTimers({ now: NOW })
  // The date header lies within the ten seconds that the response took.
  syncClock(dateAt(NOW - 7_000), NOW - 10_000)
  expect(serviceNow()).toBe(NOW / 1_000)
})

it.each([null, '', 'yesterday'])('the console ignores a response whose date header is %j', (date) => {
  vi.useFakeTimers({ now: NOW })
  syncClock(dateAt(NOW), NOW)
  syncClock(date, NOW)
  expect(serviceNow()).toBe(NOW / 1_000)
})
