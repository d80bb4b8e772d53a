import { expect, it } from 'vitest'
import { batchRowIn, batchRowOf } from '#shared/kinds/batch-row.ts'
import { runYielding } from '#shared/lib/yielding.ts'

const lineOf = (body: object) => ({ custom_id: 'a', response: { status_code: 200, body }, error: null })
const VECTORS = { data: [{ embedding: Array.from({ length: 2_000 }, (_, nth) => nth / 7) }] }

it('a result without text is its JSON, unless the JSON exceeds the limit of a cell', async () => {
  const text = JSON.stringify(VECTORS)
  const answerOf = async (body: object, charsMax: number) =>
    (await runYielding(batchRowIn(lineOf(body), { charsMax, instead: 'too large' })))?.answer
  expect(batchRowOf(lineOf(VECTORS))?.answer).toBe(text)
  expect(await answerOf(VECTORS, text.length)).toBe(text)
  expect(await answerOf(VECTORS, text.length - 1)).toBe('too large')
  expect(await answerOf({ text: 'long text' }, 1)).toBe('long text')
})
