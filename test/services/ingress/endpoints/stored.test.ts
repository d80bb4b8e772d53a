/* Tests of stored chat completions from the caller's point of view (docs/internals/protocol.md). */

import OpenAI from 'openai'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { UNICODE, WEATHER } from '../../../support/sdk.ts'
import { ECHO_MODEL, type Stack, startStack, TEST_KEY, until } from '../../../support/stack.ts'

let stack: Stack
let client: OpenAI
beforeAll(async () => {
  stack = await startStack({
    models: [
      { ...ECHO_MODEL, aliases: ['echo-latest'] },
      { ...ECHO_MODEL, id: 'echo-2' },
    ],
  })
  client = new OpenAI({ apiKey: TEST_KEY, baseURL: `${stack.url}/v1`, maxRetries: 0 })
})
afterAll(() => stack[Symbol.asyncDispose]())

const store = (content: string, more: object = {}) =>
  client.chat.completions.create({
    ...{ model: 'echo-1', store: true, messages: [{ role: 'user', content }] },
    ...more,
  } as OpenAI.ChatCompletionCreateParamsNonStreaming)

const idsOf = async (query: OpenAI.ChatCompletionListParams) => {
  const ids = []
  for await (const { id } of client.chat.completions.list(query)) ids.push(id)
  return ids
}

describe('a stored chat completion', () => {
  test('is equal to the response that the caller received, with and without streaming', async () => {
    const whole = await store(UNICODE, { metadata: { a: 'b' } })
    expect(await client.chat.completions.retrieve(whole.id)).toEqual({ ...whole, metadata: { a: 'b' } })
    const chunks = await client.chat.completions.create({
      ...{ model: 'echo-1', store: true, stream: true, messages: [{ role: 'user', content: UNICODE }] },
    })
    let id = ''
    for await (const chunk of chunks) id = chunk.id
    const streamed = await client.chat.completions.retrieve(id)
    expect(streamed).toMatchObject({ id, object: 'chat.completion', choices: [{ message: { content: UNICODE } }] })
  })

  test('has replaceable metadata, and can be deleted', async () => {
    const { id } = await store('changing', { metadata: { a: 'b' } })
    const changed = await client.chat.completions.update(id, { metadata: { c: 'd' } })
    expect(changed).toMatchObject({ id, metadata: { c: 'd' } })
    expect(await client.chat.completions.retrieve(id)).toEqual(changed)
    expect(await client.chat.completions.update(id, { metadata: null })).toMatchObject({ metadata: {} })
    expect(await client.chat.completions.delete(id)).toEqual({ id, object: 'chat.completion.deleted', deleted: true })
    await expect(client.chat.completions.retrieve(id)).rejects.toMatchObject({ status: 404, code: null })
    await expect(client.chat.completions.update(id, { metadata: {} })).rejects.toMatchObject({ status: 404 })
    await expect(client.chat.completions.delete(id)).rejects.toMatchObject({ status: 404 })
  })

  test('is listed in pages by age, model and metadata', async () => {
    const metadata = { batch: 'x1' }
    const first = await store('one', { metadata })
    const second = await store('two', { metadata, model: 'echo-2' })
    const third = await store('three', { metadata })
    const ids = [first.id, second.id, third.id]
    expect(await idsOf({ metadata })).toEqual(ids)
    expect(await idsOf({ metadata, limit: 1 })).toEqual(ids)
    expect(await idsOf({ metadata, order: 'desc', limit: 2 })).toEqual(ids.toReversed())
    expect(await idsOf({ metadata, model: 'echo-latest' })).toEqual([first.id, third.id])
    expect(await idsOf({ metadata, after: first.id })).toEqual([second.id, third.id])
    expect(await idsOf({ metadata: { batch: 'x2' } })).toEqual([])
  })

  test('lists the messages of its request', async () => {
    const url = 'data:image/png;base64,iVBORw0KGgo='
    const call = { id: 'call_1', type: 'function', function: { name: WEATHER.name, arguments: '{}' } }
    const messages = [
      { role: 'system', content: 'Be brief.' },
      {
        role: 'user',
        content: [
          { type: 'text', text: 'What is this?' },
          { type: 'image_url', image_url: { url } },
        ],
      },
      { role: 'assistant', content: null, tool_calls: [call] },
      { role: 'tool', tool_call_id: 'call_1', content: 'sunny' },
    ]
    const { id } = await store('', { messages })
    const listed = []
    for await (const message of client.chat.completions.messages.list(id, { limit: 3 })) listed.push(message)
    expect(listed).toMatchObject([
      { id: `${id}-0`, role: 'system', content: 'Be brief.', content_parts: null },
      { role: 'user', content: 'What is this?', content_parts: [{ type: 'text' }, { image_url: { url } }] },
      { role: 'assistant', content: null, tool_calls: [call] },
      { role: 'tool', content: 'sunny', tool_call_id: 'call_1' },
    ])
    const [last] = (await client.chat.completions.messages.list(id, { order: 'desc', limit: 1 })).data
    expect(last?.id).toBe(`${id}-3`)
    await expect(client.chat.completions.messages.list(id, { after: 'no' })).rejects.toMatchObject({ param: 'after' })
  })

  test('is not found by the id of a response, of a failed job, or of an unknown object', async () => {
    const { id } = await store('mine')
    const created = await fetch(`${stack.url}/v1/responses`, {
      method: 'POST',
      headers: { authorization: `Bearer ${TEST_KEY}`, 'content-type': 'application/json' },
      body: JSON.stringify({ model: 'echo-1', input: 'hi' }),
    })
    const response = ((await created.json()) as { id: string }).id
    await expect(store('!echo fail=upstream_refused')).rejects.toMatchObject({ status: 502 })
    const [failed] = ((await (await stack.get('/v1/jobs?status=failed')).json()) as { data: { id: string }[] }).data
    for (const other of [
      response.replace('resp_', 'chatcmpl-'),
      `${failed?.id}`.replace('job_', 'chatcmpl-'),
      'x',
      `${id}x`,
    ])
      await expect(client.chat.completions.retrieve(other)).rejects.toMatchObject({ status: 404, param: 'id' })
    expect(await idsOf({})).not.toContain(`${failed?.id}`.replace('job_', 'chatcmpl-'))
  })

  test('exists only if the request has store: true', async () => {
    const { id } = await store('not kept', { store: false })
    await expect(client.chat.completions.retrieve(id)).rejects.toMatchObject({ status: 404 })
  })

  test.each([
    ['/v1/chat/completions?limit=0', 'limit'],
    ['/v1/chat/completions?order=up', 'order'],
    ['/v1/chat/completions?after=job_1', 'after'],
    ['/v1/chat/completions?colour=red', 'colour'],
  ])('cannot be listed with an invalid query: %s', async (path, param) => {
    const response = await stack.get(path)
    expect([400, 404]).toContain(response.status)
    expect(await response.json()).toMatchObject({ error: { param } })
  })

  test('accepts changes to its metadata and to no other field', async () => {
    const { id } = await store('fixed')
    const wrong: [object, string][] = [
      [{ metadata: { a: 1 } }, 'metadata.a'],
      [{ model: 'echo-2' }, 'model'],
      [{ metadata: Object.fromEntries(Array.from({ length: 17 }, (_, i) => [`k${i}`, 'v'])) }, 'metadata'],
    ]
    for (const [body, param] of wrong) {
      const response = await stack.post(`/v1/chat/completions/${id}`, body)
      expect([response.status, await response.json()]).toMatchObject([400, { error: { param } }])
    }
  })
})

test('stored completions are not found by keys of other projects', async () => {
  const { id } = await store('private')
  const { createHash } = await import('node:crypto')
  const { writeFile } = await import('node:fs/promises')
  const hash = createHash('sha256').update('sk-other-0000000').digest('hex')
  const key = { id: 'key_other', hash, hint: 'sk-...0000', created_at: 1_790_000_000 }
  await writeFile(`${stack.dataDir}/keys.json`, JSON.stringify({ keys: [key] }))
  const other = new OpenAI({ apiKey: 'sk-other-0000000', baseURL: `${stack.url}/v1`, maxRetries: 0 })
  await until(
    () =>
      other.models.list().then(
        () => true,
        () => false,
      ),
    { withinMs: 60_000 },
  )
  await expect(other.chat.completions.retrieve(id)).rejects.toMatchObject({ status: 404 })
  await expect(other.chat.completions.delete(id)).rejects.toMatchObject({ status: 404 })
  expect((await other.chat.completions.list()).data).toEqual([])
  expect((await client.chat.completions.retrieve(id)).id).toBe(id)
})
