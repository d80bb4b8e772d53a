/*
 * Tests of model aliases: a response names its model as the caller did. Claude Code drops all reasoning of a response whose model differs
 * from the requested one.
 */

import { afterAll, beforeAll, expect, test } from 'vitest'
import { type ScriptedUpstream, startUpstream } from '../../../support/processes/upstream.ts'
import { ECHO_MODEL, type Stack, startStack } from '../../../support/stack.ts'

let upstream: ScriptedUpstream
let stack: Stack
beforeAll(async () => {
  upstream = await startUpstream((call, to) => {
    if (call.path.endsWith('/embeddings')) {
      const data = [{ object: 'embedding', index: 0, embedding: [1, 0] }]
      return to.json({ object: 'list', data, usage: { prompt_tokens: 1, total_tokens: 1 } })
    }
    if (call.path.endsWith('/rerank')) return to.json({ results: [{ index: 0, relevance_score: 1 }] })
    return to.json({ id: 'm', model: 'm', results: [{ flagged: false, categories: {}, category_scores: {} }] })
  })
  const engine = { type: 'openai', base_url: `${upstream.url}/v1` }
  stack = await startStack({
    models: [
      { ...ECHO_MODEL, aliases: ['claude-opus-9', 'gpt-9'] },
      { id: 'vectors', aliases: ['text-embedding-9'], pool: 'embeddings', engine },
      { id: 'ranker', aliases: ['rerank-9'], pool: 'embeddings', task: 'rerank', engine },
      { id: 'judge', aliases: ['moderation-9'], task: 'moderation', engine },
    ],
  })
})
afterAll(async () => {
  await stack[Symbol.asyncDispose]()
  await upstream[Symbol.asyncDispose]()
})

const messages = [{ role: 'user', content: 'hi' }]

test.each([
  ['/v1/chat/completions', { model: 'gpt-9', messages }],
  ['/v1/chat/completions', { model: 'gpt-9', messages, stream: true }],
  ['/v1/completions', { model: 'gpt-9', prompt: 'hi' }],
  ['/v1/completions', { model: 'gpt-9', prompt: 'hi', stream: true }],
  ['/v1/messages', { model: 'claude-opus-9', messages, max_tokens: 9 }],
  ['/v1/messages', { model: 'claude-opus-9', messages, max_tokens: 9, stream: true }],
  ['/v1/responses', { model: 'gpt-9', input: 'hi', store: false }],
  ['/v1/responses', { model: 'gpt-9', input: 'hi', store: false, stream: true }],
  ['/v1/responses', { model: 'gpt-9', input: 'hi' }],
  ['/v1/responses', { model: 'gpt-9', input: 'hi', stream: true }],
  ['/v1/embeddings', { model: 'text-embedding-9', input: 'hi' }],
  ['/v1/rerank', { model: 'rerank-9', query: 'q', documents: ['d'] }],
  ['/v1/moderations', { model: 'moderation-9', input: 'hi' }],
])('%s with the model %j returns the alias as the model', async (path, body) => {
  const answer = await stack.post(path, body)
  const text = await answer.text()
  expect(answer.status, `status of the response ${text}`).toBe(200)
  const named = [...text.matchAll(/"model":"([^"]*)"/g)].map(([, name]) => name)
  expect(new Set(named)).toEqual(new Set([body.model]))
})

test('a model is returned by its alias in the OpenAI and Anthropic formats', async () => {
  expect(await (await stack.get('/v1/models/gpt-9')).json()).toMatchObject({ id: 'gpt-9' })
  const init = { headers: { 'anthropic-version': '2023-06-01' } }
  expect(await (await stack.get('/v1/models/claude-opus-9', init)).json()).toMatchObject({ id: 'claude-opus-9' })
})
