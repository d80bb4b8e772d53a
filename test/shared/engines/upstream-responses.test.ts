import Anthropic from '@anthropic-ai/sdk'
import OpenAI from 'openai'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { GenerateEvent } from '#schemas/kinds/generate.ts'
import { ModelConfig } from '#schemas/models.ts'
import { openOpenAiEngine } from '#shared/engines/openai/chat.ts'
import { ask, collect, failure, textOf } from '../../support/engine-calls.ts'
import { startUpstream } from '../../support/processes/upstream.ts'
import { WEATHER, WEATHER_ARGUMENTS } from '../../support/sdk.ts'
import { ECHO_MODEL, type Stack, startStack, TEST_KEY } from '../../support/stack.ts'

const USAGE = {
  input_tokens: 12,
  input_tokens_details: { cached_tokens: 8 },
  output_tokens: 5,
  output_tokens_details: { reasoning_tokens: 3 },
}
const CALL = { type: 'function_call', id: 'fc_1', call_id: 'call_1', name: 'weather', arguments: '{"city":"Oslo"}' }

function engineOn(url: string, model: object = {}) {
  const config = ModelConfig.parse({
    id: 'm1',
    engine: { type: 'openai', api: 'responses', base_url: `${url}/v1` },
    capabilities: { reasoning: true },
    ...model,
  })
  const engine = openOpenAiEngine(config, {})
  return Object.assign(engine, { [Symbol.asyncDispose]: () => engine.close() })
}

/** Returns the engine's events for a whole response, or for the frames of a stream. */
async function eventsOf(answer: object | object[]): Promise<GenerateEvent[]> {
  await using upstream = await startUpstream((_call, to) => {
    if (!Array.isArray(answer)) return to.json(answer)
    to.open()
    for (const frame of answer) to.frame(frame)
    to.end()
  })
  await using engine = engineOn(upstream.url)
  return await collect(engine, ask({ stream: Array.isArray(answer) }))
}

async function bodyOf(fields: object): Promise<unknown> {
  await using upstream = await startUpstream((_call, answer) => answer.json({}, 400))
  await using engine = engineOn(upstream.url)
  const error = await failure(engine, ask({ stream: false, ...fields }))
  const [call] = upstream.calls
  if (!call) throw error
  expect(call.path).toBe('/v1/responses')
  return call.body
}

describe('the request to a Responses API upstream', () => {
  test('contains the messages as items in order, with store false', async () => {
    const turns = [
      { role: 'system', parts: [{ type: 'text', text: 'Be brief.' }] },
      {
        role: 'user',
        parts: [
          { type: 'text', text: 'What is this?' },
          { type: 'image', url: 'https://example.com/a.png', detail: 'low' },
        ],
      },
      {
        role: 'assistant',
        parts: [
          { type: 'reasoning', text: 'Hm.', signature: 'responses:rs_1:sealed' },
          { type: 'reasoning', text: '', signature: 'of another model' },
          { type: 'text', text: 'I will ' },
          { type: 'text', text: 'look.' },
          { type: 'tool_call', id: 'call_1', name: 'weather', arguments: '{}' },
        ],
      },
      { role: 'tool', call_id: 'call_1', parts: [{ type: 'text', text: 'broken' }], is_error: true },
    ]
    const tools = [{ name: 'weather', parameters: { type: 'object' } }]
    const extra = { text: { verbosity: 'low' }, service_tier: 'flex' }
    const asked = {
      turns,
      tools,
      tool_choice: { type: 'required' },
      max_tokens: 10,
      extra,
      reasoning: { effort: 'low' },
    }
    expect(await bodyOf(asked)).toEqual({
      service_tier: 'flex',
      model: 'm1',
      input: [
        { type: 'message', role: 'system', content: 'Be brief.' },
        {
          type: 'message',
          role: 'user',
          content: [
            { type: 'input_text', text: 'What is this?' },
            { type: 'input_image', image_url: 'https://example.com/a.png', detail: 'low' },
          ],
        },
        {
          type: 'reasoning',
          id: 'rs_1',
          summary: [{ type: 'summary_text', text: 'Hm.' }],
          encrypted_content: 'sealed',
        },
        { type: 'message', role: 'assistant', content: 'I will look.' },
        { type: 'function_call', call_id: 'call_1', name: 'weather', arguments: '{}' },
        { type: 'function_call_output', call_id: 'call_1', output: 'Error: broken' },
      ],
      max_output_tokens: 10,
      tools: [{ type: 'function', name: 'weather', parameters: { type: 'object' }, strict: false }],
      tool_choice: 'required',
      text: { verbosity: 'low' },
      reasoning: { effort: 'low' },
      include: ['reasoning.encrypted_content'],
      store: false,
      stream: false,
    })
  })

  test('is refused with unsupported_parameter for n, stop and logit_bias', async () => {
    for (const [param, fields] of Object.entries({
      n: { n: 2 },
      stop: { stop: ['.'] },
      logit_bias: { logit_bias: { 5: 1 } },
    })) {
      await expect(bodyOf(fields)).rejects.toMatchObject({ code: 'unsupported_parameter', param })
    }
  })
})

describe('the response of a Responses API upstream', () => {
  test('is decoded from a stream with each part exactly once', async () => {
    const events = await eventsOf([
      { type: 'response.created', response: { status: 'in_progress' } },
      { type: 'response.output_item.added', output_index: 0, item: { type: 'reasoning', id: 'rs_1', summary: [] } },
      { type: 'response.reasoning_summary_text.delta', output_index: 0, summary_index: 0, delta: 'Hm.' },
      { type: 'response.reasoning_summary_part.added', output_index: 0, summary_index: 1 },
      { type: 'response.reasoning_summary_text.delta', output_index: 0, summary_index: 1, delta: 'Oh.' },
      {
        type: 'response.output_item.done',
        output_index: 0,
        item: { type: 'reasoning', id: 'rs_1', summary: [{ text: 'Hm.' }, { text: 'Oh.' }], encrypted_content: 'x:y' },
      },
      { type: 'response.output_item.added', output_index: 1, item: { type: 'message', content: [] } },
      { type: 'response.output_text.delta', output_index: 1, delta: 'Hel' },
      { type: 'response.output_text.delta', output_index: 1, delta: 'lo' },
      { type: 'response.output_text.done', output_index: 1, text: 'Hello' },
      {
        type: 'response.output_item.done',
        output_index: 1,
        item: { type: 'message', content: [{ type: 'output_text', text: 'Hello' }] },
      },
      { type: 'response.output_item.added', output_index: 2, item: { type: 'web_search_call', id: 'ws_1' } },
      { type: 'response.web_search_call.searching', output_index: 2 },
      { type: 'response.output_item.done', output_index: 2, item: { type: 'web_search_call', id: 'ws_1' } },
      { type: 'response.output_item.added', output_index: 3, item: { ...CALL, arguments: '' } },
      { type: 'response.function_call_arguments.delta', output_index: 3, delta: '{"city":' },
      { type: 'response.function_call_arguments.delta', output_index: 3, delta: '"Oslo"}' },
      { type: 'response.output_item.done', output_index: 3, item: CALL },
      { type: 'response.completed', response: { status: 'completed', usage: USAGE } },
    ])
    expect(textOf(events, 'reasoning')).toBe('Hm.\n\nOh.')
    expect(events.find((event) => event.type === 'reasoning' && event.signature)).toMatchObject({
      signature: 'responses:rs_1:x:y',
    })
    expect(textOf(events)).toBe('Hello')
    expect(textOf(events, 'tool_arguments')).toBe('{"city":"Oslo"}')
    expect(events.filter(({ type }) => type === 'tool_call')).toEqual([
      { type: 'tool_call', choice: 0, call: 0, id: 'call_1', name: 'weather' },
    ])
    expect(events.slice(-2)).toMatchObject([
      { type: 'finish', choice: 0, reason: 'tool_calls' },
      { type: 'usage', usage: { input_tokens: 12, output_tokens: 5, cached_tokens: 8, reasoning_tokens: 3 } },
    ])
  })

  test('is decoded from a whole response, with finish reason length if the status is incomplete', async () => {
    const output = [
      { type: 'reasoning', id: 'rs_1', summary: [], content: [{ type: 'reasoning_text', text: 'Hm.' }] },
      { type: 'message', content: [{ type: 'output_text', text: 'Hello' }] },
      CALL,
    ]
    const incomplete_details = { reason: 'max_output_tokens' }
    const events = await eventsOf({ status: 'incomplete', output, usage: USAGE, error: null, incomplete_details })
    expect(events.slice(1, -1)).toEqual([
      { type: 'reasoning', choice: 0, text: 'Hm.' },
      { type: 'text', choice: 0, text: 'Hello' },
      { type: 'tool_call', choice: 0, call: 0, id: 'call_1', name: 'weather' },
      { type: 'tool_arguments', choice: 0, call: 0, text: '{"city":"Oslo"}' },
      { type: 'finish', choice: 0, reason: 'length' },
    ])
  })

  test('fails with the error of the server, or with upstream_error if the response is incomplete or malformed', async () => {
    const created = { type: 'response.created', response: {} }
    const busy = { status: 'failed', error: { code: 'rate_limit_exceeded', message: 'slow down' } }
    const cases: [object | object[], string][] = [
      [[created, { type: 'response.failed', response: busy }], 'overloaded'],
      [[created, { type: 'error', code: 'server_error', message: 'oops' }], 'upstream_error'],
      [[created, { type: 'response.output_text.delta', output_index: 0, delta: 'Hel' }], 'upstream_error'],
      [[created, { type: 'response.completed', response: { status: 'cancelled' } }], 'upstream_error'],
      [[created, { type: 'response.function_call_arguments.delta', output_index: 0, delta: '{' }], 'upstream_error'],
      [
        [created, { type: 'response.output_item.added', output_index: 0, item: { type: 'function_call' } }],
        'upstream_error',
      ],
      [busy, 'overloaded'],
      [{ status: 'completed', output: 'text' }, 'upstream_error'],
      [{ status: 'completed', output: [{ type: 'message', content: { text: 'text' } }] }, 'upstream_error'],
    ]
    for (const [answer, code] of cases) {
      await expect(eventsOf(answer), `error for ${JSON.stringify(answer)}`).rejects.toMatchObject({ code })
    }
  })
})

/** The upstream of these tests is another Sluice, because it supports the whole Responses API. */
describe('a Responses API upstream behind a Sluice server', () => {
  let upstream: Stack
  let stack: Stack
  let openai: OpenAI
  beforeAll(async () => {
    upstream = await startStack()
    const engine = {
      type: 'openai',
      api: 'responses',
      base_url: `${upstream.url}/v1`,
      model: 'echo-1',
      api_key_env: 'KEY',
    }
    const settings = { KEY: TEST_KEY }
    stack = await startStack({ models: [{ ...ECHO_MODEL, id: 'far', engine }], settings })
    openai = new OpenAI({ apiKey: TEST_KEY, baseURL: `${stack.url}/v1`, maxRetries: 0 })
  })
  afterAll(async () => {
    await stack[Symbol.asyncDispose]()
    await upstream[Symbol.asyncDispose]()
  })

  const tool = { name: WEATHER.name, description: WEATHER.description, parameters: WEATHER.schema }

  test('forwards whole and streamed responses with tools and encrypted reasoning items', async () => {
    const asked = '!echo reasoning="Let me think." text="Well."'
    const first = await openai.responses.create({
      model: 'far',
      input: asked,
      include: ['reasoning.encrypted_content'],
    })
    expect(first.output_text).toBe('Well.')
    expect(first.output[0]).toMatchObject({ type: 'reasoning' })
    expect(first.usage?.output_tokens).toBeGreaterThan(0)
    const next = await openai.responses.create({ model: 'far', input: 'go on', previous_response_id: first.id })
    expect(next.output_text).toBe('go on')
    let text = ''
    for await (const event of await openai.responses.create({ model: 'far', input: 'hello', stream: true })) {
      if (event.type === 'response.output_text.delta') text += event.delta
    }
    expect(text).toBe('hello')
    const tools = [{ type: 'function' as const, ...tool, strict: false }]
    const called = await openai.responses.create({ model: 'far', input: 'get_weather, please', tools })
    const call = called.output.find((item) => item.type === 'function_call')
    expect(JSON.parse(call?.arguments ?? '')).toEqual(WEATHER_ARGUMENTS)
  })

  test('serves chat completions and messages, and refuses the parameter stop with status 400', async () => {
    const messages = [{ role: 'user' as const, content: 'get_weather, please' }]
    const tools = [{ type: 'function' as const, function: tool }]
    const chat = await openai.chat.completions.create({ model: 'far', messages, tools })
    expect(chat.choices[0]).toMatchObject({ finish_reason: 'tool_calls' })
    const anthropic = new Anthropic({ apiKey: TEST_KEY, baseURL: stack.url, maxRetries: 0 })
    const message = await anthropic.messages.create({
      model: 'far',
      max_tokens: 100,
      messages: [{ role: 'user', content: 'hello' }],
    })
    expect(message.content).toMatchObject([{ type: 'text', text: 'hello' }])
    const refused = openai.chat.completions.create({ model: 'far', messages, stop: ['x'] })
    await expect(refused).rejects.toMatchObject({ status: 400, param: 'stop' })
  })
})

describe('a Responses API response with values of wrong types', () => {
  const call = (fields: object) => [
    { type: 'response.output_item.done', output_index: 0, item: { ...CALL, ...fields } },
    { type: 'response.completed', response: { status: 'completed', output: [] } },
  ]

  test.each([[{}], [['weather']], [5], [true]])(
    'fails with upstream_error if the name of a tool call is %j',
    async (name) => {
      await expect(eventsOf(call({ name }))).rejects.toMatchObject({ code: 'upstream_error' })
    },
  )

  test('yields a tool call with an empty id if the id is no string', async () => {
    expect(await eventsOf(call({ call_id: ['call_1'], id: 7 }))).toContainEqual(
      expect.objectContaining({ type: 'tool_call', id: '', name: 'weather' }),
    )
  })

  test('yields valid events if log probabilities, reasoning and usage are malformed', async () => {
    const logprobs = [{ token: 5, logprob: 'x', bytes: true, top_logprobs: [{ logprob: '1', bytes: ['a'] }] }]
    const thought = { type: 'reasoning', id: 7, summary: [], encrypted_content: ['sealed'] }
    const events = await eventsOf([
      { type: 'response.output_item.done', output_index: 0, item: thought },
      { type: 'response.output_text.delta', output_index: 1, delta: 'Hi', logprobs },
      { type: 'response.completed', response: { status: 'completed', usage: 'none' } },
    ])
    for (const event of events)
      expect(GenerateEvent.safeParse(event).error, `schema error of ${JSON.stringify(event)}`).toBeUndefined()
    expect(textOf(events)).toBe('Hi')
  })

  test('fails if a text has more than 4,096 annotations', async () => {
    const content = [{ type: 'output_text', text: 'Hi', annotations: Array(5_000).fill({}) }]
    const item = { type: 'message', role: 'assistant', content }
    const events = eventsOf({ status: 'completed', output: [item] })
    await expect(events).rejects.toMatchObject({ message: expect.stringContaining('4096 annotations') })
  })

  test('fails if a reasoning summary has more than 1,024 parts', async () => {
    const item = { type: 'reasoning', summary: Array(5_000).fill({ type: 'summary_text', text: 'Hm.' }) }
    const events = eventsOf({ status: 'completed', output: [item] })
    await expect(events).rejects.toMatchObject({ message: expect.stringContaining('1024 parts') })
  })
})
