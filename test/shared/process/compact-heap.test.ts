import { execFileSync } from 'node:child_process'
import { readFileSync } from 'node:fs'
import { performance } from 'node:perf_hooks'
import { expect, it, onTestFinished, vi } from 'vitest'
import { compactHeap, compactWhenIdle } from '#shared/process/compact-heap.ts'

const MIB = 1024 * 1024

/**
 * Runs a script in a process with the flags and the environment of `npm start`, which apply to a whole process. The script allocates objects and
 * buffers of all sizes between small permanent blocks, drops them, and prints the resident MiB at most 2 s later.
 */
function residentAfterBurst(then: string): number {
  const script = `
    import { compactWhenIdle } from '#shared/process/compact-heap.ts'
    import { setTimeout as delay } from 'node:timers/promises'
    const keep = []
    function burst() {
      const held = []
      for (let at = 0; at < 400; at++) {
        held.push(Buffer.alloc(200_000 + (at % 20) * 100_000, 1), Array.from({ length: 5_000 }, (_, n) => ({ n })))
        keep.push(Buffer.allocUnsafeSlow(2_000).fill(1))
      }
      return held.length
    }
    // When a large block is freed, glibc keeps more memory for itself from then on (it raises its threshold). The test frees such a block first,
    // so that the worst case is measured.
    Buffer.alloc(30_000_000, 1)
    globalThis.gc()
    burst()
    ${then}
    const rss = () => process.memoryUsage.rss() / ${MIB}
    for (let tries = 0; tries < 20 && rss() > 150; tries++) await delay(100)
    console.log(rss(), keep.length)
  `
  const [, set = '', flags = ''] = /exec env (\S+) node (.*) services/.exec(startScript()) ?? []
  const args = [set, process.execPath, ...flags.split(' '), '--input-type=module', '--eval', script]
  return Number.parseFloat(execFileSync('env', args, { encoding: 'utf8' }))
}

function startScript(): string {
  return (JSON.parse(readFileSync('package.json', 'utf8')) as { scripts: { start: string } }).scripts.start
}

it('heap compaction returns the memory of a burst once the process is idle', () => {
  const without = residentAfterBurst('')
  const compacted = residentAfterBurst('compactWhenIdle(50)')
  expect(without).toBeGreaterThan(400)
  expect(compacted).toBeLessThan(250)
})

it('heap compaction waits for 30 idle seconds and a growth of 256 MiB', () => {
  const { memoryUsage } = process
  onTestFinished(() => {
    process.memoryUsage = memoryUsage
    vi.useRealTimers()
    vi.unstubAllGlobals()
    vi.restoreAllMocks()
  })
  vi.useFakeTimers({ toFake: ['setInterval', 'clearInterval'] })
  const collect = vi.fn()
  vi.stubGlobal('gc', collect)
  vi.spyOn(performance, 'eventLoopUtilization').mockReturnValue({ idle: 1, active: 0, utilization: 0 })
  const usage = { rss: 100 * MIB, heapTotal: 0, heapUsed: 0, external: 0, arrayBuffers: 0 }
  process.memoryUsage = Object.assign(() => usage, { rss: () => usage.rss })
  compactWhenIdle()
  expect(collect, 'at the start').toHaveBeenCalledTimes(1)
  usage.rss = 350 * MIB
  vi.advanceTimersByTime(60_000)
  expect(collect, 'after a small burst').toHaveBeenCalledTimes(1)
  usage.rss = 360 * MIB
  vi.advanceTimersByTime(29_000)
  expect(collect, 'before 30 idle seconds').toHaveBeenCalledTimes(1)
  vi.advanceTimersByTime(1_000)
  expect(collect, 'after 30 idle seconds').toHaveBeenCalledTimes(2)
})

it('heap compaction has no effect in a process without --expose-gc', () => {
  expect(globalThis).not.toHaveProperty('gc')
  expect(() => compactHeap()).not.toThrow()
})
