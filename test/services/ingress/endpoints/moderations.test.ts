/* Tests of POST /v1/moderations from the caller's point of view (docs/guides/moderations.md). */

import OpenAI, { BadRequestError, NotFoundError } from 'openai'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { type ScriptedUpstream, startUpstream } from '../../../support/processes/upstream.ts'
import { ECHO_MODEL, type Stack, startStack, TEST_KEY, until } from '../../../support/stack.ts'

const IMAGE = { type: 'image_url' as const, image_url: { url: 'data:image/png;base64,iVBORw0KGgo=' } }

let stack: Stack
let upstream: ScriptedUpstream
let client: OpenAI
beforeAll(async () => {
  upstream = await startUpstream(({ body, path }, answer) => {
    if (path !== '/v1/moderations') return answer.json({ error: { message: 'no' } }, 404)
    const input = body.input as (string | { type: string })[]
    if (input[0] === 'STALL') return
    if (input[0] === 'MANY') return answer.json({ results: Array.from({ length: 1_000 }, () => ({})) })
    const padding = input[0] === 'LONG' ? 'a'.repeat(3 * 1024 * 1024) : undefined
    const inputs = typeof input[0] === 'string' ? input : [input]
    const count = input[0] === 'SHORT' ? 0 : inputs.length
    const results = inputs.slice(0, count).map((one) => {
      const isBad = JSON.stringify(one).includes('bad')
      return { flagged: isBad, categories: { violence: isBad }, category_scores: { violence: isBad ? 0.9 : 0.01 } }
    })
    answer.json({ id: 'modr-1', model: body.model, results, padding })
  })
  const engine = { type: 'openai', base_url: `${upstream.url}/v1`, model: 'guard-7b' }
  const guard = { task: 'moderation', engine }
  stack = await startStack({
    models: [
      ECHO_MODEL,
      { ...guard, id: 'guard', capabilities: { images: true } },
      { ...guard, id: 'blind', aliases: ['text-moderation-stable'] },
    ],
  })
  client = new OpenAI({ apiKey: TEST_KEY, baseURL: `${stack.url}/v1`, maxRetries: 0 })
})
afterAll(async () => {
  await stack[Symbol.asyncDispose]()
  await upstream[Symbol.asyncDispose]()
})

describe('moderation by the word list', () => {
  test.each([undefined, 'omni-moderation-latest', 'omni-moderation-2024-09-26', 'text-moderation-latest', 'word-list'])(
    'is used for the model name %s, unless models.yaml has a model with this name',
    async (model) => {
      const answer = await client.moderations.create({ input: 'you are a bastard', ...(model && { model }) })
      expect(answer).toMatchObject({ id: expect.stringMatching(/^modr-/), model: 'word-list' })
      const [result] = answer.results
      expect(result).toMatchObject({ flagged: true, categories: { harassment: true, hate: false, sexual: false } })
      expect(result).toMatchObject({ category_scores: { harassment: 1, violence: 0 } })
      expect(result?.category_applied_input_types.harassment).toEqual(['text'])
      expect(Object.keys(result?.categories ?? {})).toHaveLength(13)
    },
  )

  test('returns one result for each of 200 texts, in order', async () => {
    const input = Array.from({ length: 200 }, (_, at) =>
      at % 3 === 0 ? 'what the f u c k, sh1t' : `text ${at} of a class`,
    )
    const { results } = await client.moderations.create({ input })
    expect(results.map(({ flagged }) => flagged)).toEqual(input.map((_, at) => at % 3 === 0))
  })

  test('returns one result for all text parts of an input, and refuses images', async () => {
    const text = { type: 'text' as const, text: 'a whore' }
    const { results } = await client.moderations.create({ input: [{ type: 'text', text: 'hello' }, text] })
    expect(results).toHaveLength(1)
    expect(results[0]?.flagged).toBe(true)
    const refused = await client.moderations.create({ input: [text, IMAGE] }).catch((error: unknown) => error)
    expect(refused).toBeInstanceOf(BadRequestError)
    expect(refused).toMatchObject({ param: 'input[1]', code: 'unsupported_value' })
    expect((refused as Error).message).toMatch(/does not read images.*guard/)
  })

  test('runs as a durable job, which can be redriven', async () => {
    const headers = { prefer: 'respond-async, wait=30' }
    const answered = await stack.post('/v1/moderations', { input: 'porn' }, { headers })
    expect(await answered.json()).toMatchObject({ results: [{ flagged: true, categories: { sexual: true } }] })
    const later = { run_at: Math.floor(Date.now() / 1_000) + 600 }
    const job = await stack.post('/v1/jobs', { endpoint: '/v1/moderations', body: { input: 'fine' }, ...later })
    const { id: first } = (await job.json()) as { id: string }
    expect((await stack.post(`/v1/jobs/${first}/cancel`, {})).status).toBe(200)
    const { id } = (await (await stack.post(`/v1/jobs/${first}/redrive`, {})).json()) as { id: string }
    const stateOf = async () => ((await (await stack.get(`/v1/jobs/${id}`)).json()) as { status: string }).status
    await until(async () => (await stateOf()) === 'completed')
    const result = await (await stack.get(`/v1/jobs/${id}/result`)).json()
    expect(result).toMatchObject({ model: 'word-list', results: [{ flagged: false }] })
  })
})

describe('a moderation model', () => {
  test('is called by its upstream name, and returns null for unsupported categories', async () => {
    const { model, results } = await client.moderations.create({ model: 'guard', input: ['bad', 'good'] })
    expect([model, results.map(({ flagged }) => flagged)]).toEqual(['guard', [true, false]])
    expect(results[0]).toMatchObject({ categories: { violence: true, hate: null }, category_scores: { violence: 0.9 } })
    expect(upstream.calls.at(-1)?.body).toEqual({ model: 'guard-7b', input: ['bad', 'good'] })
  })

  test('receives images if the model supports them', async () => {
    const input = [{ type: 'text' as const, text: 'bad' }, IMAGE]
    expect((await client.moderations.create({ model: 'guard', input })).results).toHaveLength(1)
    expect(upstream.calls.at(-1)?.body.input).toEqual(input)
    const refused = client.moderations.create({ model: 'text-moderation-stable', input })
    await expect(refused).rejects.toMatchObject({ status: 400, param: 'input[1]', code: 'unsupported_value' })
  })

  test('ends its upstream call if the caller disconnects', async () => {
    const leave = new AbortController()
    const before = upstream.calls.length
    const call = client.moderations.create({ model: 'guard', input: 'STALL' }, { signal: leave.signal })
    call.catch(() => {})
    await until(() => upstream.calls.length > before)
    leave.abort()
    await upstream.calls.at(-1)?.closed
  })

  test('fails the call with 502 if a result is missing', async () => {
    const call = client.moderations.create({ model: 'guard', input: ['SHORT', 'b'] })
    await expect(call).rejects.toMatchObject({ status: 502, code: 'upstream_error' })
  })

  test.each([
    ['MANY', 'one result for each of 1 inputs'],
    ['LONG', 'sent a response of more than'],
  ])('fails the call with 502 if the upstream response is too large or invalid: %s', async (input, message) => {
    const call = client.moderations.create({ model: 'guard', input: [input] })
    await expect(call).rejects.toMatchObject({ status: 502, message: expect.stringContaining(message) })
  })

  test('is listed with the capability moderation, and is refused for other tasks', async () => {
    const { data } = await client.models.list()
    const own = data.find(({ id }) => id === 'guard') as unknown as { capabilities: string[] }
    expect(own.capabilities).toEqual(['moderation', 'images'])
    const messages = [{ role: 'user' as const, content: 'hi' }]
    const chat = client.chat.completions.create({ model: 'guard', messages })
    await expect(chat).rejects.toMatchObject({ status: 400, code: 'model_not_supported' })
    const moderated = client.moderations.create({ model: 'echo-1', input: 'hi' })
    await expect(moderated).rejects.toMatchObject({ status: 400, code: 'model_not_supported' })
    await expect(client.moderations.create({ model: 'nothing', input: 'hi' })).rejects.toBeInstanceOf(NotFoundError)
  })
})

describe('an invalid moderation request', () => {
  test.each([
    [{}, 'input', 'missing_required_parameter'],
    [{ input: '' }, 'input', 'empty_string'],
    [{ input: [] }, 'input', 'empty_array'],
    [{ input: 7 }, 'input', 'invalid_type'],
    [{ input: ['a', 7] }, 'input[1]', 'invalid_type'],
    [{ input: ['a', ''] }, 'input[1]', 'empty_string'],
    [{ input: [[1, 2]] }, 'input[0]', 'invalid_type'],
    [{ input: [{ type: 'text', text: 'a' }, 'b'] }, 'input[1]', 'invalid_type'],
    [{ input: [{ type: 'video', text: 'a' }] }, 'input[0].type', 'invalid_value'],
    [{ input: [{ type: 'text' }] }, 'input[0].text', 'missing_required_parameter'],
    [{ input: Array(257).fill('a') }, 'input', 'array_above_max_length'],
    [{ input: 'word '.repeat(200_001) }, 'input', 'invalid_value'],
    [{ input: 'a', model: 7 }, 'model', 'invalid_type'],
    [
      { model: 'guard', input: [{ type: 'image_url', image_url: { url: 'file:///etc/passwd' } }] },
      'input[0].image_url.url',
      'unsupported_value',
    ],
  ])('is refused with 400 and the name of the parameter: %.80j', async (body, param, code) => {
    const response = await stack.post('/v1/moderations', body)
    expect([response.status, await response.json()]).toMatchObject([400, { error: { param, code } }])
  })
})
