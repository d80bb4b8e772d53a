import { glob, readFile } from 'node:fs/promises'
import { join } from 'node:path'
import { expect, it } from 'vitest'

const ROOT = join(import.meta.dirname, '../..')

/** The messages in the first column of the section about log lines; one that is cut ends in `…`. */
async function namedLines(): Promise<string[]> {
  const page = await readFile(join(ROOT, 'docs/operate/operations.md'), 'utf8')
  const [, section = ''] = page.split('### Log lines to look for\n')
  const rows =
    section
      .split('\n### ')[0]
      ?.split('\n')
      .filter((line) => line.startsWith('| `')) ?? []
  const heads = rows.map((row) => row.split(' | ')[0] ?? '').slice(1)
  return heads.flatMap((head) => [...head.matchAll(/`([^`]+)`/g)].map(([, name = '']) => name))
}

it('lists in the guide for operators only messages that the code logs', async () => {
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
