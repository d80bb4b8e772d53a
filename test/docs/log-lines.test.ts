import { glob, readFile } from 'node:fs/promises'
import { join } from 'node:path'
import { expect, it } from 'vitest'

const ROOT = join(import.meta.dirname, '../..')

/** Returns the log messages of the table in docs/operate/monitoring.md. A message that ends in `…` there is a prefix of the logged one. */
async function namedLines(): Promise<string[]> {
  const page = await readFile(join(ROOT, 'docs/operate/monitoring.md'), 'utf8')
  const [, section = ''] = page.split('## Log messages\n')
  const rows =
    section
      .split('\n## ')[0]
      ?.split('\n')
      .filter((line) => line.startsWith('| `')) ?? []
  const heads = rows.map((row) => row.split(' | ')[0] ?? '').slice(1)
  return heads.flatMap((head) => [...head.matchAll(/`([^`]+)`/g)].map(([, name = '']) => name))
}

it('the monitoring page lists only log messages that exist in the code', async () => {
  const sources: string[] = []
  for await (const path of glob('{services,shared}/**/*.ts', { cwd: ROOT, exclude: (name) => name.endsWith('dist') })) {
    sources.push(await readFile(join(ROOT, path), 'utf8'))
  }
  const named = await namedLines()
  expect(named.length).toBeGreaterThan(6)
  for (const name of named) {
    const text = `'${name.replace(/ …$/, '')}`
    expect([name, sources.some((source) => source.includes(text))]).toEqual([name, true])
  }
})
