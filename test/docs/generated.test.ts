import { readFileSync } from 'node:fs'
import { expect, it } from 'vitest'
import { GENERATED } from '../../docs/generate.ts'

it.each(Object.entries(GENERATED))(
  'the generated page %s is equal to the output of its generator',
  async (file, generate) => {
    expect(readFileSync(file, 'utf8'), `${file} is out of date. Run \`npm run docs\` and commit the result.`).toBe(
      await generate(),
    )
  },
)
