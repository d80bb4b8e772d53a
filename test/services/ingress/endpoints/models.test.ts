import Anthropic from '@anthropic-ai/sdk'
import Anthropic0 from 'anthropic-sdk-0'
import OpenAI from 'openai'
import OpenAI4 from 'openai-4'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { startUpstream } from '../../../support/processes/upstream.ts'
import { ECHO_MODEL, type Stack, startStack, TEST_KEY, until } from '../../../support/stack.ts'

/**
 * Versions of the SDK to test. For the calls of these tests, both versions have equal types, so the older client is cast to the newer type.
 */
const ANTHROPICS = [
  { major: 1, Client: Anthropic },
  { major: 0, Client: Anthropic0 as unknown as typeof Anthropic },
]
const OPENAIS = [
  { major: 7, Client: OpenAI },
  { major: 4, Client: OpenAI4 as unknown as typeof OpenAI },
]

const MODELS = [
  { ...ECHO_MODEL, aliases: ['echo-latest', 'org/echo'], created: 1_790_000_000 },
  { id: 'plain', engine: { type: 'echo' }, capabilities: { json: false } },
  ...Array.from({ length: 22 }, (_, i) => ({ id: `more-${i}`, engine: { type: 'echo' } })),
]
const IDS = MODELS.flatMap((model) => [model.id, ...('aliases' in model ? model.aliases : [])])

let stack: Stack
beforeAll(async () => {
  stack = await startStack({ models: MODELS })
})
afterAll(() => stack[Symbol.asyncDispose]())

describe.each(ANTHROPICS)('the model list in @anthropic-ai/sdk $major', ({ Client }) => {
  const open = () => new Client({ apiKey: TEST_KEY, baseURL: stack.url, maxRetries: 0 })

  test('contains all models and aliases over several pages', async () => {
    const ids: string[] = []
    for await (const model of open().models.list()) ids.push(model.id)
    expect(ids).toEqual(IDS)
  })

  test("has every field of the SDK's type", async () => {
    const { data, has_more } = await open().models.list({ limit: 2 })
    expect(has_more).toBe(true)
    expect(data[0]).toEqual({
      id: 'echo-1',
      type: 'model',
      display_name: 'echo-1',
      created_at: '2026-09-21T14:13:20Z',
      lifecycle: 'active',
      line: null,
      deprecated_at: null,
      retires_at: null,
      max_input_tokens: 1_000_000,
      max_tokens: 100_000,
      capabilities: expect.objectContaining({
        image_input: { supported: true },
        structured_outputs: { supported: true },
        thinking: { supported: true, types: expect.objectContaining({ enabled: { supported: true } }) },
        batch: { supported: false },
      }),
    })
    const plain = await open().models.retrieve('plain')
    expect(plain).toMatchObject({
      type: 'model',
      max_tokens: null,
      capabilities: { image_input: { supported: false } },
    })
    expect(plain.capabilities?.structured_outputs).toEqual({ supported: false })
  })

  test('is paged forwards and backwards', async () => {
    const forwards = await open().models.list({ limit: 3, after_id: 'plain' })
    expect(forwards.data.map(({ id }) => id)).toEqual(['more-0', 'more-1', 'more-2'])
    expect([forwards.first_id, forwards.last_id, forwards.has_more]).toEqual(['more-0', 'more-2', true])
    const backwards: string[] = []
    for await (const { id } of open().models.list({ limit: 3, before_id: 'more-2' })) backwards.push(id)
    expect(backwards.toSorted()).toEqual([...IDS.slice(0, IDS.indexOf('more-2'))].toSorted())
    const last = await open().models.list({ limit: 1_000, after_id: 'more-20' })
    expect([last.data.map(({ id }) => id), last.has_more]).toEqual([['more-21'], false])
  })

  test('has an entry for each alias, with the alias as its id', async () => {
    expect(await open().models.retrieve('org/echo')).toMatchObject({ id: 'org/echo', type: 'model' })
  })

  test('makes the SDK throw NotFoundError for an unknown model', async () => {
    const error = await open()
      .models.retrieve('no/such')
      .catch((thrown: unknown) => thrown)
    expect(error).toBeInstanceOf(Client.NotFoundError)
    expect(error).toMatchObject({ error: { type: 'error', error: { type: 'not_found_error' } } })
    const denied = new Client({ apiKey: 'sk-wrong-0000000000', baseURL: stack.url, maxRetries: 0 }).models.list()
    expect(await denied.then(undefined, (thrown: unknown) => thrown)).toMatchObject({
      error: { type: 'error', error: { type: 'authentication_error' } },
    })
  })
})

describe.each(OPENAIS)('the model list in openai $major', ({ Client }) => {
  test('has the OpenAI format, with all models and aliases on one page', async () => {
    const client = new Client({ apiKey: TEST_KEY, baseURL: `${stack.url}/v1`, maxRetries: 0 })
    const models = []
    for await (const model of client.models.list()) models.push(model)
    expect(models.map(({ id }) => id)).toEqual(IDS)
    const shape = { object: 'model', created: 1_790_000_000, owned_by: 'sluice', permission: [], root: '', parent: '' }
    expect(models.slice(0, 2)).toMatchObject([
      { id: 'echo-1', ...shape },
      { id: 'echo-latest', alias_of: 'echo-1', ...shape },
    ])
    expect(models[0]).not.toHaveProperty('alias_of')
    const alias = { id: 'echo-latest', alias_of: 'echo-1', ...shape }
    expect(await client.models.retrieve('echo-latest')).toMatchObject(alias)
  })
})

test.each([
  ['limit=0', 'limit'],
  ['limit=1001', 'limit'],
  ['limit=x', 'limit'],
  ['after_id=no-such', 'after_id'],
  ['before_id=no-such', 'before_id'],
  ['after_id=plain&before_id=plain', 'before_id'],
  ['after_id=a&after_id=b', 'after_id'],
])('a request for a page of models is refused with 400 for the invalid parameter %s', async (query, param) => {
  const response = await stack.get(`/v1/models?${query}`, { headers: { 'anthropic-version': '2023-06-01' } })
  expect(response.status).toBe(400)
  expect(await response.json()).toMatchObject({
    type: 'error',
    error: { type: 'invalid_request_error', message: expect.stringMatching(`^${param}: `) },
  })
})

describe('the anthropic-version and anthropic-beta headers', () => {
  const ANSWER = { type: 'message', content: [{ type: 'text', text: 'hi' }], stop_reason: 'end_turn', usage: {} }
  const SENT = {
    'anthropic-version': '2026-10-21',
    'anthropic-beta': 'context-1m-2025-08-07,interleaved-thinking-2025',
  }
  const body = { model: 'up', max_tokens: 9, messages: [{ role: 'user', content: 'hi' }] }

  async function startBoth() {
    const upstream = await startUpstream((call, answer) =>
      answer.json(call.path.endsWith('count_tokens') ? { input_tokens: 3 } : ANSWER),
    )
    const engine = { type: 'anthropic', base_url: upstream.url }
    const pinned = { ...engine, headers: { 'Anthropic-Version': '2024-02-02', 'Anthropic-Beta': 'ours' } }
    const models = [
      { id: 'up', engine },
      { id: 'pinned', engine: pinned },
    ]
    const own = await startStack({ models })
    return { upstream, own, seen: () => upstream.calls.map(({ headers }) => headers) }
  }

  test('of calls, jobs and token counts are forwarded to an upstream of the Messages API', async () => {
    const { upstream, own, seen } = await startBoth()
    await using _upstream = upstream
    await using _own = own
    expect((await own.post('/v1/messages', body, { headers: SENT })).status).toBe(200)
    expect((await own.post('/v1/messages/count_tokens', body, { headers: SENT })).status).toBe(200)
    const durable = { ...SENT, prefer: 'respond-async' }
    expect((await own.post('/v1/messages', body, { headers: durable })).status).toBe(202)
    expect((await own.post('/v1/jobs', { endpoint: '/v1/messages', body }, { headers: SENT })).status).toBe(202)
    await until(() => upstream.calls.length === 4)
    expect(seen()).toMatchObject([SENT, SENT, SENT, SENT])
  })

  test('default to the oldest version and to no beta features', async () => {
    const { upstream, own, seen } = await startBoth()
    await using _upstream = upstream
    await using _own = own
    await own.post('/v1/messages', body)
    await own.post('/v1/chat/completions', body, { headers: SENT })
    expect(seen().map((headers) => [headers['anthropic-version'], headers['anthropic-beta']])).toEqual([
      ['2023-06-01', undefined],
      ['2023-06-01', undefined],
    ])
  })

  test('are combined with headers in models.yaml: the version of models.yaml and all beta features are sent', async () => {
    const { upstream, own, seen } = await startBoth()
    await using _upstream = upstream
    await using _own = own
    await own.post('/v1/messages', { ...body, model: 'pinned' }, { headers: SENT })
    expect(seen()).toMatchObject([
      { 'anthropic-version': '2024-02-02', 'anthropic-beta': `ours,${SENT['anthropic-beta']}` },
    ])
  })

  test.each(['a b', 'a,,b', 'x'.repeat(2_001), 'é'])(
    'are refused if anthropic-beta is not a list of features: %.20s',
    async (beta) => {
      const response = await stack.post(
        '/v1/messages',
        { ...body, model: 'echo-1' },
        { headers: { 'anthropic-beta': beta } },
      )
      expect(response.status).toBe(400)
      expect(await response.json()).toMatchObject({ error: { message: expect.stringMatching(/^anthropic-beta: /) } })
    },
  )
})
