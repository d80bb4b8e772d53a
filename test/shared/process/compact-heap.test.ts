import { expect, it } from 'vitest'
import { compactHeap } from '#shared/process/compact-heap.ts'

it('gives back what is not needed any more, and hides the collector again', () => {
  let garbage: unknown[] | undefined = Array.from({ length: 500_000 }, (_, at) => ({ at }))
  const before = process.memoryUsage().heapTotal
  expect(garbage).toHaveLength(500_000)
  garbage = undefined
  compactHeap()
  expect(before - process.memoryUsage().heapTotal).toBeGreaterThan(10 * 1024 * 1024)
  expect(globalThis).not.toHaveProperty('gc')
})
