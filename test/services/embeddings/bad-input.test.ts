import { afterAll, beforeAll, describe, expect, it } from 'vitest'
import { DIMENSIONS, type Embedder, embedderModel, startEmbedder } from '../../support/embeddings/embeddings.ts'
import { ECHO_MODEL, type Stack, startStack } from '../../support/stack.ts'

describe('the embeddings endpoint', () => {
  let embedder: Embedder
  let stack: Stack
  beforeAll(async () => {
    embedder = await startEmbedder()
    const matryoshka = embedderModel(embedder, { id: 'embed-2', embeddings: { can_shorten: true } })
    stack = await startStack({ models: [embedderModel(embedder), matryoshka, ECHO_MODEL] })
  })
  afterAll(async () => {
    await stack[Symbol.asyncDispose]()
    await embedder[Symbol.asyncDispose]()
  })

  const many = (count: number, item: unknown) => Array.from({ length: count }, () => item)
  /** Returns a text of `count` tokens. Each word is one token, together with the blank before it. */
  const words = (count: number) => `word${' word'.repeat(count - 1)}`
  const MISSING = 'missing_required_parameter'

  it.each([
    ['a request without input', {}, MISSING, 'input'],
    ['null as input', { input: null }, MISSING, 'input'],
    ['a request without a model', { model: undefined, input: 'x' }, MISSING, 'model'],
    ['an empty string', { input: '' }, 'empty_string', 'input'],
    ['an empty string among others', { input: ['a', '', 'b'] }, 'empty_string', 'input[1]'],
    ['an empty array', { input: [] }, 'empty_array', 'input'],
    ['an empty array of tokens among others', { input: [[1], []] }, 'empty_array', 'input[1]'],
    ['a number as input', { input: 5 }, 'invalid_type', 'input'],
    ['an object as input', { input: { text: 'x' } }, 'invalid_type', 'input'],
    ['an object in an array', { input: [{ text: 'x' }] }, 'invalid_type', 'input[0]'],
    ['texts and tokens mixed', { input: ['a', 5] }, 'invalid_type', 'input[1]'],
    ['tokens and texts mixed', { input: [5, 'a'] }, 'invalid_type', 'input[1]'],
    ['texts and arrays of tokens mixed', { input: [[5], 'a'] }, 'invalid_type', 'input[1]'],
    ['null among texts', { input: ['a', null] }, 'invalid_type', 'input[1]'],
    ['arrays in arrays of tokens', { input: [[[1]]] }, 'invalid_type', 'input[0][0]'],
    ['a token id that is not an integer', { input: [1, 1.5] }, 'invalid_type', 'input[1]'],
    ['a negative token id', { input: [[1], [2, -3]] }, 'integer_below_min_value', 'input[1][1]'],
    ['a token id outside the vocabulary', { input: [[1], [2, 100_300]] }, 'invalid_value', 'input[1][1]'],
    ['an unassigned token id of the vocabulary', { input: [100_256] }, 'invalid_value', 'input'],
    ['2,049 texts', { input: many(2_049, 'x') }, 'array_above_max_length', 'input'],
    ['2,049 arrays of tokens', { input: many(2_049, [1]) }, 'array_above_max_length', 'input'],
    ['4,097 tokens', { input: ['x', many(4_097, 1917)].slice(1) }, 'context_length_exceeded', 'input'],
    ['a text of 4,097 tokens', { input: ['x', words(4_097)] }, 'context_length_exceeded', 'input'],
    ['a text of a million letters', { input: 'x'.repeat(1_000_000) }, 'context_length_exceeded', 'input'],
    [
      'token ids that exceed 300,000 in total',
      { input: many(301, many(1_000, 1917)) },
      'context_length_exceeded',
      'input',
    ],
    [
      'texts that exceed 300,000 tokens in total',
      { input: many(80, words(4_000)) },
      'context_length_exceeded',
      'input',
    ],
    ['an unknown encoding format', { input: 'x', encoding_format: 'int8' }, 'invalid_value', 'encoding_format'],
    ['zero dimensions', { input: 'x', dimensions: 0 }, 'integer_below_min_value', 'dimensions'],
    ['a number of dimensions that is not an integer', { input: 'x', dimensions: 1.5 }, 'invalid_type', 'dimensions'],
    ['dimensions that are a string', { input: 'x', dimensions: 'all' }, 'invalid_type', 'dimensions'],
    [
      'dimensions for a model that cannot shorten vectors',
      { input: 'x', dimensions: 8 },
      'unsupported_value',
      'dimensions',
    ],
    [
      'more dimensions than the model has',
      { model: 'embed-2', input: 'x', dimensions: DIMENSIONS + 1 },
      'integer_above_max_value',
      'dimensions',
    ],
    ['a model that generates text', { model: 'echo-1', input: 'x' }, 'model_not_supported', 'model'],
    ['a text that the upstream refuses', { input: ['a', 'b', 'REFUSE'] }, 'context_length_exceeded', 'input'],
  ])('refuses %s with 400 and the path of the value', async (_, body, code, param) => {
    const response = await stack.post('/v1/embeddings', { model: 'embed-1', ...body })
    expect(await response.json()).toEqual({
      error: { message: expect.any(String), type: 'invalid_request_error', param, code },
    })
    expect(response.status).toBe(400)
  })

  it('refuses an unknown model with 404', async () => {
    const response = await stack.post('/v1/embeddings', { model: 'none', input: 'x' })
    expect(response.status).toBe(404)
    expect(await response.json()).toMatchObject({ error: { code: 'model_not_found', param: 'model' } })
  })

  it('refuses a too long input, with the index and token count of the input in the error', async () => {
    const response = await stack.post('/v1/embeddings', { model: 'embed-1', input: ['a', words(4_097)] })
    expect(await response.json()).toMatchObject({
      error: { message: expect.stringMatching(/^Input 1 has 4097 .* 4096 /) },
    })
  })

  it('accepts a text with exactly the maximum number of tokens', async () => {
    const response = await stack.post('/v1/embeddings', { model: 'embed-1', input: [words(4_096)] })
    expect(response.status).toBe(200)
  })

  it('accepts a request of 2,048 texts', async () => {
    const response = await stack.post('/v1/embeddings', { model: 'embed-1', input: many(2_048, 'x') })
    expect(response.status).toBe(200)
  })

  it('names an invalid field by its path in the body of a durable job', async () => {
    const body = { model: 'embed-1', input: ['a', ''] }
    const response = await stack.post('/v1/jobs', { endpoint: '/v1/embeddings', body })
    expect(await response.json()).toMatchObject({ error: { code: 'empty_string', param: 'body.input[1]' } })
  })

  it('ignores unknown fields, and treats null as absent', async () => {
    const more = { dimensions: null, encoding_format: null, user: 'somebody', input_type: 'query' }
    const response = await stack.post('/v1/embeddings', { model: 'embed-1', input: 'x', ...more })
    expect(response.status).toBe(200)
  })

  it("refuses one caller's text without affecting the other callers of a shared upstream call", async () => {
    const calls = many(30, 'x').map((_, i) => {
      const input = i % 5 === 0 ? [`good ${i}`, `REFUSE ${i}`] : `text ${i}`
      return stack.post('/v1/embeddings', { model: 'embed-1', input })
    })
    const answers = await Promise.all(calls)
    expect(answers.map(({ status }) => status)).toEqual(many(30, 0).map((_, i) => (i % 5 === 0 ? 400 : 200)))
    const refused = (await answers[0]?.json()) as { error: { message: string } }
    expect(refused.error.message).toMatch(/^Input 1 has/)
  })
})
