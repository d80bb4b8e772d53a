import { expect, it, vi } from 'vitest'

// services/console/api/client.ts reads sessionStorage when it is imported, so the test defines sessionStorage before the import.
vi.stubGlobal('sessionStorage', { getItem: () => null })
const { Metrics } = await import('#services/console/api/metrics.ts')
const { recentOf } = await import('#services/console/api/recent.ts')
const { stateOf } = await import('#services/console/screens/home/pools.ts')

it('the CPU time of the metrics parser grows linearly with the number of models', () => {
  const timed = (count: number) => {
    const lines = Array.from({ length: count }, (_, nth) => [
      `sluice_attempts_total{pool="inference",model="m-${nth}",outcome="completed"} ${nth}`,
      ...Array.from(
        { length: 15 },
        (_, le) => `sluice_attempt_duration_seconds_bucket{le="${le}",pool="inference",model="m-${nth}"} ${le}`,
      ),
    ]).flat()
    const now = new Metrics(['sluice_pool_slots{pool="inference"} 8', ...lines].join('\n'))
    const begun = process.cpuUsage()
    expect(stateOf('inference', now, undefined).models.length).toBe(count)
    const { user, system } = process.cpuUsage(begun)
    return user + system
  }
  timed(300)
  const few = Math.min(timed(300), timed(300), timed(300))
  // The CPU time may grow linearly with the number of models, plus a margin. If each model scanned all samples, ten times as many models
  // would take a hundred times as long.
  expect(timed(3_000) / few).toBeLessThan(40)
})

it('the percentiles of a model are measured values, and the time to the first output never exceeds the duration', () => {
  const request = (status: number, first_output_ms: number | null, duration_ms: number) => ({
    ...({ status, first_output_ms, duration_ms, queue_ms: duration_ms / 4 } as Parameters<
      typeof recentOf
    >[0]['data'][number]),
  })
  // Short durable jobs and failed calls have no first output. If they counted, then the median duration would be 10 ms.
  const short = Array.from({ length: 5 }, () => request(200, null, 10))
  const data = [request(200, 2_000, 2_500), request(200, 1_900, 1_900), request(500, null, 1), ...short]
  const page = { data, has_more: true, last_id: null }
  expect(recentOf(page, 1)).toEqual({
    requests: 8,
    hasMore: true,
    failed: 1,
    ...{ firstOutput: { p50: 1.9, p95: 2 }, duration: { p50: 1.9, p95: 2.5 }, queueShare: 0.25 },
  })
  expect(recentOf({ ...page, data: short }, 0)).toMatchObject({
    firstOutput: undefined,
    duration: { p50: 0.01, p95: 0.01 },
  })
})
