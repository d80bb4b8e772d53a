import { expect, it } from 'vitest'
import { LoopDelay } from '#shared/loop-delay.ts'
import { Metrics } from '#shared/metrics.ts'
import { until } from '../support/stack.ts'

function hold(ms: number): void {
  const end = performance.now() + ms
  while (performance.now() < end);
}

it('a round that held an idle process is told, and once', async () => {
  const delay = new LoopDelay()
  delay.take()
  await new Promise(setImmediate)
  hold(300)
  await new Promise(setImmediate)
  expect(delay.take().max).toBeGreaterThanOrEqual(0.25)
  expect(delay.take().max).toBeLessThan(0.25)
})

it('a process that works is measured in full', async () => {
  const delay = new LoopDelay()
  const isMeasured = async () => {
    hold(100)
    await new Promise((resolve) => setTimeout(resolve, 30))
    const { max = 0, p50 } = delay.take()
    return p50 !== undefined && max >= 0.09
  }
  await until(isMeasured, { withinMs: 20_000 })
})

it('is shown by the names of prom-client', async () => {
  const text = await new Metrics().registry.metrics()
  expect(text).toMatch(/^nodejs_eventloop_lag_max_seconds \d/m)
})
