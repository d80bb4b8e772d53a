import { expect, it, vi } from 'vitest'

// The session of a tab, which no figure needs.
vi.stubGlobal('sessionStorage', { getItem: () => null })
const { Figures, keep } = await import('#services/console/api/metrics.ts')
const { stateOf } = await import('#services/console/screens/home/pools.ts')

const figures = (began: number, lines: readonly string[]) =>
  new Figures([`process_start_time_seconds ${began}`, 'sluice_pool_slots{pool="inference"} 8', ...lines].join('\n'))
const attempts = (end: string, count: number, model = 'echo-1') =>
  `sluice_attempts_total{pool="inference",model="${model}",end="${end}"} ${count}`

it('counts anew after a restart of the service, and never less than nothing', () => {
  const before = figures(1, [attempts('failed', 5)])
  keep(before, 1_000)
  const after = figures(2, [attempts('completed', 6), attempts('failed', 1)])
  keep(after, 3_000)
  const { ended, failed, isRecent, models } = stateOf('inference', after, undefined)
  expect({ ended, failed, isRecent }).toEqual({ ended: 7, failed: 1, isRecent: false })
  expect(models).toMatchObject([{ id: 'echo-1', ended: 7, failed: 1 }])
  const later = figures(2, [attempts('completed', 8), attempts('failed', 1)])
  keep(later, 5_000)
  expect(stateOf('inference', later, undefined)).toMatchObject({ ended: 2, failed: 0, isRecent: true })
})

it('takes about ten times as long for the figures of ten times as many models', () => {
  const timed = (count: number) => {
    const lines = Array.from({ length: count }, (_, nth) => [
      attempts('completed', nth, `m-${nth}`),
      ...Array.from(
        { length: 15 },
        (_, le) => `sluice_attempt_duration_seconds_bucket{le="${le}",pool="inference",model="m-${nth}"} ${le}`,
      ),
    ]).flat()
    const now = figures(3, lines)
    const begun = process.cpuUsage()
    expect(stateOf('inference', now, undefined).models.length).toBe(count)
    const { user, system } = process.cpuUsage(begun)
    return user + system
  }
  timed(300)
  const few = Math.min(timed(300), timed(300), timed(300))
  // A hundred times as long, where each model looks through the figures of all.
  expect(timed(3_000) / few).toBeLessThan(40)
})
