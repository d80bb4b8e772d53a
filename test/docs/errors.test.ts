import { readFileSync } from 'node:fs'
import { expect, it } from 'vitest'
import { ERRORS } from '#schemas/error.ts'

/** Code and status of each table row that starts with an error code. */
const ROWS = [...readFileSync('docs/reference/errors.md', 'utf8').matchAll(/^\| `(\w+)` \| (\d{3}) \|/gm)].map(
  ([, code = '', status]) => [code, Number(status)],
)

it('docs/reference/errors.md has one row per error code, with its status', () => {
  const expected = Object.entries(ERRORS).map(([code, { status }]) => [code, status])
  expect(ROWS.toSorted(), 'rows of docs/reference/errors.md, which must equal schemas/error.ts').toEqual(
    expected.toSorted(),
  )
})
