/** Tests limits on the structure of the product. Folders import each other in one direction only, and files and folders have a maximum size. */
import { execFileSync } from 'node:child_process'
import { readFileSync } from 'node:fs'
import { dirname, join, normalize } from 'node:path'
import { expect, it } from 'vitest'

const ROOT = join(import.meta.dirname, '..')
const LINES_MAX = 500
const FOLDER_FILES_MAX = 16
const PRODUCT_FILES_MAX = 650
const IMPORT = /(?:import|export)\s[^'";]*?from\s+'([^']+)'/g

const files = execFileSync('git', ['ls-files', 'services', 'shared', 'schemas'], { cwd: ROOT, encoding: 'utf8' })
  .trim()
  .split('\n')
const sources = new Map(
  files.filter((file) => /\.tsx?$/.test(file)).map((file) => [file, readFileSync(join(ROOT, file), 'utf8')]),
)

/** Returns the imports between folders of the product, in the form `from -> to`. */
function arrows(): Set<string> {
  const all = new Set<string>()
  for (const [file, text] of sources)
    for (const [, name = ''] of text.matchAll(IMPORT)) {
      const target = name.startsWith('#') ? name.slice(1) : normalize(join(dirname(file), name))
      if (sources.has(target) && dirname(target) !== dirname(file)) all.add(`${dirname(file)} -> ${dirname(target)}`)
    }
  return all
}

it('the folders of the product import in one direction', () => {
  const all = arrows()
  const mutual = [...all].filter((arrow) => {
    const [from, to] = arrow.split(' -> ') as [string, string]
    return from < to && all.has(`${to} -> ${from}`)
  })
  expect(all.size, 'imports between folders').toBeGreaterThan(100)
  expect(mutual, 'pairs of folders that import each other').toEqual([])
})

it(`a product file has at most ${LINES_MAX} lines`, () => {
  const long = [...sources].filter(([, text]) => text.split('\n').length > LINES_MAX).map(([file]) => file)
  expect(long, 'files that are too long').toEqual([])
})

it(`a product folder has at most ${FOLDER_FILES_MAX} files`, () => {
  const long = [...Map.groupBy(files, dirname)]
    .filter(([, of]) => of.length > FOLDER_FILES_MAX)
    .map(([folder]) => folder)
  expect(long, 'folders with too many files').toEqual([])
})

it(`the product has at most ${PRODUCT_FILES_MAX} source files`, () => {
  expect(sources.size, 'source files of the product').toBeLessThanOrEqual(PRODUCT_FILES_MAX)
})
