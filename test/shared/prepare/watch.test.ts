import { mkdir, mkdtemp, rm, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { monitorEventLoopDelay } from 'node:perf_hooks'
import { setTimeout as sleep } from 'node:timers/promises'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { watchBytes } from '#shared/prepare/pip.ts'
import { until } from '../../support/stack.ts'

const [DIRECTORIES, FILES, BYTES] = [100, 150, 10]
/** Duration of each measurement of the event-loop delay in ms: once while idle, and once while files are counted. */
const SPAN_MS = 1_500

describe('the progress of a preparation in bytes', { timeout: 60_000 }, () => {
  let directory: string
  beforeAll(async () => {
    directory = await mkdtemp(join(tmpdir(), 'sluice-watch-'))
    for (let at = 0; at < DIRECTORIES; at++) {
      const inner = join(directory, `${at}`)
      await mkdir(inner)
      await Promise.all(Array.from({ length: FILES }, (_, i) => writeFile(join(inner, `${i}`), 'x'.repeat(BYTES))))
    }
  }, 60_000)
  afterAll(() => rm(directory, { recursive: true, force: true }))

  test('is computed without blocking the event loop, however many files exist', async () => {
    const idleMs = await longestDelayMs(() => sleep(SPAN_MS))
    const counted: number[] = []
    const watchingMs = await longestDelayMs(async () => {
      const watch = watchBytes(directory, (bytes) => counted.push(bytes))
      await sleep(SPAN_MS)
      await until(() => counted.length > 0, { withinMs: 30_000 })
      await watch.end()
    })
    expect(counted[0]).toBe(DIRECTORIES * FILES * BYTES)
    expect(watchingMs).toBeLessThan(Math.max(250, 5 * idleMs))
  })

  test('is zero for a missing directory', async () => {
    const counted: number[] = []
    const watch = watchBytes(join(directory, 'none'), (bytes) => counted.push(bytes))
    await until(() => counted.length > 0)
    await watch.end()
    expect(counted[0]).toBe(0)
    const { length } = counted
    await sleep(300)
    expect(counted).toHaveLength(length)
  })
})

async function longestDelayMs(work: () => Promise<void>): Promise<number> {
  const delay = monitorEventLoopDelay({ resolution: 10 })
  delay.enable()
  await work()
  delay.disable()
  return delay.max / 1e6
}
