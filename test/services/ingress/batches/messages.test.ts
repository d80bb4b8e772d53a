import Anthropic from '@anthropic-ai/sdk'
import { afterAll, beforeAll, describe, expect, it, test } from 'vitest'
import { openRaw, rawRequest } from '../../../support/raw-http.ts'
import { type Stack, startStack, TEST_KEY, until } from '../../../support/stack.ts'

const params = (content: string, more: object = {}) => ({
  model: 'echo-1',
  max_tokens: 50,
  messages: [{ role: 'user' as const, content }],
  ...more,
})

describe('batches of messages', () => {
  let stack: Stack
  let client: Anthropic
  beforeAll(async () => {
    stack = await startStack({ settings: { BODY_BYTES_MAX: '100000' } })
    client = new Anthropic({ baseURL: stack.url, apiKey: TEST_KEY, maxRetries: 0 })
  })
  afterAll(() => stack[Symbol.asyncDispose]())

  const ended = (id: string) =>
    until(async () => {
      const batch = await client.messages.batches.retrieve(id)
      return batch.processing_status === 'ended' ? batch : undefined
    })
  const post = async (body: string, type = 'application/json') =>
    await fetch(`${stack.url}/v1/messages/batches`, {
      method: 'POST',
      headers: { 'x-api-key': TEST_KEY, 'anthropic-version': '2023-06-01', 'content-type': type },
      body,
    })

  it('are created, followed, read and deleted by the SDK', async () => {
    const requests = [
      { custom_id: 'good', params: params('one\n{"two"]') },
      { custom_id: 'bad', params: params('x', { max_tokens: -1 }) },
    ]
    const made = await client.messages.batches.create({ requests })
    expect(made).toMatchObject({
      type: 'message_batch',
      processing_status: 'in_progress',
      request_counts: { processing: 2 },
    })
    const batch = await ended(made.id)
    const counts = { processing: 0, succeeded: 1, errored: 1, canceled: 0, expired: 0 }
    expect(batch).toMatchObject({ request_counts: counts, cancel_initiated_at: null, archived_at: null })
    expect(Date.parse(batch.ended_at ?? '')).toBeGreaterThanOrEqual(Date.parse(batch.created_at))
    const results: Anthropic.Messages.MessageBatchIndividualResponse[] = []
    for await (const result of await client.messages.batches.results(made.id)) results.push(result)
    expect(results).toMatchObject([
      {
        custom_id: 'good',
        result: { type: 'succeeded', message: { content: [{ type: 'text', text: 'one\n{"two"]' }] } },
      },
      {
        custom_id: 'bad',
        result: { type: 'errored', error: { type: 'error', error: { type: 'invalid_request_error' } } },
      },
    ])
    const listed: string[] = []
    for await (const { id } of client.messages.batches.list({ limit: 1 })) listed.push(id)
    expect(listed).toEqual([made.id])
    expect(await client.messages.batches.delete(made.id)).toEqual({ id: made.id, type: 'message_batch_deleted' })
    await expect(client.messages.batches.retrieve(made.id)).rejects.toMatchObject({ status: 404 })
  })

  it('are accepted if the body begins with a byte order mark', async () => {
    const body = JSON.stringify({ requests: [{ custom_id: 'a', params: params('x') }] })
    expect((await post(`\uFEFF${body}`)).status).toBe(200)
    expect((await post(`{\uFEFF${body.slice(1)}`)).status).toBe(400)
  })

  it('are created once for a repeated Idempotency-Key, even if the first batch has ended', async () => {
    const body = { requests: [{ custom_id: 'a', params: params('once') }] }
    const headers = { 'anthropic-version': '2023-06-01', 'idempotency-key': 'sent-twice' }
    const send = async () =>
      (await (await stack.post('/v1/messages/batches', body, { headers })).json()) as { id: string }
    const { id } = await send()
    const { results_url } = await ended(id)
    expect(await send()).toMatchObject({ id, processing_status: 'ended', results_url })
  })

  it('report which requests were canceled', async () => {
    const requests = ['a', 'b'].map((custom_id) => ({ custom_id, params: params('!echo tokens=40 delay_ms=1000') }))
    const { id } = await client.messages.batches.create({ requests })
    await expect(client.messages.batches.results(id)).rejects.toThrow(/results_url|not ended/)
    await expect(client.messages.batches.delete(id)).rejects.toMatchObject({ status: 409 })
    await until(async () => {
      const { data } = (await (
        await stack.get('/v1/jobs?status=in_progress&endpoint=/v1/messages&include_children=true')
      ).json()) as {
        data: object[]
      }
      return data.length === 2
    })
    expect((await client.messages.batches.cancel(id)).processing_status).toBe('canceling')
    const batch = await ended(id)
    expect(batch.request_counts).toMatchObject({ canceled: 2, succeeded: 0 })
    const results: object[] = []
    for await (const result of await client.messages.batches.results(id)) results.push(result)
    expect(results).toEqual(['a', 'b'].map((custom_id) => ({ custom_id, result: { type: 'canceled' } })))
  })

  const one = JSON.stringify({ custom_id: 'a', params: params('x') })
  test.each([
    ['requests that are not a list', '{"requests": 1}', 400, 'requests'],
    ['a field before the requests', `{"model": "x", "requests": [${one}]}`, 400, 'requests'],
    ['a field after the requests', `{"requests": [${one}], "x": 1}`, 400, 'requests'],
    ['no end', `{"requests": [${one}`, 400, 'requests'],
    ['a truncated request', '{"requests": [{"custom_id": "a"', 400, 'requests'],
    ['no comma between two requests', `{"requests": [${one}${one}]}`, 400, 'requests'],
    ['a comma after the last request', `{"requests": [${one},]}`, 400, 'requests'],
    ['an empty list of requests', '{"requests": []}', 400, 'requests'],
    ['a request that is a string', `{"requests": [${one}, "x"]}`, 400, 'requests'],
    ['a request that is not JSON', `{"requests": [${one}, {custom_id}]}`, 400, 'requests.1'],
    ['a duplicate custom_id', `{"requests": [${one}, ${one}]}`, 400, 'requests.1.custom_id'],
    ['a custom_id with a space', '{"requests": [{"custom_id": "a b", "params": {}}]}', 400, 'requests.0.custom_id'],
    ['a request without params', '{"requests": [{"custom_id": "a"}]}', 400, 'requests.0.params'],
    ['a request over the size limit', `{"requests": [{"custom_id": "${'a'.repeat(100_001)}"}]}`, 413, 'requests.0'],
  ])('are refused with the path of the problem if the body has %s', async (_, body, status, where) => {
    const response = await post(body)
    const { error } = (await response.json()) as { error: { message: string } }
    expect([response.status, error.message]).toEqual([status, expect.stringContaining(where)])
  })

  it('leave the connection usable if they are refused during the upload', async () => {
    using raw = await openRaw(stack.url)
    const key = `x-api-key: ${TEST_KEY}`
    const bad = `{"requests":[7${',{}'.repeat(200_000)}]}`
    raw.send(rawRequest('POST /v1/messages/batches', [key, 'content-type: application/json'], bad))
    raw.send(rawRequest('GET /v1/files', [key]))
    expect((await raw.answer()).status).toBe(400)
    expect((await raw.answer(1)).status).toBe(200)
  })

  it('are refused with 415 if the content type is not JSON', async () => {
    expect((await post('{}', 'text/plain')).status).toBe(415)
  })
})
