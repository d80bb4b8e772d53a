import { readFileSync } from 'node:fs'
import { expect, it } from 'vitest'
import { GENERATED, regenerate } from '../../docs/generate.ts'

it.each(Object.keys(GENERATED))('%s matches the route table and the operations', (page) => {
  expect(readFileSync(page, 'utf8'), `${page} is out of date. Run \`npm run docs\` and commit the result.`).toBe(
    regenerate(page),
  )
})
