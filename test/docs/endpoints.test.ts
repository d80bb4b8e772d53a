import { readFileSync } from 'node:fs'
import { expect, it } from 'vitest'
import { ROUTES } from '#services/ingress/routes.ts'

/** The first cell of each row of the table. */
const ROWS = [...readFileSync('docs/endpoints.md', 'utf8').matchAll(/^\| (`.*?`) +\|/gm)].map(([, cell = '']) => cell)

it.each([...new Set(ROUTES.map(({ path }) => path.split('/:')[0]))])('docs/endpoints.md has a row with %s', (path) => {
  const shown = ROWS.flatMap((cell) => [...cell.matchAll(/(\/[\w/-]*)/g)].map(([found]) => found))
  expect(shown.some((found) => path === found || (found.endsWith('/') && path?.startsWith(found)))).toBe(true)
})
