/*
 * Tests of the tool web_search of the Messages API with a model whose upstream lacks this API. The service then performs the searches
 * itself.
 */

import Anthropic from '@anthropic-ai/sdk'
import { afterAll, beforeAll, expect, it } from 'vitest'
import { type Outside, startOutside } from '../../../support/research/outside.ts'
import { ECHO_MODEL, type Stack, startStack, TEST_KEY } from '../../../support/stack.ts'
import { type Frame, messageOf } from '../../../support/wire/messages.ts'

const RESEARCH = { id: 'deep-research', pool: 'research', engine: { type: 'research' } }
const WEB = { type: 'web_search_20250305' as const, name: 'web_search' as const, max_uses: 8 }

let stack: Stack
let outside: Outside
let client: Anthropic
beforeAll(async () => {
  outside = await startOutside()
  const settings = { SEARXNG_URL: outside.url, RESEARCH_ALLOW_PRIVATE: 'true' }
  stack = await startStack({ models: [ECHO_MODEL, RESEARCH], settings })
  client = new Anthropic({ apiKey: TEST_KEY, baseURL: stack.url, maxRetries: 0, timeout: 120_000 })
})
afterAll(async () => {
  await stack?.[Symbol.asyncDispose]()
  await outside?.[Symbol.asyncDispose]()
})

function ask(query: string, more: object = {}) {
  const content = `!echo call=web_search rounds=1 args=${JSON.stringify(JSON.stringify({ query }))}`
  return { model: 'echo-1', max_tokens: 1_000, messages: [{ role: 'user' as const, content }], tools: [WEB], ...more }
}

const BLOCKS = (query: string) => [
  { type: 'server_tool_use', id: expect.stringMatching(/^srvtoolu_/), name: 'web_search', input: { query } },
  {
    type: 'web_search_tool_result',
    tool_use_id: expect.stringMatching(/^srvtoolu_/),
    content: expect.arrayContaining([
      expect.objectContaining({
        ...{ type: 'web_search_result', url: expect.stringContaining(outside.url), title: expect.any(String) },
        encrypted_content: expect.any(String),
      }),
    ]),
  },
]

it('web_search of the Messages API returns its search as content blocks and counts it in usage', async () => {
  const query = 'How do herons at Tarn1 build their nests?'
  const message = await client.messages.create(ask(query, { tool_choice: { type: 'tool', name: 'web_search' } }))
  expect(message.content.slice(0, -1)).toMatchObject(BLOCKS(query))
  expect(message.content.at(-1)).toMatchObject({ type: 'text', text: expect.stringContaining('Herons at Tarn1') })
  expect(message).toMatchObject({ stop_reason: 'end_turn', usage: { server_tool_use: { web_search_requests: 1 } } })
})

it('web_search of the Messages API returns the same content blocks with and without streaming', async () => {
  const query = 'How do herons at Tarn2 build their nests?'
  const frames: Frame[] = []
  const stream = client.messages.stream(ask(query))
  for await (const event of stream) frames.push(event as unknown as Frame)
  const message = messageOf(frames) as unknown as Anthropic.Message
  expect(message.content.slice(0, -1)).toMatchObject(BLOCKS(query))
  expect(message).toMatchObject({ stop_reason: 'end_turn', usage: { server_tool_use: { web_search_requests: 1 } } })
  expect(JSON.parse(JSON.stringify(await stream.finalMessage())).content).toEqual(message.content)
})

it('web_search of the Messages API accepts its content blocks in the next request', async () => {
  const first = ask('How do herons at Tarn3 build their nests?')
  const { content } = await client.messages.create(first)
  const messages = [
    ...first.messages,
    { role: 'assistant' as const, content },
    { role: 'user' as const, content: 'So?' },
  ]
  expect((await client.messages.create({ ...first, messages })).stop_reason).toBe('end_turn')
  expect(await client.messages.countTokens({ model: 'echo-1', messages, tools: [WEB] })).toHaveProperty('input_tokens')
})

it('web_search of the Messages API applies the allowed and blocked domains', async () => {
  const tools = [{ ...WEB, blocked_domains: ['127.0.0.1/path', 'localhost'] }]
  const { content } = await client.messages.create(ask('How do herons at Tarn4 build their nests?', { tools }))
  expect(content[1]).toMatchObject({ type: 'web_search_tool_result', content: [] })
})

it('web_search of the Messages API is dropped if no search backend is configured', async () => {
  await using alone = await startStack()
  const other = new Anthropic({ apiKey: TEST_KEY, baseURL: alone.url, maxRetries: 0 })
  const message = await other.messages.create(ask('x', { tool_choice: { type: 'tool', name: 'web_search' } }))
  expect(message.content.some(({ type }) => type === 'server_tool_use')).toBe(false)
})
