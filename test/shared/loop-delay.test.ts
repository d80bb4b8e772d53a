import { execFile } from 'node:child_process'
import { promisify } from 'node:util'
import { expect, it } from 'vitest'
import { LoopDelay, Metrics } from '#shared/metrics.ts'
import { until } from '../support/stack.ts'

function hold(ms: number): void {
  const end = performance.now() + ms
  while (performance.now() < end);
}

it('a hold of an idle process is reported once', async () => {
  const delay = new LoopDelay()
  delay.take()
  await new Promise(setImmediate)
  hold(300)
  await new Promise(setImmediate)
  expect(delay.take().max).toBeGreaterThanOrEqual(0.25)
  expect(delay.take().max).toBeLessThan(0.25)
})

it('a busy process is measured in full', async () => {
  const delay = new LoopDelay()
  const isMeasured = async () => {
    hold(100)
    await new Promise((resolve) => setTimeout(resolve, 30))
    const { max = 0, p50 } = delay.take()
    return p50 !== undefined && max >= 0.09
  }
  await until(isMeasured, { withinMs: 20_000 })
})

/** In a separate process: the test process is never idle. */
const TWICE = `
  import { setTimeout as sleep } from 'node:timers/promises'
  import { LoopDelay } from '#shared/metrics.ts'
  const delay = new LoopDelay()
  async function work() {
    for (let times = 0; times < 30; times++) {
      for (const end = performance.now() + 60; performance.now() < end; );
      await sleep(40)
    }
  }
  await work()
  // Measuring pauses after five seconds without work.
  await sleep(12_000)
  await work()
  process.stdout.write(JSON.stringify(delay.take()))
`

it('an idle pause between two tasks is not counted as a hold', { timeout: 120_000 }, async () => {
  const args = ['--input-type=module', '-e', TWICE]
  const { stdout } = await promisify(execFile)(process.execPath, args, { cwd: process.cwd() })
  const { max, p50 } = JSON.parse(stdout)
  expect(p50).toBeGreaterThan(0)
  expect(max).toBeLessThan(4)
})

it('the metrics have the names of prom-client', async () => {
  const text = await new Metrics().registry.metrics()
  expect(text).toMatch(/^nodejs_eventloop_lag_max_seconds \d/m)
})
