/*
 * Tests of stored responses and of background responses, which later requests read, continue, cancel or delete (docs/guides/responses.md,
 * Stored responses).
 */

import OpenAI from 'openai'
import type { ResponseStreamEvent } from 'openai/resources/responses/responses'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { failureOf, WEATHER } from '../../../support/sdk.ts'
import { type Stack, startStack, TEST_KEY, until } from '../../../support/stack.ts'

let stack: Stack
let client: OpenAI
beforeAll(async () => {
  stack = await startStack()
  client = new OpenAI({ apiKey: TEST_KEY, baseURL: `${stack.url}/v1`, maxRetries: 0 })
})
afterAll(() => stack[Symbol.asyncDispose]())

const ENDLESS = '!echo tokens=1000 delay_ms=1000'

function say(input: string, more: object = {}) {
  return client.responses.create({ model: 'echo-1', input, ...more })
}

async function collect(stream: AsyncIterable<ResponseStreamEvent>, most = Number.POSITIVE_INFINITY) {
  const events: ResponseStreamEvent[] = []
  for await (const event of stream) {
    events.push(event)
    if (events.length === most) break
  }
  return events
}

describe('a stored response', () => {
  test('can be read with its input until it is deleted', async () => {
    const made = await say('first', { instructions: 'Be brief.', metadata: { a: 'b' } })
    expect(await client.responses.retrieve(made.id)).toEqual(made)
    const items = await client.responses.inputItems.list(made.id)
    expect(items.data).toMatchObject([
      { type: 'message', role: 'user', content: [{ type: 'input_text', text: 'first' }] },
    ])
    await client.responses.delete(made.id)
    expect(await failureOf(client.responses.retrieve(made.id))).toMatchObject({ status: 404 })
    expect(await failureOf(say('next', { previous_response_id: made.id }))).toMatchObject({ status: 400 })
  })

  test('can be continued by another response, which does not inherit its instructions', async () => {
    const first = await say('one', { instructions: 'Be brief.' })
    const second = await say('two', { previous_response_id: first.id })
    expect(second.previous_response_id).toBe(first.id)
    const third = await say('three', { previous_response_id: second.id })
    const items = await client.responses.inputItems.list(third.id, { order: 'asc' })
    const said = items.data.map((item) =>
      'content' in item ? (item.content?.[0] as { text?: string } | undefined)?.text : item.type,
    )
    expect(said).toEqual(['one', 'one', 'two', 'two', 'three'])
  })

  test('lists its input in pages', async () => {
    const input = ['a', 'b', 'c'].map((content) => ({ role: 'user' as const, content }))
    const { id } = await client.responses.create({ model: 'echo-1', input })
    const pages = []
    for await (const item of client.responses.inputItems.list(id, { limit: 1, order: 'asc' })) pages.push(item)
    expect(pages.map((item) => item.type === 'message' && item.content[0])).toMatchObject([
      { text: 'a' },
      { text: 'b' },
      { text: 'c' },
    ])
    expect(await failureOf(client.responses.inputItems.list(id, { after: 'msg_none' }))).toMatchObject({ status: 400 })
  })

  test('accepts the output of the function that it called', async () => {
    const tools = [{ type: 'function' as const, name: WEATHER.name, parameters: WEATHER.schema, strict: true }]
    const called = await say(`Ask ${WEATHER.name}.`, { tools })
    const call = called.output.find((item) => item.type === 'function_call')
    const output = { type: 'function_call_output' as const, call_id: call?.call_id ?? '', output: 'sunny' }
    const body = { model: 'echo-1', tools, previous_response_id: called.id }
    expect((await client.responses.create({ ...body, input: [output] })).output_text).toBe('sunny')
    expect(await failureOf(client.responses.create({ ...body, input: 'never mind' }))).toMatchObject({
      ...{ status: 400, message: expect.stringContaining('No tool output found') },
    })
  })

  test('has items that later requests can reference', async () => {
    const { output } = await say('one')
    const input = [
      { type: 'item_reference' as const, id: output[0]?.id ?? '' },
      { role: 'user' as const, content: 'two' },
    ]
    expect((await client.responses.create({ model: 'echo-1', input })).output_text).toBe('two')
  })

  test('cannot be continued if it failed, was cancelled, is running, or was not stored', async () => {
    const input = '!echo fail=context_length_exceeded'
    const { id: failed } = await client.responses.create({ model: 'echo-1', input, background: true })
    await until(async () => (await client.responses.retrieve(failed)).status === 'failed')
    expect(await client.responses.retrieve(failed)).toMatchObject({ error: { type: 'context_length_exceeded' } })
    const { id: running } = await client.responses.create({ model: 'echo-1', input: ENDLESS, background: true })
    const { id: unkept } = await say('one', { store: false })
    const messages = async (id: string) => (await failureOf(say('two', { previous_response_id: id }))).message
    expect(await messages(failed)).toContain('failed (context_length_exceeded)')
    expect(await messages(running)).toContain('has not ended yet')
    await client.responses.cancel(running)
    expect(await messages(running)).toContain('was cancelled')
    expect(await messages(unkept)).toContain('not found')
  })
})

describe('a background response', () => {
  test('is returned immediately as queued, and completes later', async () => {
    const made = await client.responses.create({ model: 'echo-1', input: 'later', background: true })
    expect(made).toMatchObject({ background: true, output: [], status: expect.stringMatching(/queued|in_progress/) })
    await until(async () => (await client.responses.retrieve(made.id)).status === 'completed')
    expect((await client.responses.retrieve(made.id)).output_text).toBe('later')
    expect(await client.responses.cancel(made.id)).toMatchObject({ status: 'completed' })
  })

  test('stays cancelled after a cancel', async () => {
    const { id } = await client.responses.create({ model: 'echo-1', input: ENDLESS, background: true })
    await until(async () => (await client.responses.retrieve(id)).status === 'in_progress')
    expect(await failureOf(client.responses.delete(id))).toMatchObject({ status: 409 })
    expect(await client.responses.cancel(id)).toMatchObject({ id, status: 'cancelled' })
    expect(await client.responses.cancel(id)).toMatchObject({ id, status: 'cancelled' })
    const { id: plain } = await say('one')
    expect(await failureOf(client.responses.cancel(plain))).toMatchObject({ status: 400 })
  })

  test('can be resumed after any event of its stream, and then sends each later event once', async () => {
    const input = '!echo tokens=40 delay_ms=1'
    const stream = await client.responses.create({ model: 'echo-1', input, background: true, stream: true })
    const events = await collect(stream)
    const [created, queued] = events
    expect([created?.type, queued?.type, events.at(-1)?.type]).toEqual([
      ...['response.created', 'response.queued', 'response.completed'],
    ])
    const id = created?.type === 'response.created' ? created.response.id : ''
    for (const [at, { sequence_number: starting_after }] of events.entries()) {
      const rest = await collect(await client.responses.retrieve(id, { stream: true, starting_after }))
      expect(rest).toEqual(events.slice(at + 1))
    }
    expect(await collect(await client.responses.retrieve(id, { stream: true }))).toEqual(events)
    const beyond = client.responses.retrieve(id, { stream: true, starting_after: 10_000 })
    expect(await failureOf(beyond)).toMatchObject({ status: 400, param: 'starting_after' })
  })

  test('sends only the missing text if its stream is resumed after a position', async () => {
    const input = '!echo tokens=20 delay_ms=20'
    const stream = await client.responses.create({ model: 'echo-1', input, background: true, stream: true })
    const seen = await collect(stream, 6)
    const id = seen[0]?.type === 'response.created' ? seen[0].response.id : ''
    const starting_after = seen.at(-1)?.sequence_number ?? 0
    const rest = await collect(await client.responses.retrieve(id, { stream: true, starting_after }))
    const text = [...seen, ...rest].map((event) => (event.type === 'response.output_text.delta' ? event.delta : ''))
    expect(text.join('')).toBe((await client.responses.retrieve(id)).output_text)
  })

  test('ends its stream with an error if an attempt fails after output', async () => {
    const input = '!echo tokens=12 delay_ms=30 after=6 fail=upstream_error failures=1'
    const stream = await client.responses.create({ model: 'echo-1', input, background: true, stream: true })
    const seen: ResponseStreamEvent[] = []
    const broken = (async () => {
      for await (const event of stream) seen.push(event)
    })()
    expect(await failureOf(broken)).toMatchObject({ message: expect.stringContaining('started over') })
    const id = seen[0]?.type === 'response.created' ? seen[0].response.id : ''
    const whole = await collect(await client.responses.retrieve(id, { stream: true }))
    const text = whole.map((event) => (event.type === 'response.output_text.delta' ? event.delta : ''))
    expect(text.join('')).toBe((await client.responses.retrieve(id)).output_text)
    expect(whole.filter(({ type }) => type === 'response.output_item.added')).toHaveLength(1)
  })

  test('ends its stream with an event if the response failed or was cancelled', async () => {
    const input = '!echo tokens=20 after=5 fail=context_length_exceeded'
    const failing = await client.responses.create({ model: 'echo-1', input, background: true, stream: true })
    expect((await collect(failing)).at(-1)).toMatchObject({ type: 'response.failed', response: { status: 'failed' } })
    const running = await client.responses.create({ model: 'echo-1', input: ENDLESS, background: true, stream: true })
    const ends = collect(running)
    const { data } = (await (await stack.get('/v1/jobs?status=in_progress,queued')).json()) as {
      data: { id: string }[]
    }
    await client.responses.cancel(`resp_${data[0]?.id.slice('job_'.length)}`)
    expect((await ends).at(-1)).toMatchObject({ type: 'response.failed', response: { status: 'cancelled' } })
  })
})

test('a streamed response that is not in the background is cancelled if its reader disconnects', async () => {
  const leave = new AbortController()
  const stream = await client.responses.create(
    { model: 'echo-1', input: '!echo tokens=1000 delay_ms=50', stream: true },
    { signal: leave.signal },
  )
  await collect(stream, 5)
  leave.abort()
  await until(async () => {
    const { data } = (await (await stack.get('/v1/jobs?status=in_progress')).json()) as { data: object[] }
    return data.length === 0
  })
})
