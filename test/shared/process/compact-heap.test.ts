import { execFileSync } from 'node:child_process'
import { expect, it } from 'vitest'
import { compactHeap } from '#shared/process/compact-heap.ts'

/** A process of its own, since the flag is one of the process. Prints how much smaller its heap is afterwards. */
const SCRIPT = `
  import { compactHeap } from '#shared/process/compact-heap.ts'
  let garbage = Array.from({ length: 500_000 }, (_, at) => ({ at }))
  const before = process.memoryUsage().heapTotal
  garbage = garbage.length
  compactHeap()
  console.log(before - process.memoryUsage().heapTotal)
`

it('gives back what is not needed any more in a process that npm start has begun', () => {
  const args = ['--expose-gc', '--input-type=module', '--eval', SCRIPT]
  const freed = Number(execFileSync(process.execPath, args, { encoding: 'utf8' }))
  expect(freed).toBeGreaterThan(10 * 1024 * 1024)
})

it('does nothing in a process without the flag', () => {
  expect(globalThis).not.toHaveProperty('gc')
  expect(() => compactHeap()).not.toThrow()
})
