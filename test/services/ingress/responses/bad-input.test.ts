/*
 * Tests of invalid requests that refer to a stored response, and of endless loops of tool calls (docs/guides/responses.md, Stored
 * responses).
 */

import OpenAI from 'openai'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { failureOf, openStranger, WEATHER } from '../../../support/sdk.ts'
import { type Stack, startStack, TEST_KEY } from '../../../support/stack.ts'

let stack: Stack
let client: OpenAI
let stranger: OpenAI
beforeAll(async () => {
  stack = await startStack({ settings: { BODY_BYTES_MAX: '20000' } })
  client = new OpenAI({ apiKey: TEST_KEY, baseURL: `${stack.url}/v1`, maxRetries: 0 })
  stranger = await openStranger(stack)
})
afterAll(() => stack[Symbol.asyncDispose]())

describe('requests that name a stored response', () => {
  test('get 404 if the response belongs to another project', async () => {
    const made = await client.responses.create({ model: 'echo-1', input: 'secret', background: true, stream: true })
    let id = ''
    for await (const event of made) if (event.type === 'response.created') id = event.response.id
    const { output } = await client.responses.retrieve(id)
    const calls = [
      stranger.responses.retrieve(id),
      stranger.responses.retrieve(id, { stream: true, starting_after: 1 }),
      stranger.responses.inputItems.list(id),
      stranger.responses.cancel(id),
      stranger.responses.delete(id),
    ]
    for (const failure of await Promise.all(calls.map(failureOf))) expect(failure).toMatchObject({ status: 404 })
    const next = stranger.responses.create({ model: 'echo-1', input: 'go on', previous_response_id: id })
    expect(await failureOf(next)).toMatchObject({ status: 400, param: 'previous_response_id' })
    const input = [{ type: 'item_reference' as const, id: output[0]?.id ?? '' }]
    const referring = stranger.responses.create({ model: 'echo-1', input })
    expect(await failureOf(referring)).toMatchObject({ status: 400, param: 'input[0].id' })
    expect((await client.responses.retrieve(id)).output_text).toBe('secret')
  })

  test('are refused if the referenced items exceed the maximum size of a body', async () => {
    const { output } = await client.responses.create({ model: 'echo-1', input: 'x'.repeat(6_000) })
    const reference = { type: 'item_reference' as const, id: output[0]?.id ?? '' }
    const input = (times: number) => [...Array(times).fill(reference), { role: 'user' as const, content: 'go on' }]
    const { output_text } = await client.responses.create({ model: 'echo-1', store: false, input: input(3) })
    expect(output_text).toBe('go on')
    const often = client.responses.create({ model: 'echo-1', store: false, input: input(4) })
    expect(await failureOf(often)).toMatchObject({ status: 400, code: 'context_length_exceeded', param: 'input' })
  })

  test('are refused if the response would be its own predecessor', async () => {
    const idempotent = { headers: { 'idempotency-key': 'loop' } }
    const body = { model: 'echo-1', input: 'round' }
    const { id } = await client.responses.create(body, idempotent)
    const loop = client.responses.create({ ...body, previous_response_id: id }, idempotent)
    expect(await failureOf(loop)).toMatchObject({ status: 422, code: 'idempotency_key_reused' })
    const unborn = client.responses.create({ ...body, previous_response_id: `${id.slice(0, -4)}0000` })
    expect(await failureOf(unborn)).toMatchObject({ status: 400, param: 'previous_response_id' })
  })

  test('are refused if the stream position is invalid or beyond the last event', async () => {
    const made = await client.responses.create({ model: 'echo-1', input: 'a b c', background: true, stream: true })
    let [id, last] = ['', 0]
    for await (const event of made) {
      if (event.type === 'response.created') id = event.response.id
      last = event.sequence_number
    }
    for (const after of [last + 1, 1e15]) {
      const stream = client.responses.retrieve(id, { stream: true, starting_after: after })
      expect(await failureOf(stream), `error of the stream after the position ${String(after)}`).toMatchObject({
        status: 400,
        param: 'starting_after',
      })
    }
    for (const after of ['-1', '1.5', 'x', '', '1e400']) {
      const answer = await stack.get(`/v1/responses/${id}?stream=true&starting_after=${after}`)
      expect(answer.status, `status of the stream after the position ${after}`).toBe(400)
      expect(await answer.json(), `error of the stream after the position ${after}`).toMatchObject({
        error: { param: 'starting_after' },
      })
    }
    const rest = await stack.get(`/v1/responses/${id}?stream=true&starting_after=${last}`)
    expect((await rest.text()).includes('response.')).toBe(false)
  })

  test('return 400 once the conversation exceeds the maximum size of a body', async () => {
    const tools = [{ type: 'function' as const, name: WEATHER.name, parameters: WEATHER.schema, strict: true }]
    const [body, output] = [{ model: 'echo-1', tools }, 'x'.repeat(4_000)]
    let called = await client.responses.create({ ...body, input: `!echo call=${WEATHER.name}` })
    const turn = () => {
      const call_id = called.output.find((item) => item.type === 'function_call')?.call_id ?? ''
      const input = [{ type: 'function_call_output' as const, call_id, output }]
      return client.responses.create({ ...body, input, previous_response_id: called.id })
    }
    let turns = 0
    const looping = async () => {
      for (; turns < 20; turns++) called = await turn()
    }
    expect(await failureOf(looping())).toMatchObject({
      ...{ status: 400, code: 'context_length_exceeded', param: 'previous_response_id' },
    })
    expect(turns).toBeGreaterThan(2)
  })
})
