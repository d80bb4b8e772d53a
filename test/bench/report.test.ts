import { readFile } from 'node:fs/promises'
import { expect, it } from 'vitest'
import { INTRODUCTION } from '../../bench/figures/report.ts'

// A change of the page alone would be lost at the next `npm run bench -- --write`.
it('docs/internals/benchmarks.md begins as the benchmark writes it', async () => {
  expect((await readFile('docs/internals/benchmarks.md', 'utf8')).startsWith(INTRODUCTION)).toBe(true)
})
