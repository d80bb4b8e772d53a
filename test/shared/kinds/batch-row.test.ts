import { expect, it } from 'vitest'
import { batchRowIn, batchRowOf } from '#shared/kinds/batch-row.ts'
import { runYielding } from '#shared/lib/yielding.ts'

const lineOf = (body: object) => ({ custom_id: 'a', response: { status_code: 200, body }, error: null })
const VECTOR = Array.from({ length: 2_000 }, (_, nth) => nth / 7)
const VECTORS = { data: [{ embedding: VECTOR }, { embedding: VECTOR }] }

it('the answer cell of a batch row contains JSON if the result has no text, unless the JSON exceeds the cell limit', async () => {
  const text = JSON.stringify(VECTORS)
  const answerOf = async (body: object, charsMax: number) =>
    (await runYielding(batchRowIn(lineOf(body), { charsMax, instead: 'too large' })))?.answer
  expect(batchRowOf(lineOf(VECTORS))?.answer).toBe(text)
  expect(await answerOf(VECTORS, text.length)).toBe(text)
  expect(await answerOf(VECTORS, text.length - 1)).toBe('too large')
  expect(await answerOf({ text: 'long text' }, 1)).toBe('long text')
})

it('the answer cell of a batch row contains the vector if the result is an embedding of one input', () => {
  expect(batchRowOf(lineOf({ data: [{ embedding: [0.5, -1] }] }))?.answer).toBe('[0.5,-1]')
})

it.each([
  ['chat', { choices: [{ message: { content: 'a' }, finish_reason: 'length' }] }, 'length'],
  ['messages', { content: [{ text: 'a' }], stop_reason: 'max_tokens' }, 'max_tokens'],
  ['responses', { output: [], incomplete_details: { reason: 'max_output_tokens' } }, 'max_output_tokens'],
  ['embeddings', VECTORS, ''],
])('a batch row has the finish reason of %s', (_, body, reason) => {
  expect(batchRowOf(lineOf(body))?.finishReason).toBe(reason)
})
