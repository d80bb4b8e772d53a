import { afterEach, expect, it, vi } from 'vitest'
import { hearClock, serviceNow } from '#services/console/api/clock.ts'
import { ago } from '#services/console/parts/time.ts'

const NOW = Date.UTC(2030, 0, 1, 12)
const dateAt = (ms: number) => new Date(ms).toUTCString()

afterEach(() => void vi.useRealTimers())

it.each([
  ['an hour ahead', 3_600_000, 'now'],
  ['an hour behind', -3_600_000, 'now'],
  ['the same', 0, 'now'],
])('tells ages right where the clock of the service is %s', (_, aheadMs, said) => {
  vi.useFakeTimers({ now: NOW })
  hearClock(dateAt(NOW + aheadMs), NOW - 50)
  expect(ago((NOW + aheadMs) / 1_000)).toBe(said)
  expect(ago((NOW + aheadMs) / 1_000 - 180)).toBe('3 min ago')
})

it('keeps to the clock of the browser as long as both may be the same', () => {
  vi.useFakeTimers({ now: NOW })
  // An answer that took ten seconds, and says a time within them.
  hearClock(dateAt(NOW - 7_000), NOW - 10_000)
  expect(serviceNow()).toBe(NOW / 1_000)
})

it.each([null, '', 'yesterday'])('takes nothing from an answer whose time is %j', (date) => {
  vi.useFakeTimers({ now: NOW })
  hearClock(dateAt(NOW), NOW)
  hearClock(date, NOW)
  expect(serviceNow()).toBe(NOW / 1_000)
})
