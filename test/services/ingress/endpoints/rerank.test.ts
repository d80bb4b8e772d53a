import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { type ScriptedUpstream, startUpstream } from '../../../support/processes/upstream.ts'
import { ECHO_MODEL, type Stack, startStack } from '../../../support/stack.ts'

/** POST /v1/rerank as its callers see it (docs/embeddings.md, Reranking). */

const VECTORS: Readonly<Record<string, number[]>> = {
  north: [0, 2],
  northeast: [3, 3],
  east: [1, 0],
  south: [0, -1],
  nowhere: [0, 0],
}

let stack: Stack
let upstream: ScriptedUpstream
beforeAll(async () => {
  upstream = await startUpstream(({ body }, answer) => {
    const texts = body.input as string[]
    const data = texts.map((text, index) => ({ object: 'embedding', index, embedding: VECTORS[text] ?? [1, 1] }))
    answer.json({ object: 'list', data, usage: { prompt_tokens: texts.length, total_tokens: texts.length } })
  })
  const engine = { type: 'openai', base_url: `${upstream.url}/v1` }
  stack = await startStack({
    models: [ECHO_MODEL, { id: 'compass', pool: 'embeddings', engine, limits: { context_tokens: 100 } }],
  })
})
afterAll(async () => {
  await stack[Symbol.asyncDispose]()
  await upstream[Symbol.asyncDispose]()
})

const DOCUMENTS = ['south', 'east', 'nowhere', { text: 'northeast' }, 'north']

interface Ranking {
  results: { index: number; relevance_score: number; document?: { text: string } }[]
  usage: { total_tokens: number }
}

const ask = (more: object = {}, init?: RequestInit) =>
  stack.post('/v1/rerank', { model: 'compass', query: 'north', documents: DOCUMENTS, ...more }, init)
const rank = async (more?: object, init?: RequestInit) => (await (await ask(more, init)).json()) as Ranking

describe('documents', () => {
  test('are sorted by how near they are to the query, equally near ones in their order', async () => {
    const { results, usage, ...rest } = await rank()
    expect(results.map(({ index }) => index)).toEqual([4, 3, 1, 2, 0])
    const scores = [1, Math.SQRT1_2, 0, 0, -1]
    for (const [at, { relevance_score }] of results.entries()) expect(relevance_score).toBeCloseTo(scores[at] ?? 9, 5)
    expect(results.every((result) => !('document' in result))).toBe(true)
    expect([usage.total_tokens, rest]).toMatchObject([6, { object: 'list', model: 'compass' }])
  })

  test('are cut to the nearest, and repeated where that is asked for', async () => {
    const { results } = await rank({ top_n: 2, return_documents: true })
    expect(results).toMatchObject([
      { index: 4, document: { text: 'north' } },
      { index: 3, document: { text: 'northeast' } },
    ])
    expect(results).toHaveLength(2)
    expect((await rank({ top_n: 99 })).results).toHaveLength(5)
  })

  test('are reranked as a durable job too, with the same answer', async () => {
    const asked = { top_n: 3, return_documents: true }
    const durable = await rank(asked, { headers: { prefer: 'respond-async, wait=30' } })
    expect(durable.results).toEqual((await rank(asked)).results)
    const job = { endpoint: '/v1/rerank', body: { model: 'compass', query: '', documents: ['a'] } }
    expect(await (await stack.post('/v1/jobs', job)).json()).toMatchObject({ error: { param: 'body.query' } })
  })

  test.each([
    [{ query: undefined }, 'query', 'missing_required_parameter'],
    [{ query: '' }, 'query', 'empty_string'],
    [{ documents: undefined }, 'documents', 'missing_required_parameter'],
    [{ documents: 'one' }, 'documents', 'invalid_type'],
    [{ documents: [] }, 'documents', 'empty_array'],
    [{ documents: ['a', ''] }, 'documents[1]', 'empty_string'],
    [{ documents: ['a', { title: 'b' }] }, 'documents[1]', 'invalid_type'],
    [{ documents: [1, 2] }, 'documents[0]', 'invalid_type'],
    [{ documents: Array(2_048).fill('a') }, 'documents', 'array_above_max_length'],
    [{ top_n: 0 }, 'top_n', 'integer_below_min_value'],
    [
      { documents: ['word '.repeat(12_000)], return_documents: true, model: 'compass' },
      'input',
      'context_length_exceeded',
    ],
    [
      { documents: Array(2_000).fill('a text of some words, again'), return_documents: true },
      'return_documents',
      'invalid_value',
    ],
    [{ model: 'echo-1' }, 'model', 'model_not_supported'],
  ])('are refused: %.80j', async (more, param, code) => {
    const response = await ask(more)
    expect([response.status, await response.json()]).toMatchObject([400, { error: { param, code } }])
  })
})
