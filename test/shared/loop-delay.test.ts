import { execFile } from 'node:child_process'
import { promisify } from 'node:util'
import { expect, it } from 'vitest'
import { LoopDelay } from '#shared/lib/loop-delay.ts'
import { Metrics } from '#shared/lib/metrics.ts'
import { until } from '../support/stack.ts'

function hold(ms: number): void {
  const end = performance.now() + ms
  while (performance.now() < end);
}

it('the event-loop delay metric reports a single block of the event loop once', async () => {
  const delay = new LoopDelay()
  delay.take()
  await new Promise(setImmediate)
  hold(300)
  await new Promise(setImmediate)
  expect(delay.take().max).toBeGreaterThanOrEqual(0.25)
  expect(delay.take().max).toBeLessThan(0.25)
})

it('the event-loop delay metric reports the full duration of blocks in a busy process', async () => {
  const delay = new LoopDelay()
  const isMeasured = async () => {
    hold(100)
    await new Promise((resolve) => setTimeout(resolve, 30))
    const { max = 0, p50 } = delay.take()
    return p50 !== undefined && max >= 0.09
  }
  await until(isMeasured, { withinMs: 20_000 })
})

/** Program that measures the delay of the event loop. The program runs in a process of its own, because the process of the tests is never idle. */
const TWICE = `
  import { setTimeout as sleep } from 'node:timers/promises'
  import { LoopDelay } from '#shared/lib/loop-delay.ts'
  const delay = new LoopDelay()
  async function work() {
    for (let times = 0; times < 30; times++) {
      for (const end = performance.now() + 60; performance.now() < end; );
      await sleep(40)
    }
  }
  await work()
  // The measurement pauses after five seconds without work. This sleep is longer, so that the test covers the pause.
  await sleep(12_000)
  await work()
  process.stdout.write(JSON.stringify(delay.take()))
`

it('the event-loop delay metric does not count idle time between two tasks as a block', {
  timeout: 120_000,
}, async () => {
  const args = ['--input-type=module', '-e', TWICE]
  const { stdout } = await promisify(execFile)(process.execPath, args, { cwd: process.cwd() })
  const { max, p50 } = JSON.parse(stdout)
  expect(p50).toBeGreaterThan(0)
  expect(max).toBeLessThan(4)
})

it('the event-loop delay metric has the same name as in prom-client', async () => {
  const text = await new Metrics().registry.metrics()
  expect(text).toMatch(/^nodejs_eventloop_lag_max_seconds \d/m)
})
