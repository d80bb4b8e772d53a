import { expect, it } from 'vitest'
import { BatchedLines } from '#shared/log/log.ts'

it('log lines of one tick are written together in order', async () => {
  const written: string[] = []
  const lines = new BatchedLines({ write: (text) => written.push(text) })
  lines.write('a\n')
  lines.write('b\n')
  expect(written).toEqual([])
  await new Promise(setImmediate)
  expect(written).toEqual(['a\nb\n'])
  lines.write('c\n')
  await new Promise(setImmediate)
  expect(written).toEqual(['a\nb\n', 'c\n'])
})

it('at most 70,000 characters of log lines are buffered until the end of a tick', () => {
  const written: string[] = []
  const lines = new BatchedLines({ write: (text) => written.push(text) })
  for (let i = 0; i < 100; i++) lines.write(`${'x'.repeat(1_000)}\n`)
  lines.flush()
  expect(written.length).toBeGreaterThan(1)
  expect(Math.max(...written.map(({ length }) => length))).toBeLessThan(70_000)
})
