import { afterAll, describe, expect, test } from 'vitest'
import { findEnvironment, openServer } from '../../support/speech/running.ts'

const environment = await findEnvironment()
const model = 'all-minilm-l6-v2'

/** Pairs of a question and the document that answers it. The two have no words in common. */
const PAIRS: readonly [string, string][] = [
  ['how do I get my money back', 'Refunds are issued within five days of a return.'],
  ['my computer will not start', 'If the laptop fails to boot, remove the battery and hold the power button.'],
  ['cheap places to eat', 'Our guide lists restaurants where dinner costs less than ten euros.'],
  ['what medicine helps against a sore head', 'Ibuprofen and paracetamol relieve migraine and other pain.'],
  ['learning to play an instrument', 'Piano lessons for beginners, weekday afternoons.'],
  ['when does the train leave', 'Railway timetable: departures from the central station.'],
  ['raising a puppy', 'Young dogs need sleep, patience and short walks.'],
  ['the largest animal in the sea', 'Blue whales grow to thirty metres.'],
  ['who rules the country', 'The president heads the government for four years.'],
  ['growing vegetables at home', 'Tomatoes and beans do well on a sunny balcony.'],
  ['is it going to rain', 'Weather forecast: showers in the evening, clouds tomorrow.'],
  ['protecting accounts from thieves', 'Use long passwords and a second factor against hackers.'],
]

describe.skipIf(!environment)('embeddings of the local model server', { timeout: 120_000 }, () => {
  const local = openServer()
  afterAll(() => local[Symbol.asyncDispose]())
  const embed = async (input: string | string[]) => {
    const { status, json } = await local.post('/v1/embeddings', { model, input })
    expect(status).toBe(200)
    return (json.data as { embedding: number[] }[]).map(({ embedding }) => embedding)
  }

  test('rank the document that answers a question first, for all twelve questions', async () => {
    const questions = await embed(PAIRS.map(([question]) => question))
    const documents = await embed(PAIRS.map(([, document]) => document))
    const nearest = questions.map((question) => {
      const scores = documents.map((document) => dot(question, document))
      return scores.indexOf(Math.max(...scores))
    })
    expect(nearest).toEqual(PAIRS.map((_, index) => index))
  })

  test('have 384 dimensions and length 1, in the order of the inputs', async () => {
    const vectors = await embed(['one', 'a rather longer text about two things', 'three'])
    expect(vectors.map((vector) => vector.length)).toEqual([384, 384, 384])
    for (const vector of vectors) expect(Math.sqrt(dot(vector, vector))).toBeCloseTo(1, 6)
    expect(vectors[2]).toEqual((await embed('three'))[0])
  })

  test('do not depend on the other texts of a batch or on concurrent calls', async () => {
    const texts = PAIRS.flat().concat(Array.from({ length: 8 }, (_, n) => `${'word '.repeat(n * 12)}${n}`))
    const alone = new Map<string, number[]>()
    for (const text of texts) alone.set(text, (await embed(text))[0] ?? [])
    const batches = Array.from({ length: 6 }, (_, n) => texts.filter((_, index) => (index * 7 + n) % (n + 2) !== 1))
    const together = await Promise.all(batches.map(async (batch) => [batch, await embed(batch)] as const))
    for (const [batch, vectors] of together) expect(vectors).toEqual(batch.map((text) => alone.get(text)))
  })

  test('have equal float32 values in base64 and as numbers', async () => {
    const body = { model, input: 'the same' }
    const [plain, packed] = await Promise.all([
      local.post('/v1/embeddings', body),
      local.post('/v1/embeddings', { ...body, encoding_format: 'base64' }),
    ])
    const bytes = Buffer.from(packed.json.data[0].embedding, 'base64')
    const values = Array.from({ length: bytes.length / 4 }, (_, index) => bytes.readFloatLE(index * 4))
    expect(values).toEqual(plain.json.data[0].embedding)
  })

  test("report the token count of the model's tokenizer as usage", async () => {
    const { json } = await local.post('/v1/embeddings', { model, input: ['hello world', 'hello'] })
    // The count includes a start token and an end token for each text.
    expect(json.usage).toEqual({ prompt_tokens: 7, total_tokens: 7 })
  })

  test('are returned for 512 tokens, and refused for 513 tokens with the index of the input', async () => {
    const words = (count: number) => 'word '.repeat(count - 2)
    const body = (input: string[]) => ({ model, input })
    expect((await local.post('/v1/embeddings', body([words(512)]))).json.usage.prompt_tokens).toBe(512)
    const { status, json } = await local.post('/v1/embeddings', body(['fine', words(513)]))
    expect(status).toBe(400)
    expect(json.error).toMatchObject({ code: 'context_length_exceeded', param: 'input', index: 1 })
  })

  test.each([
    ['without a model', { input: 'x' }, 404, 'model_not_found'],
    ['without the field input', { model }, 400, 'invalid_type'],
    ['with an empty list of inputs', { model, input: [] }, 400, 'invalid_type'],
    ['with token ids', { model, input: [1, 2] }, 400, 'invalid_type'],
    ['with an empty text', { model, input: ['x', ''] }, 400, 'empty_string'],
    ['with the field dimensions', { model, input: 'x', dimensions: 12 }, 400, 'unsupported_value'],
    ['with an unknown encoding_format', { model, input: 'x', encoding_format: 'hex' }, 400, 'invalid_value'],
    ['with 2,049 texts', { model, input: Array(2049).fill('x') }, 400, 'array_above_max_length'],
    ['with a text of 70,000 characters', { model, input: 'x'.repeat(70_000) }, 400, 'context_length_exceeded'],
  ])('are refused for a call $0', async (_, body, status, code) => {
    const answer = await local.post('/v1/embeddings', body)
    expect([answer.status, answer.json.error.code]).toEqual([status, code])
  })

  test('are returned for a lone surrogate, and refused with status 400 for invalid JSON', async () => {
    expect(await embed('a \ud800 b')).toHaveLength(1)
    const { status, json } = await local.post('/v1/embeddings', Buffer.from('{"model":'))
    expect([status, json.error.code]).toEqual([400, 'invalid_request'])
  })
})

function dot(a: readonly number[], b: readonly number[]): number {
  return a.reduce((sum, value, index) => sum + value * (b[index] ?? 0), 0)
}
