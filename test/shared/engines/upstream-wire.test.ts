import { createHash } from 'node:crypto'
import { describe, expect, test, vi } from 'vitest'
import type { GenerateEvent } from '#schemas/kinds/generate.ts'
import type { UpstreamConfig } from '#schemas/models.ts'
import { ModelConfig } from '#schemas/models.ts'
import { encodeOpenAi } from '#shared/engines/openai/encode.ts'
import { ask, collect, type Dialect, engineOn, failure, options } from '../../support/engine-calls.ts'
import { startUpstream } from '../../support/processes/upstream.ts'

const PNG = 'data:image/png;base64,iVBORw0KGgo='
const WEATHER = { name: 'weather', description: 'Tells the weather', parameters: { type: 'object', properties: {} } }
const CLOCK = { name: 'clock', parameters: {} }

/** Returns the body that an upstream receives for a request with these fields. */
async function bodyOf(dialect: Dialect, fields: object, engine: object = {}, model: object = {}): Promise<unknown> {
  await using upstream = await startUpstream((_call, answer) => answer.json({}, 400))
  await using opened = engineOn(dialect, upstream.url, engine, model)
  const error = await failure(opened, ask({ stream: false, ...fields }))
  const [call] = upstream.calls
  if (!call) throw error
  return call.body
}

/** Returns the engine's events for a whole response, or for the frames of a stream, except the event `start`. */
async function eventsOf(dialect: Dialect, answer: object | object[], fields: object = {}): Promise<GenerateEvent[]> {
  await using upstream = await startUpstream((_call, to) => {
    if (!Array.isArray(answer)) return to.json(answer)
    to.open()
    for (const frame of answer) to.frame(frame)
    if (dialect === 'openai') to.frame('[DONE]')
    to.end()
  })
  await using engine = engineOn(dialect, upstream.url)
  const [start, ...events] = await collect(engine, ask({ stream: Array.isArray(answer), ...fields }))
  expect(start?.type).toBe('start')
  return events
}

const user = (text: string) => ({ role: 'user', parts: [{ type: 'text', text }] })

const CONVERSATION = [
  { role: 'system', parts: [{ type: 'text', text: 'Be brief.' }] },
  {
    role: 'user',
    parts: [
      { type: 'text', text: 'What is this?' },
      { type: 'image', url: PNG, detail: 'low' },
      { type: 'image', url: 'https://example.com/a.png' },
    ],
  },
  {
    role: 'assistant',
    parts: [
      { type: 'reasoning', text: 'Hm.', signature: 'sig' },
      { type: 'text', text: 'I will look.' },
      { type: 'tool_call', id: 'call:1', name: 'weather', arguments: '{"city":"Oslo"}' },
      { type: 'tool_call', id: 'call_2', name: 'clock', arguments: '' },
    ],
  },
  { role: 'tool', call_id: 'call:1', parts: [{ type: 'text', text: 'Rain' }] },
  {
    role: 'tool',
    call_id: 'call_2',
    parts: [
      { type: 'text', text: 'broken' },
      { type: 'image', url: PNG },
    ],
    is_error: true,
  },
  { role: 'user', parts: [{ type: 'text', text: 'Go on.' }], name: 'ann' },
]

describe('a Messages API request to an OpenAI upstream', () => {
  test('is converted to messages, with images of tool results in a following user message', async () => {
    expect(await bodyOf('openai', { dialect: 'anthropic', turns: CONVERSATION, max_tokens: 10 })).toEqual({
      model: 'm1',
      messages: [
        { role: 'system', content: 'Be brief.' },
        {
          role: 'user',
          content: [
            { type: 'text', text: 'What is this?' },
            { type: 'image_url', image_url: { url: PNG, detail: 'low' } },
            { type: 'image_url', image_url: { url: 'https://example.com/a.png' } },
          ],
        },
        {
          role: 'assistant',
          content: 'I will look.',
          reasoning_content: 'Hm.',
          tool_calls: [
            { id: 'call:1', type: 'function', function: { name: 'weather', arguments: '{"city":"Oslo"}' } },
            { id: 'call_2', type: 'function', function: { name: 'clock', arguments: '' } },
          ],
        },
        { role: 'tool', tool_call_id: 'call:1', content: 'Rain' },
        { role: 'tool', tool_call_id: 'call_2', content: 'Error: broken' },
        {
          role: 'user',
          content: [
            { type: 'text', text: 'Attached by the result of tool call call_2:' },
            { type: 'image_url', image_url: { url: PNG } },
          ],
        },
        { role: 'user', content: 'Go on.', name: 'ann' },
      ],
      max_tokens: 10,
      stream: false,
    })
  })

  test('contains system blocks and assistant blocks as plain strings', async () => {
    const parts = ['One.\n\n', 'Two.'].map((text) => ({
      type: 'text',
      text,
      extra: { cache_control: { type: 'ephemeral' } },
    }))
    const turns = [{ role: 'system', parts }, user('x'), { role: 'assistant', parts }]
    expect(await bodyOf('openai', { dialect: 'anthropic', turns })).toMatchObject({
      messages: [
        { role: 'system', content: 'One.\n\nTwo.' },
        { role: 'user', content: 'x' },
        { role: 'assistant', content: 'One.\n\nTwo.' },
      ],
    })
  })

  test('contains a prefill as the last assistant message, with continue_final_message', async () => {
    const turns = [user('x'), { role: 'assistant', parts: [{ type: 'text', text: '{"a":' }] }]
    expect(await bodyOf('openai', { dialect: 'anthropic', turns })).toMatchObject({
      messages: [{ role: 'user' }, { role: 'assistant', content: '{"a":' }],
      continue_final_message: true,
      add_generation_prompt: false,
    })
  })

  test('contains translated settings, but no fields that only the Messages API has', async () => {
    const fields = {
      dialect: 'anthropic',
      temperature: 0.5,
      top_k: 7,
      stop: ['END'],
      user: 'u1',
      tools: [{ ...WEATHER, extra: { cache_control: {} } }],
      tool_choice: { type: 'tool', name: 'weather' },
      parallel_tool_calls: false,
      response_format: { type: 'json_schema', schema: { type: 'object' } },
      reasoning: { budget_tokens: 4_000, enabled: true },
      extra: { service_tier: 'auto' },
    }
    expect(await bodyOf('openai', fields, {}, { capabilities: { reasoning: true } })).toEqual({
      model: 'm1',
      messages: [{ role: 'user', content: 'Say hello.' }],
      temperature: 0.5,
      top_k: 7,
      stop: ['END'],
      user: 'u1',
      tools: [{ type: 'function', function: WEATHER }],
      tool_choice: { type: 'function', function: { name: 'weather' } },
      parallel_tool_calls: false,
      response_format: { type: 'json_schema', json_schema: { name: 'answer', schema: { type: 'object' } } },
      reasoning_effort: 'medium',
      stream: false,
    })
  })
})

describe('a chat completion request to an OpenAI upstream', () => {
  test('is forwarded with every field unchanged', async () => {
    const fields = {
      stream: true,
      turns: [
        {
          role: 'user',
          extra: { weight: 1 },
          parts: [
            { type: 'text', text: 'Listen.', extra: { prompt_cache_breakpoint: {} } },
            { type: 'audio', data: 'UklGRg==', format: 'wav' },
            { type: 'file', data: 'data:application/pdf;base64,JVBERg==', filename: 'a.pdf' },
          ],
        },
        {
          role: 'assistant',
          parts: [
            { type: 'reasoning', text: 'Hm.' },
            { type: 'text', text: 'Yes?' },
          ],
        },
        user('Go on.'),
      ],
      temperature: 1.5,
      top_p: 0.9,
      n: 2,
      stop: ['a', 'b'],
      presence_penalty: 1,
      frequency_penalty: -1,
      logit_bias: { 50256: -100 },
      seed: 7,
      logprobs: true,
      top_logprobs: 3,
      tools: [{ ...WEATHER, strict: true, extra: { vendor: 1 } }],
      tool_choice: { type: 'required' },
      response_format: { type: 'json_object' },
      extra: { verbosity: 'low', min_p: 0.1, model: 'not this one' },
    }
    const model = { limits: { max_output_tokens: 50, default_output_tokens: 20 } }
    expect(await bodyOf('openai', fields, { model: 'real-name' }, model)).toEqual({
      verbosity: 'low',
      min_p: 0.1,
      model: 'real-name',
      messages: [
        {
          weight: 1,
          role: 'user',
          content: [
            { prompt_cache_breakpoint: {}, type: 'text', text: 'Listen.' },
            { type: 'input_audio', input_audio: { data: 'UklGRg==', format: 'wav' } },
            { type: 'file', file: { filename: 'a.pdf', file_data: 'data:application/pdf;base64,JVBERg==' } },
          ],
        },
        { role: 'assistant', content: 'Yes?', reasoning_content: 'Hm.' },
        { role: 'user', content: 'Go on.' },
      ],
      max_tokens: 20,
      temperature: 1.5,
      top_p: 0.9,
      n: 2,
      stop: ['a', 'b'],
      presence_penalty: 1,
      frequency_penalty: -1,
      logit_bias: { 50256: -100 },
      seed: 7,
      logprobs: true,
      top_logprobs: 3,
      tools: [{ vendor: 1, type: 'function', function: { ...WEATHER, strict: true } }],
      tool_choice: 'required',
      response_format: { type: 'json_object' },
      stream: true,
      stream_options: { include_usage: true },
    })
  })

  test("has max_tokens reduced to the model's limit, and no stream_options if force_usage is off", async () => {
    const model = { limits: { max_output_tokens: 50 } }
    const body = await bodyOf('openai', { max_tokens: 80, stream: true }, { force_usage: false }, model)
    expect(body).toMatchObject({ max_tokens: 50, stream: true })
    expect(body).not.toHaveProperty('stream_options')
  })

  test('is repeated without stream_options if the server refuses this field', async () => {
    await using upstream = await startUpstream((call, to) => {
      if (call.body.stream_options) return to.json({ detail: [{ loc: ['body', 'stream_options'], msg: 'Extra' }] }, 422)
      to.json({ choices: [{ index: 0, message: { content: 'Hello' }, finish_reason: 'stop' }] })
    })
    await using engine = engineOn('openai', upstream.url)
    for (let call = 0; call < 2; call++) expect(await collect(engine)).toContainEqual(finish('stop'))
    expect(upstream.calls.map(({ body }) => 'stream_options' in body)).toEqual([true, false, false])
  })

  test('is not repeated without stream_options if the caller set this field', async () => {
    await using upstream = await startUpstream((_call, to) =>
      to.json({ error: { message: 'Unknown: stream_options' } }, 400),
    )
    await using engine = engineOn('openai', upstream.url)
    await failure(engine, ask({ extra: { stream_options: { odd: true } } }))
    expect(upstream.calls).toHaveLength(1)
    expect(upstream.calls[0]?.body.stream_options).toEqual({ odd: true, include_usage: true })
  })

  test('contains only the allowed tools', async () => {
    const fields = { tools: [WEATHER, CLOCK], allowed_tools: ['clock'], tool_choice: { type: 'required' } }
    expect(await bodyOf('openai', fields)).toMatchObject({
      tools: [{ type: 'function', function: CLOCK }],
      tool_choice: 'required',
    })
  })

  test('has max_completion_tokens and allowed_tools for api.openai.com', () => {
    const fields = { max_tokens: 9, tools: [WEATHER, CLOCK], allowed_tools: ['clock'] }
    const engine = { type: 'openai', base_url: 'https://api.openai.com/v1' }
    const model = ModelConfig.parse({ id: 'm1', engine })
    const body = encodeOpenAi(ask(fields), model, model.engine as UpstreamConfig)
    expect(body).toMatchObject({
      max_completion_tokens: 9,
      tools: [{ function: { name: 'weather' } }, { function: { name: 'clock' } }],
      tool_choice: {
        type: 'allowed_tools',
        allowed_tools: { mode: 'auto', tools: [{ type: 'function', function: { name: 'clock' } }] },
      },
    })
    expect(body).not.toHaveProperty('max_tokens')
    expect(() => encodeOpenAi(ask({ top_k: 5 }), model, model.engine as UpstreamConfig)).toThrow('top_k')
  })

  test('keeps developer messages and native tools for api.openai.com', () => {
    const native = { type: 'custom', custom: { name: 'sql', format: { type: 'text' } } }
    const fields = {
      user: 'u'.repeat(65),
      tools: [
        { name: 'sql', parameters: {}, custom: true, native },
        { name: 'web_search#1', parameters: {}, native_only: true, native: { type: 'web_search' } },
      ],
      tool_choice: { type: 'tool', name: 'sql' },
      turns: [
        { role: 'system', developer: true, parts: [{ type: 'text', text: 'Be brief.' }] },
        {
          role: 'assistant',
          parts: [{ type: 'tool_call', id: 'a', name: 'sql', custom: true, arguments: '{"input":"x"}' }],
        },
        { role: 'tool', call_id: 'a', custom: true, parts: [] },
      ],
    }
    const encode = (base_url: string) => {
      const model = ModelConfig.parse({ id: 'm1', engine: { type: 'openai', base_url } })
      return encodeOpenAi(ask(fields), model, model.engine as UpstreamConfig)
    }
    expect(encode('https://api.openai.com/v1')).toMatchObject({
      user: createHash('sha256').update(fields.user).digest('hex'),
      tools: [native, { type: 'web_search' }],
      tool_choice: { type: 'custom', custom: { name: 'sql' } },
      messages: [
        { role: 'developer', content: 'Be brief.' },
        { content: null, tool_calls: [{ id: 'a', type: 'custom', custom: { name: 'sql', input: 'x' } }] },
        { role: 'tool', tool_call_id: 'a' },
      ],
    })
    expect(encode('http://127.0.0.1/v1')).toMatchObject({ messages: [{ role: 'system' }, {}, {}] })
  })

  test('keeps a deprecated function call and the result of the call', async () => {
    const function_call = { name: 'f', arguments: '{}' }
    const turns = [
      {
        role: 'assistant',
        parts: [
          { type: 'native', dialect: 'openai', value: { function_call } },
          { type: 'tool_call', id: 'call_function_1', name: 'f', arguments: '{}', extra: { implied_call: true } },
        ],
      },
      {
        role: 'tool',
        call_id: 'call_function_1',
        extra: { role: 'function', name: 'f' },
        parts: [{ type: 'text', text: '42' }],
      },
    ]
    expect(await bodyOf('openai', { turns })).toMatchObject({
      messages: [
        { role: 'assistant', content: null, function_call },
        { role: 'function', name: 'f', content: '42' },
      ],
    })
  })

  test('has reasoning_effort only for a model with the capability reasoning', async () => {
    const fields = { reasoning: { effort: 'high' } }
    expect(await bodyOf('openai', fields)).not.toHaveProperty('reasoning_effort')
    const model = { capabilities: { reasoning: true } }
    expect(await bodyOf('openai', fields, {}, model)).toHaveProperty('reasoning_effort', 'high')
  })
})

describe('a Messages API request to an Anthropic upstream', () => {
  test('is forwarded with every field unchanged', async () => {
    const cache_control = { type: 'ephemeral' }
    const fields = {
      dialect: 'anthropic',
      max_tokens: 4_000,
      temperature: 0.3,
      top_k: 5,
      stop: ['END'],
      user: 'u1',
      tools: [{ ...WEATHER, extra: { cache_control } }],
      tool_choice: { type: 'auto' },
      parallel_tool_calls: false,
      response_format: { type: 'json_schema', schema: { type: 'object' } },
      reasoning: { enabled: true, budget_tokens: 2_000, effort: 'low' },
      extra: { thinking: { type: 'enabled', budget_tokens: 9_000, display: 'omitted' }, service_tier: 'auto' },
      turns: [
        { role: 'system', parts: [{ type: 'text', text: 'Be brief.', extra: { cache_control } }] },
        {
          role: 'user',
          parts: [
            { type: 'file', data: 'data:application/pdf;base64,JVBERg==', filename: 'a.pdf', extra: { cache_control } },
          ],
        },
        {
          role: 'assistant',
          parts: [
            { type: 'reasoning', text: 'Hm.', signature: 'sig' },
            { type: 'reasoning', text: '', redacted: 'opaque' },
            { type: 'tool_call', id: 'toolu_1', name: 'weather', arguments: '{"city":"Oslo"}' },
          ],
        },
        { role: 'tool', call_id: 'toolu_1', parts: [], is_error: false, extra: { cache_control } },
        { role: 'assistant', parts: [{ type: 'text', text: 'It' }] },
      ],
    }
    const model = { capabilities: { reasoning: true } }
    expect(await bodyOf('anthropic', fields, { model: 'real-name' }, model)).toEqual({
      service_tier: 'auto',
      model: 'real-name',
      system: [{ cache_control, type: 'text', text: 'Be brief.' }],
      messages: [
        {
          role: 'user',
          content: [
            {
              cache_control,
              type: 'document',
              source: { type: 'base64', media_type: 'application/pdf', data: 'JVBERg==' },
              title: 'a.pdf',
            },
          ],
        },
        {
          role: 'assistant',
          content: [
            { type: 'thinking', thinking: 'Hm.', signature: 'sig' },
            { type: 'redacted_thinking', data: 'opaque' },
            { type: 'tool_use', id: 'toolu_1', name: 'weather', input: { city: 'Oslo' } },
          ],
        },
        { role: 'user', content: [{ cache_control, type: 'tool_result', tool_use_id: 'toolu_1', is_error: false }] },
        { role: 'assistant', content: 'It' },
      ],
      max_tokens: 4_000,
      temperature: 0.3,
      top_k: 5,
      stop_sequences: ['END'],
      metadata: { user_id: 'u1' },
      tools: [{ cache_control, name: 'weather', description: 'Tells the weather', input_schema: WEATHER.parameters }],
      tool_choice: { type: 'auto', disable_parallel_tool_use: true },
      output_config: { format: { type: 'json_schema', schema: { type: 'object' } }, effort: 'low' },
      thinking: { type: 'enabled', budget_tokens: 2_000, display: 'omitted' },
      stream: false,
    })
  })

  test('has no thinking field if only an effort is set', async () => {
    const fields = { dialect: 'anthropic', reasoning: { effort: 'high' } }
    const body = await bodyOf('anthropic', fields, {}, { capabilities: { reasoning: true } })
    expect(body).toMatchObject({ output_config: { effort: 'high' } })
    expect(body).not.toHaveProperty('thinking')
  })
})

describe('a chat completion request to an Anthropic upstream', () => {
  test('is converted to alternating messages after a system prompt that contains all system messages', async () => {
    const late = { role: 'system', parts: [{ type: 'text', text: 'Speak English.' }], extra: { weight: 1 } }
    expect(await bodyOf('anthropic', { turns: [...CONVERSATION, late], extra: { verbosity: 'low' } })).toEqual({
      model: 'm1',
      system: 'Be brief.\n\nSpeak English.',
      messages: [
        {
          role: 'user',
          content: [
            { type: 'text', text: 'What is this?' },
            { type: 'image', source: { type: 'base64', media_type: 'image/png', data: 'iVBORw0KGgo=' } },
            { type: 'image', source: { type: 'url', url: 'https://example.com/a.png' } },
          ],
        },
        {
          role: 'assistant',
          content: [
            { type: 'text', text: 'I will look.' },
            { type: 'tool_use', id: 'call_1', name: 'weather', input: { city: 'Oslo' } },
            { type: 'tool_use', id: 'call_2', name: 'clock', input: {} },
          ],
        },
        {
          role: 'user',
          content: [
            { type: 'tool_result', tool_use_id: 'call_1', content: 'Rain' },
            {
              type: 'tool_result',
              tool_use_id: 'call_2',
              content: [
                { type: 'text', text: 'broken' },
                { type: 'image', source: { type: 'base64', media_type: 'image/png', data: 'iVBORw0KGgo=' } },
              ],
              is_error: true,
            },
            { type: 'text', text: 'Go on.' },
          ],
        },
      ],
      max_tokens: 4_096,
      stream: false,
    })
  })

  test('has the last system message as the user message if there are only system messages', async () => {
    const turns = ['Be brief.', 'Hello?'].map((text) => ({ role: 'system', parts: [{ type: 'text', text }] }))
    const expected = { system: 'Be brief.', messages: [{ role: 'user', content: 'Hello?' }] }
    expect(await bodyOf('anthropic', { turns })).toMatchObject(expected)
  })

  test('has no white space at the end of a last assistant message', async () => {
    const turns = [user('x'), { role: 'assistant', parts: [{ type: 'text', text: 'Well, \n' }] }]
    expect(await bodyOf('anthropic', { turns })).toMatchObject({
      messages: [{}, { role: 'assistant', content: 'Well,' }],
    })
  })

  test.each([
    [{ type: 'auto' }, undefined, { type: 'auto' }],
    [{ type: 'none' }, false, { type: 'none' }],
    [{ type: 'required' }, false, { type: 'any', disable_parallel_tool_use: true }],
    [{ type: 'tool', name: 'clock' }, true, { type: 'tool', name: 'clock' }],
    [undefined, false, { type: 'auto', disable_parallel_tool_use: true }],
    [undefined, undefined, undefined],
  ])(
    'is converted from tool_choice %j and parallel_tool_calls %s to the Anthropic fields',
    async (tool_choice, parallel_tool_calls, expected) => {
      const fields = { tools: [WEATHER, CLOCK], allowed_tools: ['clock'], tool_choice, parallel_tool_calls }
      const body = (await bodyOf('anthropic', fields)) as Record<string, unknown>
      expect(body.tool_choice).toEqual(expected)
      expect(body.tools).toEqual([{ name: 'clock', input_schema: { type: 'object', properties: {} } }])
    },
  )

  test.each([
    [{ effort: 'high' }, { type: 'adaptive' }, { effort: 'high' }],
    [{ effort: 'minimal' }, { type: 'adaptive' }, { effort: 'low' }],
    [{ effort: 'none', enabled: false }, { type: 'disabled' }, undefined],
  ])(
    'with reasoning %j contains the matching thinking and effort fields',
    async (reasoning, thinking, output_config) => {
      const body = await bodyOf('anthropic', { reasoning }, {}, { capabilities: { reasoning: true } })
      expect(body).toMatchObject({ thinking })
      expect(body).toHaveProperty('messages')
      expect((body as { output_config?: unknown }).output_config).toEqual(output_config)
    },
  )

  test.each(['{oops', '[1]', '"text"', 'null'])(
    'contains tool arguments that are no JSON object in a field invalid_json: %s',
    async (text) => {
      const call = { type: 'tool_call', id: 'a', name: 'b', arguments: text }
      const turns = [user('x'), { role: 'assistant', parts: [call] }, { role: 'tool', call_id: 'a', parts: [] }]
      expect(await bodyOf('anthropic', { turns })).toMatchObject({
        messages: [{}, { content: [{ type: 'tool_use', input: { invalid_json: text } }] }, {}],
      })
    },
  )

  test('has temperature 1 if the caller requests more', async () => {
    expect(await bodyOf('anthropic', { temperature: 1.7 })).toHaveProperty('temperature', 1)
  })

  test.each([
    [{ n: 2 }, 'unsupported_parameter', 'n'],
    [{ logprobs: true }, 'unsupported_parameter', 'logprobs'],
    [{ presence_penalty: 0.5 }, 'unsupported_parameter', 'presence_penalty'],
    [{ logit_bias: { 1: 5 } }, 'unsupported_parameter', 'logit_bias'],
    [{ response_format: { type: 'json_object' } }, 'unsupported_value', 'response_format'],
    [
      { turns: [{ role: 'user', parts: [{ type: 'audio', data: 'UklGRg==', format: 'wav' }] }] },
      'unsupported_value',
      'messages[0].content[0]',
    ],
  ])('is refused with status 400 for %j, without an upstream call', async (fields, code, param) => {
    await expect(bodyOf('anthropic', fields)).rejects.toMatchObject({ code, param, status: 400 })
  })
})

const USAGE = { prompt_tokens: 9, completion_tokens: 4 }
const usage = (more: object = {}) => ({ type: 'usage', usage: { input_tokens: 9, output_tokens: 4, ...more } })
const finish = (reason: string, more: object = {}) => ({ type: 'finish', choice: 0, reason, ...more })

describe('a streamed or whole response of an OpenAI upstream', () => {
  const delta = (fields: object, more: object = {}) => ({ choices: [{ index: 0, delta: fields, ...more }] })
  const done = (finish_reason: string, more: object = {}) => ({
    choices: [{ index: 0, delta: {}, finish_reason, ...more }],
    usage: USAGE,
  })

  test('joins the pieces of each tool call by the index of the call', async () => {
    const call = (index: number, fields: object) => delta({ tool_calls: [{ index, ...fields }] })
    const events = await eventsOf('openai', [
      call(0, { id: 'call_a', type: 'function', function: { name: 'weather', arguments: '' } }),
      call(0, { function: { arguments: '{"city":' } }),
      call(0, { function: { arguments: '"Oslo"}' } }),
      call(1, { id: 'call_b', type: 'function', function: { name: 'clock' } }),
      done('tool_calls'),
    ])
    expect(events).toEqual([
      { type: 'tool_call', choice: 0, call: 0, id: 'call_a', name: 'weather' },
      { type: 'tool_arguments', choice: 0, call: 0, text: '{"city":' },
      { type: 'tool_arguments', choice: 0, call: 0, text: '"Oslo"}' },
      { type: 'tool_call', choice: 0, call: 1, id: 'call_b', name: 'clock' },
      { type: 'tool_arguments', choice: 0, call: 1, text: '{}' },
      finish('tool_calls'),
      usage(),
    ])
  })

  test('yields separate tool calls if complete calls have no index or all have index 0', async () => {
    const whole = (id: string, more: object = {}) =>
      delta({ tool_calls: [{ id, function: { name: 'clock', arguments: '{}' }, ...more }] })
    for (const more of [{}, { index: 0 }]) {
      const events = await eventsOf('openai', [whole('a', more), whole('b', more), done('stop')])
      const calls = events.filter((event) => event.type === 'tool_call')
      expect(calls).toMatchObject([
        { call: 0, id: 'a' },
        { call: 1, id: 'b' },
      ])
      expect(events.at(-2)).toEqual(finish('tool_calls'))
    }
  })

  test('yields reasoning, refusals, log probabilities and content filter results', async () => {
    const one = { token: 'Hi', logprob: -0.1, bytes: [72, 105], id: 5 }
    const events = await eventsOf('openai', [
      delta({ reasoning_content: 'Hm' }),
      delta({ reasoning: ', so.' }),
      delta({ content: 'Hi' }, { logprobs: { content: [{ ...one, top_logprobs: [one] }] } }),
      delta({ refusal: 'No.' }),
      done('content_filter', { content_filter_results: { hate: { filtered: true } } }),
    ])
    const { id: _, ...known } = one
    expect(events).toEqual([
      { type: 'reasoning', choice: 0, text: 'Hm' },
      { type: 'reasoning', choice: 0, text: ', so.' },
      { type: 'text', choice: 0, text: 'Hi', logprobs: [{ ...known, top_logprobs: [known] }] },
      { type: 'refusal', choice: 0, text: 'No.' },
      finish('content_filter', { filter: { hate: { filtered: true } } }),
      usage(),
    ])
  })

  test('yields interleaved choices, each with its own finish event', async () => {
    const on = (index: number, content: string, finish_reason: string | null = null) => ({
      choices: [{ index, delta: { content }, finish_reason }],
    })
    const frames = [on(1, 'b'), on(0, 'a'), on(0, '', 'length'), on(1, 'c', 'stop'), { choices: [], usage: USAGE }]
    expect(await eventsOf('openai', frames, { n: 2 })).toEqual([
      { type: 'text', choice: 1, text: 'b' },
      { type: 'text', choice: 0, text: 'a' },
      { type: 'text', choice: 1, text: 'c' },
      finish('length'),
      { ...finish('stop'), choice: 1 },
      usage(),
    ])
  })

  test('fails with upstream_refused if it has fewer choices than requested', async () => {
    await expect(eventsOf('openai', [delta({ content: 'a' }), done('stop')], { n: 2 })).rejects.toMatchObject({
      code: 'upstream_refused',
    })
  })

  test('yields an event for every field of a whole response', async () => {
    const answer = {
      choices: [
        {
          index: 0,
          message: {
            role: 'assistant',
            content: 'Look.',
            reasoning_content: 'Hm.',
            tool_calls: [
              { id: 'a', type: 'function', function: { name: 'clock', arguments: '{}' } },
              { id: 'b', type: 'function', function: { name: 'weather', arguments: '{"x":1}' } },
            ],
          },
          finish_reason: 'tool_calls',
        },
      ],
      usage: {
        ...USAGE,
        prompt_tokens_details: { cached_tokens: 5 },
        completion_tokens_details: { reasoning_tokens: 2 },
      },
    }
    expect(await eventsOf('openai', answer)).toEqual([
      { type: 'reasoning', choice: 0, text: 'Hm.' },
      { type: 'text', choice: 0, text: 'Look.' },
      { type: 'tool_call', choice: 0, call: 0, id: 'a', name: 'clock' },
      { type: 'tool_arguments', choice: 0, call: 0, text: '{}' },
      { type: 'tool_call', choice: 0, call: 1, id: 'b', name: 'weather' },
      { type: 'tool_arguments', choice: 0, call: 1, text: '{"x":1}' },
      finish('tool_calls'),
      {
        ...usage({ cached_tokens: 5, reasoning_tokens: 2 }),
        native_usage: { dialect: 'openai', value: answer.usage },
      },
    ])
  })

  test('yields the matched stop string if the server reports it', async () => {
    const events = await eventsOf('openai', [delta({ content: 'a' }), done('stop', { stop_reason: 'END' })], {
      stop: ['END'],
    })
    expect(events.at(-2)).toEqual(finish('stop', { stop_sequence: 'END' }))
  })

  test('is complete if it has a finish reason or [DONE]', async () => {
    expect(await eventsOf('openai', [delta({ content: 'a' })])).toContainEqual(finish('stop'))
    await using upstream = await startUpstream((_call, to) => {
      to.open()
      to.frame(delta({ content: 'a' }, { finish_reason: 'length' }))
      to.end()
    })
    await using engine = engineOn('openai', upstream.url)
    expect(await collect(engine)).toContainEqual(finish('length'))
  })

  test('fails with upstream_error for finish reason abort', async () => {
    await expect(eventsOf('openai', [delta({ content: 'a' }), done('abort')])).rejects.toMatchObject({
      code: 'upstream_error',
    })
  })
})

describe('a streamed or whole response of an Anthropic upstream', () => {
  const start = {
    type: 'message_start',
    message: { usage: { input_tokens: 4, cache_read_input_tokens: 3, output_tokens: 1 } },
  }
  const open = (index: number, content_block: object) => ({ type: 'content_block_start', index, content_block })
  const delta = (index: number, fields: object) => ({ type: 'content_block_delta', index, delta: fields })
  const close = (index: number) => ({ type: 'content_block_stop', index })
  const end = (fields: object, counts: object = { output_tokens: 4 }) => [
    { type: 'message_delta', delta: fields, usage: counts },
    { type: 'message_stop' },
  ]

  test('yields reasoning, text and tool calls from its content blocks', async () => {
    const events = await eventsOf('anthropic', [
      start,
      open(0, { type: 'thinking', thinking: '', signature: '' }),
      delta(0, { type: 'thinking_delta', thinking: 'Hm.' }),
      delta(0, { type: 'signature_delta', signature: 'sig' }),
      close(0),
      open(1, { type: 'redacted_thinking', data: 'opaque' }),
      close(1),
      open(2, { type: 'text', text: '' }),
      delta(2, { type: 'text_delta', text: 'Look.' }),
      close(2),
      open(3, { type: 'tool_use', id: 'toolu_1', name: 'weather', input: {} }),
      delta(3, { type: 'input_json_delta', partial_json: '' }),
      delta(3, { type: 'input_json_delta', partial_json: '{"city":' }),
      delta(3, { type: 'input_json_delta', partial_json: '"Oslo"}' }),
      close(3),
      open(4, { type: 'tool_use', id: 'toolu_2', name: 'clock', input: {} }),
      close(4),
      ...end({ stop_reason: 'tool_use' }, { output_tokens: 4, cache_creation_input_tokens: 2 }),
    ])
    expect(events).toEqual([
      { type: 'reasoning', choice: 0, text: 'Hm.' },
      { type: 'reasoning', choice: 0, text: '', signature: 'sig' },
      { type: 'reasoning', choice: 0, text: '', redacted: 'opaque' },
      { type: 'text', choice: 0, text: 'Look.' },
      { type: 'tool_call', choice: 0, call: 0, id: 'toolu_1', name: 'weather' },
      { type: 'tool_arguments', choice: 0, call: 0, text: '{"city":' },
      { type: 'tool_arguments', choice: 0, call: 0, text: '"Oslo"}' },
      { type: 'tool_call', choice: 0, call: 1, id: 'toolu_2', name: 'clock' },
      { type: 'tool_arguments', choice: 0, call: 1, text: '{}' },
      finish('tool_calls'),
      usage({ cached_tokens: 3, cache_write_tokens: 2 }),
    ])
  })

  test('yields equal events whether it is whole or streamed', async () => {
    const answer = {
      type: 'message',
      content: [
        { type: 'thinking', thinking: 'Hm.', signature: 'sig' },
        { type: 'text', text: 'Look.' },
        { type: 'tool_use', id: 'toolu_1', name: 'weather', input: { city: 'Oslo' } },
      ],
      stop_reason: 'tool_use',
      usage: { input_tokens: 9, output_tokens: 4 },
    }
    expect(await eventsOf('anthropic', answer)).toEqual([
      { type: 'reasoning', choice: 0, text: 'Hm.' },
      { type: 'reasoning', choice: 0, text: '', signature: 'sig' },
      { type: 'text', choice: 0, text: 'Look.' },
      { type: 'tool_call', choice: 0, call: 0, id: 'toolu_1', name: 'weather' },
      { type: 'tool_arguments', choice: 0, call: 0, text: '{"city":"Oslo"}' },
      finish('tool_calls'),
      usage(),
    ])
  })

  test.each([
    [{ stop_reason: 'end_turn' }, finish('stop')],
    [{ stop_reason: 'max_tokens' }, finish('length')],
    [{ stop_reason: 'stop_sequence', stop_sequence: 'END' }, finish('stop', { stop_sequence: 'END' })],
    [{ stop_reason: 'refusal' }, finish('content_filter')],
    [{ stop_reason: 'model_context_window_exceeded' }, finish('length', { context_full: true })],
  ])('yields the matching finish event for %j', async (fields, expected) => {
    expect((await eventsOf('anthropic', [start, ...end(fields)])).at(-2)).toEqual(expected)
  })
})

describe('the token count of an upstream', () => {
  const request = ask({ dialect: 'anthropic', max_tokens: 5, tools: [WEATHER] })

  test('is requested from an Anthropic upstream with the prompt in the format of the Messages API', async () => {
    await using upstream = await startUpstream((_call, answer) => answer.json({ input_tokens: 14 }))
    await using engine = engineOn('anthropic', upstream.url)
    expect(await engine.countTokens?.(request, options())).toBe(14)
    const [call] = upstream.calls
    expect(call?.path).toBe('/v1/messages/count_tokens')
    expect(call?.body).toEqual({
      model: 'm1',
      messages: [{ role: 'user', content: 'Say hello.' }],
      tools: [{ name: 'weather', description: 'Tells the weather', input_schema: WEATHER.parameters }],
    })
  })

  test('is undefined if the server responds with status 404, 405, 501 or 503', async () => {
    for (const status of [404, 405, 501, 503]) {
      await using upstream = await startUpstream((_call, answer) => answer.json({}, status))
      await using engine = engineOn('anthropic', upstream.url)
      expect(await engine.countTokens?.(request, options())).toBeUndefined()
    }
  })

  test('is undefined after a timeout if the server does not respond', async () => {
    const timeout = AbortSignal.timeout
    const spy = vi.spyOn(AbortSignal, 'timeout').mockImplementation((ms) => timeout(ms === 10_000 ? 50 : ms))
    await using upstream = await startUpstream(() => {})
    await using engine = engineOn('anthropic', upstream.url)
    const { signal } = new AbortController()
    expect(await engine.countTokens?.(request, options(signal))).toBeUndefined()
    expect(signal.aborted).toBe(false)
    spy.mockRestore()
  })

  test('is not available for an OpenAI upstream', async () => {
    await using engine = engineOn('openai', 'http://127.0.0.1:1')
    expect(engine.countTokens).toBeUndefined()
  })
})
