import { readFileSync } from 'node:fs'
import { expect, it } from 'vitest'
import { ERRORS } from '#schemas/error.ts'

const PAGE = readFileSync('docs/errors.md', 'utf8')

it.each(Object.keys(ERRORS))('docs/errors.md documents the error code %s', (code) => {
  expect(PAGE).toContain(`\`${code}\``)
})
