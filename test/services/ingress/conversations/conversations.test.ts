/* Tests of conversations, and of responses that continue them (docs/guides/responses.md, Conversations). */

import { writeFileSync } from 'node:fs'
import { mkdtemp, rm } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { DatabaseSync } from 'node:sqlite'
import OpenAI from 'openai'
import type { ConversationItem } from 'openai/resources/conversations/items'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { failureOf, openStranger, WEATHER } from '../../../support/sdk.ts'
import { type Stack, startStack, TEST_KEY, until } from '../../../support/stack.ts'

let stack: Stack
let client: OpenAI
let stranger: OpenAI
beforeAll(async () => {
  stack = await startStack()
  client = new OpenAI({ apiKey: TEST_KEY, baseURL: `${stack.url}/v1`, maxRetries: 0 })
  stranger = await openStranger(stack)
})
afterAll(() => stack[Symbol.asyncDispose]())

const ENDLESS = '!echo tokens=1000 delay_ms=1000'

function say(conversation: string | { id: string }, input: string, more: object = {}) {
  return client.responses.create({ model: 'echo-1', input, conversation, ...more })
}

async function textsOf(id: string): Promise<(string | undefined)[]> {
  const items: ConversationItem[] = []
  for await (const item of client.conversations.items.list(id, { order: 'asc', limit: 2 })) items.push(item)
  return items.map((item) => (item.type === 'message' ? (item.content[0] as { text?: string }).text : item.type))
}

describe('a conversation', () => {
  test('is created, read, updated and deleted', async () => {
    const made = await client.conversations.create({ metadata: { topic: 'rivers' } })
    expect(made).toMatchObject({ object: 'conversation', id: expect.stringMatching(/^conv_/) })
    expect(await client.conversations.retrieve(made.id)).toEqual(made)
    const changed = await client.conversations.update(made.id, { metadata: { topic: 'lakes' } })
    expect(changed).toEqual({ ...made, metadata: { topic: 'lakes' } })
    expect(await client.conversations.delete(made.id)).toEqual({
      ...{ id: made.id, object: 'conversation.deleted', deleted: true },
    })
    expect(await failureOf(client.conversations.retrieve(made.id))).toMatchObject({ status: 404 })
  })

  test('stores items, each of which can be read and deleted', async () => {
    const { id } = await client.conversations.create({ items: [{ role: 'user', content: 'one' }] })
    const added = await client.conversations.items.create(id, {
      items: [
        { type: 'message', role: 'assistant', content: 'two' },
        { type: 'function_call', call_id: 'call_1', name: 'look', arguments: '{}' },
      ],
    })
    expect(added.data).toMatchObject([{ type: 'message', role: 'assistant' }, { type: 'function_call' }])
    expect(await textsOf(id)).toEqual(['one', 'two', 'function_call'])
    const call = added.data[1]?.id ?? ''
    expect(await client.conversations.items.retrieve(call, { conversation_id: id })).toEqual(added.data[1])
    expect((await client.conversations.items.delete(call, { conversation_id: id })).id).toBe(id)
    expect(await textsOf(id)).toEqual(['one', 'two'])
    expect(await failureOf(client.conversations.items.retrieve(call, { conversation_id: id }))).toMatchObject({
      status: 404,
    })
  })

  test('is continued by responses without streaming, with streaming and in the background', async () => {
    const { id } = await client.conversations.create({ items: [{ role: 'user', content: 'zero' }] })
    const first = await say(id, 'one', { instructions: 'Be brief.' })
    expect(first.conversation).toEqual({ id })
    const stream = await client.responses.create({ model: 'echo-1', input: 'two', conversation: { id }, stream: true })
    for await (const _ of stream);
    const { id: third } = await say({ id }, 'three', { background: true })
    await until(async () => (await client.responses.retrieve(third)).status === 'completed')
    expect(await textsOf(id)).toEqual(['zero', 'one', 'one', 'two', 'two', 'three', 'three'])
    const input = await client.responses.inputItems.list(third, { order: 'asc', limit: 100 })
    expect(input.data).toHaveLength(6)
  })

  test('stores a function call and its output', async () => {
    const { id } = await client.conversations.create()
    const tools = [{ type: 'function' as const, name: WEATHER.name, parameters: WEATHER.schema, strict: true }]
    const called = await say(id, `Ask ${WEATHER.name}.`, { tools })
    const call_id = called.output.find((item) => item.type === 'function_call')?.call_id ?? ''
    const input = [{ type: 'function_call_output' as const, call_id, output: 'sunny' }]
    const told = await client.responses.create({ model: 'echo-1', tools, conversation: id, input })
    expect(told.output_text).toBe('sunny')
    expect(await textsOf(id)).toEqual([`Ask ${WEATHER.name}.`, 'function_call', 'function_call_output', 'sunny'])
  })

  test('refuses a second response while a response is running', async () => {
    const { id } = await client.conversations.create()
    const running = await say(id, ENDLESS, { background: true })
    expect(await failureOf(say(id, 'me too'))).toMatchObject({
      ...{ status: 400, param: 'conversation', message: expect.stringContaining(running.id) },
    })
    await client.responses.cancel(running.id)
    expect(await failureOf(say(id, '!echo fail=context_length_exceeded'))).toMatchObject({ status: 400 })
    await say(id, 'at last')
    expect(await textsOf(id)).toEqual(['at last', 'at last'])
  })

  test('stores the items of exactly those concurrent responses that were accepted', async () => {
    const { id } = await client.conversations.create()
    const ends = await Promise.allSettled([say(id, 'a'), say(id, 'b'), say(id, 'c')])
    const said = ends.flatMap((end) => (end.status === 'fulfilled' ? [end.value.output_text] : []))
    expect(said.length).toBeGreaterThan(0)
    expect(await textsOf(id)).toEqual(said.flatMap((text) => [text, text]))
  })

  test('is not found by keys of other projects', async () => {
    const { id } = await client.conversations.create({ items: [{ role: 'user', content: 'secret' }] })
    const body = { model: 'echo-1', input: 'what was said?', conversation: id }
    const calls = [
      stranger.conversations.retrieve(id),
      stranger.conversations.update(id, { metadata: {} }),
      stranger.conversations.delete(id),
      stranger.conversations.items.list(id),
      stranger.conversations.items.create(id, { items: [{ role: 'user', content: 'mine' }] }),
      stranger.responses.create(body),
    ]
    for (const failure of await Promise.all(calls.map(failureOf))) expect(failure).toMatchObject({ status: 404 })
    expect(await textsOf(id)).toEqual(['secret'])
  })

  test('requires the conversations permission, including for responses that name a conversation', async () => {
    await using limited = await startStack()
    const key = await openStranger(limited, ['/v1/models', '/v1/responses'])
    const asked = { model: 'echo-1', input: 'hi' }
    expect((await key.responses.create(asked)).output_text).toBe('hi')
    const refused = await failureOf(key.responses.create({ ...asked, conversation: 'conv_1' }))
    expect(refused).toMatchObject({ status: 403, code: 'permission_denied' })
    expect(refused.message).toContain('/v1/conversations')
  })

  test('refuses items that no model could process, with the path of the item', async () => {
    const post = async (path: string, items: unknown[]) => (await stack.post(path, { items })).json()
    const call = { type: 'function_call', call_id: 'call_1', name: 'f', arguments: '{}' }
    const output = (call_id: string) => ({ type: 'function_call_output', call_id, output: 'x' })
    const user = (...content: unknown[]) => ({ role: 'user', content })
    const refused: [items: unknown[], param: string][] = [
      [[output('call_none')], 'items[0].call_id'],
      [[call, output('call_1'), output('call_1')], 'items[2].call_id'],
      [[call, { role: 'user', content: 'well?' }], 'items[1]'],
      [[user({ type: 'input_image' })], 'items[0].content[0].image_url'],
      [[user({ type: 'input_image', image_url: 'no-url' })], 'items[0].content[0].image_url'],
      [
        [user({ type: 'input_audio', input_audio: { data: '***', format: 'wav' } })],
        'items[0].content[0].input_audio.data',
      ],
      [[user({ type: 'input_file', file_data: 'no-data-url' })], 'items[0].content[0].file_data'],
    ]
    for (const [items, param] of refused) {
      const { id } = await client.conversations.create()
      for (const path of ['/v1/conversations', `/v1/conversations/${id}/items`]) {
        expect([items, path, await post(path, items)]).toMatchObject([items, path, { error: { param } }])
      }
      expect(await textsOf(id)).toEqual([])
    }
    const { id } = await client.conversations.create({ items: [call as never] })
    const path = `/v1/conversations/${id}/items`
    expect(await post(path, [{ role: 'user', content: 'well?' }])).toMatchObject({ error: { param: 'items[0]' } })
    expect(await post(path, [output('call_1'), { role: 'user', content: 'well?' }])).toMatchObject({ object: 'list' })
    const native = [
      user({ type: 'input_image', file_id: 'file_1' }),
      { type: 'function_call_output', name: 'tool', output: 'x' },
      { type: 'mcp_call', id: 'mcp_1', name: 'm', arguments: '{}', server_label: 's' },
    ]
    expect(await post('/v1/conversations', native)).toMatchObject({ object: 'conversation' })
  })

  test('refuses unsupported items and fields with their name', async () => {
    const { id } = await client.conversations.create()
    const { id: response } = await client.responses.create({ model: 'echo-1', input: 'one' })
    const post = async (path: string, body: unknown) => (await stack.post(path, body)).json()
    const at = (param: string) => ({ error: { param } })
    const items = `/v1/conversations/${id}/items`
    const user = (content: string) => ({ role: 'user', content })
    expect(await post(items, { items: [] })).toMatchObject(at('items'))
    expect(await post(items, { items: Array(21).fill(user('a')) })).toMatchObject(at('items'))
    expect(await post(items, { items: [user('a'), { role: 'user' }] })).toMatchObject(at('items[1].content'))
    expect(await post(items, { items: [{ type: 'custom_tool_call' }] })).toMatchObject(at('items[0].call_id'))
    expect(await post(items, { items: [user('a'.repeat(3_000_000))] })).toMatchObject({
      error: { code: 'context_length_exceeded' },
    })
    expect(await post('/v1/conversations', { items: 1 })).toMatchObject(at('items'))
    expect(await post('/v1/conversations', { more: 1 })).toMatchObject(at('more'))
    const both = { conversation: id, previous_response_id: response }
    expect(await failureOf(say(id, 'a', both))).toMatchObject({ status: 400, param: 'conversation' })
    expect(await failureOf(say(id, 'a', { store: false }))).toMatchObject({ status: 400, param: 'conversation' })
    expect(await failureOf(say('conv_0123456789', 'a'))).toMatchObject({ status: 404, param: 'conversation' })
    expect(await failureOf(client.conversations.items.list(id, { after: 'msg_none' }))).toMatchObject({ status: 400 })
    expect(await textsOf(id)).toEqual([])
  })
})

test('a conversation counts against the storage quota of its project', async () => {
  const dataDir = await mkdtemp(join(tmpdir(), 'sluice-conversations-'))
  const open = async () => {
    const own = await startStack({ dataDir })
    return { own, client: new OpenAI({ apiKey: TEST_KEY, baseURL: `${own.url}/v1`, maxRetries: 0 }) }
  }
  const item = { role: 'user' as const, content: 'hello' }
  const first = await open()
  const { id } = await first.client.conversations.create({ items: [item] })
  await first.own[Symbol.asyncDispose]()
  // Simulates a conversation of 10 GiB: the test changes the stored size in the database file while the service is stopped.
  const db = new DatabaseSync(join(dataDir, 'store.db'))
  expect(Number(db.prepare('SELECT chars FROM conversations').get()?.chars)).toBeGreaterThan(50)
  db.exec('UPDATE conversations SET chars = 10 * 1024 * 1024 * 1024')
  db.close()
  const { own, client } = await open()
  const full = { status: 429, code: 'insufficient_quota', message: expect.stringContaining('Delete files') }
  expect(await failureOf(client.conversations.create({ items: [item] }))).toMatchObject(full)
  expect(await failureOf(client.conversations.items.create(id, { items: [item] }))).toMatchObject(full)
  expect(await failureOf(client.responses.create({ model: 'echo-1', input: 'hi', conversation: id }))).toMatchObject(
    full,
  )
  await client.conversations.update(id, { metadata: { a: 'b' } })
  expect(await client.conversations.items.create(id, { items: [item] })).toMatchObject({ object: 'list' })
  await own[Symbol.asyncDispose]()
  await rm(dataDir, { recursive: true, force: true })
})

test('a request that creates or extends a conversation counts against the rate limit of its key', async () => {
  const own = await startStack()
  const secret = 'sk-limited-0123456789'
  const { createHash } = await import('node:crypto')
  const key = {
    ...{ id: 'key_limited', hash: createHash('sha256').update(secret).digest('hex'), hint: 'sk-...' },
    ...{ created_at: 1_790_000_000, limits: { requests_per_minute: 3 } },
  }
  writeFileSync(join(own.dataDir, 'keys.json'), JSON.stringify({ keys: [key] }))
  const limited = new OpenAI({ apiKey: secret, baseURL: `${own.url}/v1`, maxRetries: 0 })
  await until(() =>
    limited.models.list().then(
      () => true,
      () => false,
    ),
  )
  const { id } = await limited.conversations.create()
  await limited.conversations.update(id, { metadata: {} })
  await limited.conversations.items.create(id, { items: [{ role: 'user', content: 'hello' }] })
  const refused = { status: 429, code: 'rate_limit_exceeded' }
  expect(await failureOf(limited.conversations.create())).toMatchObject(refused)
  expect(await failureOf(limited.conversations.update(id, { metadata: {} }))).toMatchObject(refused)
  expect((await limited.conversations.items.list(id)).data).toHaveLength(1)
  await own[Symbol.asyncDispose]()
})
