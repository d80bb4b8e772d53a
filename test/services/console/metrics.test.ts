import { expect, it, vi } from 'vitest'

// services/console/api/client.ts reads sessionStorage when it is imported, so sessionStorage must exist before.
vi.stubGlobal('sessionStorage', { getItem: () => null })
const { Metrics, recordScrape } = await import('#services/console/api/metrics.ts')
const { stateOf } = await import('#services/console/screens/home/pools.ts')

const metrics = (began: number, lines: readonly string[]) =>
  new Metrics([`process_start_time_seconds ${began}`, 'sluice_pool_slots{pool="inference"} 8', ...lines].join('\n'))
const attempts = (end: string, count: number, model = 'echo-1') =>
  `sluice_attempts_total{pool="inference",model="${model}",outcome="${end}"} ${count}`

it('the console computes no negative rates from metrics after a restart of the service', () => {
  const before = metrics(1, [attempts('failed', 5)])
  recordScrape(before, 1_000)
  const after = metrics(2, [attempts('completed', 6), attempts('failed', 1)])
  recordScrape(after, 3_000)
  const { ended, failed, isRecent, models } = stateOf('inference', after, undefined)
  expect({ ended, failed, isRecent }).toEqual({ ended: 7, failed: 1, isRecent: false })
  expect(models).toMatchObject([{ id: 'echo-1', ended: 7, failed: 1 }])
  const later = metrics(2, [attempts('completed', 8), attempts('failed', 1)])
  recordScrape(later, 5_000)
  expect(stateOf('inference', later, undefined)).toMatchObject({ ended: 2, failed: 0, isRecent: true })
})

it('the metrics parser needs about ten times the CPU time for ten times as many models', () => {
  const timed = (count: number) => {
    const lines = Array.from({ length: count }, (_, nth) => [
      attempts('completed', nth, `m-${nth}`),
      ...Array.from(
        { length: 15 },
        (_, le) => `sluice_attempt_duration_seconds_bucket{le="${le}",pool="inference",model="m-${nth}"} ${le}`,
      ),
    ]).flat()
    const now = metrics(3, lines)
    const begun = process.cpuUsage()
    expect(stateOf('inference', now, undefined).models.length).toBe(count)
    const { user, system } = process.cpuUsage(begun)
    return user + system
  }
  timed(300)
  const few = Math.min(timed(300), timed(300), timed(300))
  // With ten times as many models, a lookup that scans all samples for each model would take a hundred times as long.
  expect(timed(3_000) / few).toBeLessThan(40)
})
