/* Tests of POST /v1/rerank from the caller's point of view (docs/guides/embeddings.md, Reranking). */

import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { type Answer, type ScriptedUpstream, startUpstream } from '../../../support/processes/upstream.ts'
import { ECHO_MODEL, type Stack, startStack, until } from '../../../support/stack.ts'

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
  upstream = await startUpstream(({ path, body }, answer) => {
    if (path === '/v1/rerank') return answerRanked(body, answer)
    const texts = body.input as string[]
    const data = texts.map((text, index) => ({ object: 'embedding', index, embedding: VECTORS[text] ?? [1, 1] }))
    answer.json({ object: 'list', data, usage: { prompt_tokens: texts.length, total_tokens: texts.length } })
  })
  const engine = { type: 'openai', base_url: `${upstream.url}/v1` }
  stack = await startStack({
    models: [
      ECHO_MODEL,
      { id: 'compass', pool: 'embeddings', engine, limits: { context_tokens: 100 } },
      { id: 'reader', pool: 'embeddings', task: 'rerank', engine: { ...engine, model: 'reranker-v2' } },
    ],
  })
})
afterAll(async () => {
  await stack[Symbol.asyncDispose]()
  await upstream[Symbol.asyncDispose]()
})

/**
 * Simulates a rerank server. The score of a document is its length. The query selects the format of the response (like vLLM, Jina or
 * Cohere) or a faulty response.
 */
function answerRanked({ query, documents }: Record<string, unknown>, answer: Answer): void {
  const texts = documents as string[]
  if (query === 'STALL') return
  if (query === 'MANY') return answer.json({ results: Array.from({ length: 1_000 }, () => ({})) })
  const scored = texts.map((text, index) => ({ index, relevance_score: text.length / 10 }))
  const results =
    query === 'SHORT' ? scored.slice(1) : query === 'WRONG' ? [...scored.slice(1), { ...scored[0], index: 99 }] : scored
  if (query === 'cohere')
    answer.json({ id: 'x', results, meta: { tokens: { input_tokens: 77 }, billed_units: { search_units: 1 } } })
  else if (query === 'plain') answer.json({ results })
  else
    answer.json({
      id: 'x',
      model: 'm',
      usage: { total_tokens: 55 },
      results: results.map((one) => ({ ...one, document: { text: 'x' } })),
    })
}

const DOCUMENTS = ['south', 'east', 'nowhere', { text: 'northeast' }, 'north']

interface Ranking {
  results: { index: number; relevance_score: number; document?: { text: string } }[]
  usage: { total_tokens: number }
}

const ask = (more: object = {}, init?: RequestInit) =>
  stack.post('/v1/rerank', { model: 'compass', query: 'north', documents: DOCUMENTS, ...more }, init)
const rank = async (more?: object, init?: RequestInit) => (await (await ask(more, init)).json()) as Ranking

describe('reranking with an embeddings model', () => {
  test('sorts documents by similarity to the query, and then by input order', async () => {
    const { results, usage, ...rest } = await rank()
    expect(results.map(({ index }) => index)).toEqual([4, 3, 1, 2, 0])
    const scores = [1, Math.SQRT1_2, 0, 0, -1]
    for (const [at, { relevance_score }] of results.entries()) expect(relevance_score).toBeCloseTo(scores[at] ?? 9, 5)
    expect(results.every((result) => !('document' in result))).toBe(true)
    expect([usage.total_tokens, rest]).toMatchObject([6, { object: 'list', model: 'compass' }])
  })

  test('returns the top n documents, with their texts if requested', async () => {
    const { results } = await rank({ top_n: 2, return_documents: true })
    expect(results).toMatchObject([
      { index: 4, document: { text: 'north' } },
      { index: 3, document: { text: 'northeast' } },
    ])
    expect(results).toHaveLength(2)
    expect((await rank({ top_n: 99 })).results).toHaveLength(5)
  })

  test('returns the same response from a durable job', async () => {
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
      'documents[0]',
      'context_length_exceeded',
    ],
    [{ documents: ['a', 'word '.repeat(150)] }, 'documents[1]', 'context_length_exceeded'],
    [{ query: 'word '.repeat(150) }, 'query', 'context_length_exceeded'],
    [{ query: 'word '.repeat(12_000) }, 'query', 'context_length_exceeded'],
    [{ documents: ['a', '', 'b'], model: 'reader' }, 'documents[1]', 'empty_string'],
    [
      { documents: Array(2_000).fill('a text of some words, again'), return_documents: true },
      'return_documents',
      'invalid_value',
    ],
    [{ model: 'echo-1' }, 'model', 'model_not_supported'],
  ])('refuses an invalid request with 400: %.80j', async (more, param, code) => {
    const response = await ask(more)
    expect([response.status, await response.json()]).toMatchObject([400, { error: { param, code } }])
  })
})

describe('reranking with a rerank model', () => {
  test('calls the model by its upstream name, and returns results sorted by score', async () => {
    const { results, usage, ...rest } = await rank({ model: 'reader', top_n: 3, return_documents: true })
    expect(results).toEqual([
      { index: 3, document: { text: 'northeast' }, relevance_score: 0.9 },
      { index: 2, document: { text: 'nowhere' }, relevance_score: 0.7 },
      { index: 0, document: { text: 'south' }, relevance_score: 0.5 },
    ])
    expect([usage.total_tokens, rest]).toMatchObject([55, { model: 'reader' }])
    const documents = ['south', 'east', 'nowhere', 'northeast', 'north']
    expect(upstream.calls.at(-1)?.body).toEqual({ model: 'reranker-v2', query: 'north', documents, top_n: 3 })
  })

  test("accepts a response with a token count in Cohere's format, or without a token count", async () => {
    expect((await rank({ model: 'reader', query: 'cohere' })).usage.total_tokens).toBe(77)
    expect((await rank({ model: 'reader', query: 'plain' })).usage.total_tokens).toBeGreaterThan(5)
  })

  test.each(['SHORT', 'WRONG'])(
    'fails the call with 502 if the response does not rank the documents: %s',
    async (query) => {
      const response = await ask({ model: 'reader', query })
      expect([response.status, await response.json()]).toMatchObject([502, { error: { code: 'upstream_error' } }])
    },
  )

  test('fails the call with 502 if the response has more results than documents', async () => {
    const response = await ask({ model: 'reader', query: 'MANY' })
    expect([response.status, await response.text()]).toEqual([502, expect.stringContaining('more than 5 documents')])
  })

  test('cancels the upstream call if the caller disconnects', async () => {
    const leave = new AbortController()
    const before = upstream.calls.length
    const call = ask({ model: 'reader', query: 'STALL' }, { signal: leave.signal }).catch(() => {})
    await until(() => upstream.calls.length > before)
    leave.abort()
    await Promise.all([upstream.calls.at(-1)?.closed, call])
  })

  test('does not make the model available for embeddings', async () => {
    const listed = await (await stack.get('/v1/models/reader')).json()
    expect(listed).toMatchObject({ capabilities: ['rerank'] })
    const embedded = await stack.post('/v1/embeddings', { model: 'reader', input: 'a' })
    expect(await embedded.json()).toMatchObject({ error: { code: 'model_not_supported' } })
  })
})
