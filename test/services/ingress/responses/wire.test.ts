/*
 * Tests with requests of real clients to the Responses API (docs/guides/responses.md, Tools and Items). The service forwards them to
 * upstreams of this API and of other APIs.
 */

import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { type ScriptedUpstream, startUpstream } from '../../../support/processes/upstream.ts'
import { ECHO_MODEL, type Stack, startStack } from '../../../support/stack.ts'

type Json = Record<string, unknown>

const EMPTY = { type: 'object', properties: {} }
const PATCH = {
  type: 'custom',
  name: 'apply_patch',
  description: 'Edits files.',
  format: { type: 'grammar', syntax: 'lark', definition: 'start: "a"' },
}
const NAMESPACE = {
  type: 'namespace',
  name: 'mcp__x',
  description: 'Tools of x',
  tools: [{ type: 'function', name: 'g', parameters: EMPTY }],
}

let responses: ScriptedUpstream
let chat: ScriptedUpstream
let stack: Stack
beforeAll(async () => {
  responses = await startUpstream()
  chat = await startUpstream()
  const capabilities = { reasoning: true, images: true, files: true, audio: true }
  const far = { type: 'openai', api: 'responses', base_url: `${responses.url}/v1` }
  stack = await startStack({
    models: [
      ECHO_MODEL,
      { id: 'far', aliases: ['gpt-5-codex'], engine: far, capabilities },
      { id: 'chat', engine: { type: 'openai', base_url: `${chat.url}/v1` }, capabilities },
    ],
  })
})
afterAll(async () => {
  await stack[Symbol.asyncDispose]()
  await responses[Symbol.asyncDispose]()
  await chat[Symbol.asyncDispose]()
})

async function post(body: Json, init?: RequestInit): Promise<Json> {
  const answer = await stack.post('/v1/responses', { store: false, ...body }, init)
  const json = (await answer.json()) as Json
  expect(answer.status, `status of the response ${JSON.stringify(json)}`).toBe(200)
  return json
}

/** Sends a streamed request, and returns the events of the response in order. */
async function stream(body: Json): Promise<Json[]> {
  const answer = await stack.post('/v1/responses', { store: false, stream: true, ...body })
  const text = await answer.text()
  expect(answer.status, `status of the response ${text}`).toBe(200)
  return text.split('\n\n').flatMap((frame) => {
    const data = frame.split('\n').find((line) => line.startsWith('data: '))
    return data && data !== 'data: [DONE]' ? [JSON.parse(data.slice('data: '.length)) as Json] : []
  })
}

/** Returns the body of an upstream response with these output items. */
function answerOf(output: readonly Json[], fields: Json = {}): Json {
  const usage = { input_tokens: 3, output_tokens: 2, total_tokens: 5 }
  return { id: 'resp_1', object: 'response', status: 'completed', output, usage, ...fields }
}

const message = (text: string, fields: Json = {}) => ({
  type: 'message',
  id: 'msg_1',
  role: 'assistant',
  status: 'completed',
  content: [{ type: 'output_text', text, annotations: [], logprobs: [] }],
  ...fields,
})

describe('the Responses API for an in-process model', () => {
  const call = (type: string, fields: Json) => [
    { role: 'user', content: 'go' },
    { type, call_id: 'c1', ...fields },
    { type: `${type}_output`, call_id: 'c1', output: 'ok' },
  ]

  test.each<Json>([
    { client_metadata: { session_id: 'x' } },
    { access_programs: { cyber: 'x' } },
    { some_field_of_next_month: [1, { a: null }] },
    { tools: [NAMESPACE] },
    { tools: [PATCH] },
    { tools: [{ type: 'web_search', external_web_access: true }] },
    { tools: ['local_shell', 'shell', 'apply_patch', 'tool_search', 'image_generation'].map((type) => ({ type })) },
    { tools: [{ type: 'mcp', server_label: 'x', server_url: 'https://example.com' }, { type: 'type_of_next_month' }] },
    { tools: [{ type: 'mcp', server_label: 'x' }], tool_choice: { type: 'mcp', server_label: 'x' } },
    { tools: [PATCH], tool_choice: { type: 'custom', name: 'apply_patch' } },
    { reasoning: { effort: 'low', summary: 'none' } },
    { reasoning: { effort: 'effort_of_next_month' } },
    { include: ['reasoning.encrypted_content', 'include.of.next.month'] },
    { service_tier: 'tier_of_next_month', text: { verbosity: 'verbosity_of_next_month' } },
    { input: call('custom_tool_call', { name: 'apply_patch', input: 'x' }) },
    { input: call('local_shell_call', { action: { type: 'exec', command: ['ls'] } }) },
    { input: call('shell_call', { action: { commands: ['ls'] } }) },
    { input: call('tool_search_call', { arguments: { query: 'x' } }) },
    { input: call('item_of_next_month', { status: 'completed' }) },
    {
      input: ['hi', 'again'].map((text) => ({
        type: 'message',
        role: 'user',
        content: [{ type: 'input_text', text }],
      })),
    },
    { input: [{ role: 'user', content: [{ type: 'part_of_next_month', text: 'hi' }] }] },
    {
      input: [
        { role: 'user', content: 'hi' },
        { type: 'compaction', encrypted_content: 'x' },
      ],
    },
    {
      input: [
        { role: 'user', content: 'hi' },
        { type: 'image_generation_call', id: 'ig_1', result: 'AAAA' },
      ],
    },
    {
      input: [
        { role: 'user', content: 'hi' },
        { type: 'web_search_call', status: 'completed', action: { type: 'open_page', url: 'https://example.com' } },
      ],
    },
  ])('accepts a request with the field of a newer client: %j', async (body) => {
    const { status } = await post({ model: 'echo-1', input: 'hi', ...body })
    expect(status).toBe('completed')
  })

  test('offers the functions of a namespace, and names the namespace in a call', async () => {
    const input = '!echo call=g'
    const { output } = await post({ model: 'echo-1', input, tools: [NAMESPACE] })
    const called = expect.objectContaining({ type: 'function_call', name: 'g', namespace: 'mcp__x' })
    expect(output).toContainEqual(called)
    const events = await stream({ model: 'echo-1', input, tools: [NAMESPACE] })
    expect(events.filter(({ type }) => type === 'response.output_item.done').map(({ item }) => item)).toContainEqual(
      called,
    )
  })

  test('offers a custom tool as a function with one text parameter, and returns a custom tool call', async () => {
    const input = '!echo call=apply_patch'
    const { output } = await post({ model: 'echo-1', input, tools: [PATCH] })
    const called = {
      type: 'custom_tool_call',
      name: 'apply_patch',
      input: expect.any(String),
      call_id: expect.any(String),
    }
    expect(output).toContainEqual(expect.objectContaining(called))
    const events = await stream({ model: 'echo-1', input, tools: [PATCH] })
    const types = events.map(({ type }) => type)
    expect(types).toContain('response.custom_tool_call_input.delta')
    expect(types.filter((type) => String(type).startsWith('response.function_call'))).toEqual([])
    const done = events.find(({ type }) => type === 'response.custom_tool_call_input.done')
    expect(String(done?.input)).not.toContain('"input"')
  })

  test('distinguishes two functions with equal names by their namespaces', async () => {
    const other = { ...NAMESPACE, name: 'mcp__y' }
    const tools = [NAMESPACE, other]
    const { output } = await post({ model: 'echo-1', input: '!echo call=mcp__y__g', tools })
    const [item] = (output as Json[]).filter(({ type }) => type === 'function_call')
    expect(item).toMatchObject({ name: 'g', namespace: 'mcp__y' })
    const result = { type: 'function_call_output', call_id: item?.call_id, output: 'done' }
    expect(
      await post({ model: 'echo-1', input: [{ role: 'user', content: 'go' }, item, result], tools }),
    ).toMatchObject({
      status: 'completed',
    })
  })
})

describe('an upstream of the Responses API', () => {
  const INPUT = [
    { type: 'message', role: 'developer', content: [{ type: 'input_text', text: 'Rules.' }] },
    {
      type: 'message',
      role: 'user',
      content: [
        { type: 'input_text', text: 'Look.', prompt_cache_breakpoint: { mode: 'explicit' } },
        { type: 'input_image', image_url: 'data:image/png;base64,iVBORw0KGgo=', detail: 'high' },
        { type: 'part_of_next_month', data: 'x' },
      ],
    },
    {
      type: 'reasoning',
      id: 'rs_foreign',
      summary: [
        { type: 'summary_text', text: 'One.' },
        { type: 'summary_text', text: 'Two.' },
      ],
      encrypted_content: 'gAAAA',
    },
    message('On it.', { id: 'msg_foreign', phase: 'commentary' }),
    message('Still.', { id: 'msg_second', phase: 'commentary' }),
    { type: 'function_call', id: 'fc_foreign', call_id: 'c1', name: 'g', namespace: 'mcp__x', arguments: '{"a":1}' },
    { type: 'custom_tool_call', id: 'ctc_foreign', call_id: 'c2', name: 'apply_patch', input: '*** Begin "Patch"' },
    { type: 'function_call_output', call_id: 'c1', output: 'one' },
    { type: 'custom_tool_call_output', call_id: 'c2', output: 'two' },
    { type: 'local_shell_call', id: 'lsh_1', call_id: 'c3', action: { type: 'exec', command: ['ls'], env: {} } },
    { type: 'local_shell_call_output', call_id: 'c3', output: 'files' },
    {
      type: 'web_search_call',
      id: 'ws_68f0c1d2e3f4a5b6c7d8e9f0a1b2c3d4e5f6a7b8c9d0e1f2',
      status: 'completed',
      action: { type: 'search', query: 'q' },
    },
    { type: 'compaction', id: 'cmp_1', encrypted_content: 'gBBBB' },
    { type: 'item_of_next_month', anything: { at: ['all'] } },
    { type: 'message', role: 'user', content: 'Go on.' },
  ]
  const TOOLS = [
    { type: 'function', name: 'f', description: 'F', parameters: EMPTY, strict: true, defer_loading: true },
    { type: 'function', name: 'h', parameters: EMPTY },
    PATCH,
    NAMESPACE,
    { type: 'web_search', external_web_access: true },
    { type: 'mcp', server_label: 'x', server_url: 'https://example.com/mcp', require_approval: 'never' },
    { type: 'tool_of_next_month', options: { deep: true } },
  ]

  test('receives items, tools and fields unchanged', async () => {
    responses.script((_call, to) => to.json(answerOf([message('Done.')])))
    const body = {
      input: INPUT,
      tools: TOOLS,
      tool_choice: { type: 'tool_of_next_month' },
      parallel_tool_calls: true,
      reasoning: { effort: 'effort_of_next_month', summary: 'auto', context: 'all' },
      text: { verbosity: 'low', format: { type: 'json_schema', name: 'a', schema: EMPTY, strict: true } },
      include: ['web_search_call.action.sources'],
      client_metadata: { session_id: 'x' },
      context_management: [{ type: 'compaction' }],
      moderation: { model: 'm' },
      prompt_cache_key: 'k',
      field_of_next_month: { a: [1] },
      max_tool_calls: 3,
      truncation: 'auto',
      service_tier: 'flex',
      safety_identifier: 's',
    }
    await post({ model: 'far', ...body })
    const sent = responses.calls.at(-1)?.body
    const { include, ...others } = body
    expect(sent).toMatchObject({ ...others, input: expect.anything(), model: 'far', store: false })
    expect(sent?.include).toEqual([...include, 'reasoning.encrypted_content'])
    // Sluice may send content that is a single text part as a string, because every server accepts a string.
    const simplified = INPUT.map((item) => {
      const content = (item as { content?: unknown }).content
      return item.role === 'developer' && Array.isArray(content) ? { ...item, content: 'Rules.' } : item
    })
    expect(sent?.input).toEqual(simplified)
    expect(sent?.tools).toEqual(TOOLS)
  })

  test('receives no fields that control its engine, unless models.yaml allows them', async () => {
    responses.script((_call, to) => to.json(answerOf([message('Done.')])))
    await post({ model: 'far', input: 'hi', priority: -1000, cache_salt: 'x', kv_transfer_params: {}, other: 1 })
    const sent = responses.calls.at(-1)?.body ?? {}
    expect(Object.keys(sent).filter((name) => ['priority', 'cache_salt', 'kv_transfer_params'].includes(name))).toEqual(
      [],
    )
    expect(sent.other).toBe(1)
  })

  test.each<Json>([
    { tools: [{ type: 'mcp', server_label: 'x', server_url: 'http://169.254.169.254/mcp' }] },
    { tools: [{ type: 'tool_of_next_month', options: { endpoint: 'localhost:8000' } }] },
    { field_of_next_month: { callback_url: 'https://127.0.0.1/' } },
    { input: [{ role: 'user', content: [{ type: 'part_of_next_month', image_url: 'https://example.com/a.png' }] }] },
    {
      input: [
        { type: 'item_of_next_month', page: { url: 'http://[::1]/' } },
        { role: 'user', content: 'hi' },
      ],
    },
  ])('receives no URL of a private network or of a disallowed remote image: %j', async (body) => {
    const answer = await stack.post('/v1/responses', { model: 'far', input: 'hi', store: false, ...body })
    expect(answer.status).toBe(400)
  })

  const OUTPUT = [
    {
      type: 'reasoning',
      id: 'rs_1',
      status: 'completed',
      summary: [
        { type: 'summary_text', text: 'One.' },
        { type: 'summary_text', text: 'Two.' },
      ],
    },
    message('Let me look.', { phase: 'commentary' }),
    message('Found it.', {
      id: 'msg_2',
      phase: 'final_answer',
      content: [
        {
          type: 'output_text',
          text: 'Found it.',
          annotations: [{ type: 'url_citation', url: 'https://example.com', title: 'E', start_index: 0, end_index: 5 }],
          logprobs: [],
        },
      ],
    }),
    {
      type: 'web_search_call',
      id: 'ws_1',
      status: 'completed',
      action: { type: 'search', query: 'q', queries: ['q'] },
    },
    { type: 'item_of_next_month', id: 'inm_1', status: 'completed', data: { a: [1] } },
    { type: 'custom_tool_call', id: 'ctc_1', status: 'completed', call_id: 'c1', name: 'apply_patch', input: 'x "y"' },
    {
      type: 'function_call',
      id: 'fc_1',
      status: 'completed',
      call_id: 'c2',
      name: 'g',
      namespace: 'mcp__x',
      arguments: '{"a":1}',
    },
  ]
  const FIELDS = {
    service_tier: 'flex',
    field_of_next_month: { a: 1 },
    usage: {
      input_tokens: 9,
      input_tokens_details: { cached_tokens: 4, cache_write_tokens: 0, audio_tokens: 1 },
      output_tokens: 4,
      output_tokens_details: { reasoning_tokens: 2 },
      total_tokens: 13,
      counted_next_month: 7,
    },
  }

  /** Removes the ids that Sluice assigns to output items, because they differ in each response. */
  const unnamed = (output: unknown) =>
    (output as Json[]).map(({ id, ...item }) => (OWN_NAMES.has(String(item.type)) ? item : { id, ...item }))
  const OWN_NAMES = new Set(['message', 'reasoning', 'function_call', 'custom_tool_call'])

  /** Returns the events of a stream whose content equals the whole response. */
  function framesOf(answer: Json): Json[] {
    const frames: Json[] = [{ type: 'response.created', response: { ...answer, status: 'in_progress', output: [] } }]
    for (const [output_index, item] of (answer.output as Json[]).entries()) {
      const at = { output_index, item_id: item.id }
      const empty = { content: [], summary: [], arguments: '', input: '' }
      const shown = Object.fromEntries(
        Object.entries(item).map(([name, value]) => [name, name in empty ? empty[name as 'input'] : value]),
      )
      frames.push({ type: 'response.output_item.added', ...at, item: shown })
      const parts = (item.content ?? []) as { text: string; annotations: unknown[] }[]
      for (const [content_index, part] of parts.entries()) {
        for (const delta of part.text) frames.push({ type: 'response.output_text.delta', ...at, content_index, delta })
        for (const annotation of part.annotations) {
          frames.push({ type: 'response.output_text.annotation.added', ...at, content_index, annotation })
        }
        frames.push({ type: 'response.output_text.done', ...at, content_index, text: part.text })
      }
      for (const [summary_index, { text }] of ((item.summary ?? []) as { text: string }[]).entries()) {
        frames.push({ type: 'response.reasoning_summary_text.delta', ...at, summary_index, delta: text })
      }
      if (item.arguments) frames.push({ type: 'response.function_call_arguments.delta', ...at, delta: item.arguments })
      if (item.input) frames.push({ type: 'response.custom_tool_call_input.delta', ...at, delta: item.input })
      frames.push({ type: 'response.output_item.done', ...at, item })
    }
    return [...frames, { type: 'response.completed', response: answer }]
  }

  test('returns items of any type without streaming', async () => {
    const answer = answerOf(OUTPUT, FIELDS)
    responses.script((_call, to) => to.json(answer))
    const told = await post({ model: 'gpt-5-codex', input: 'hi', tools: TOOLS })
    expect(told.model).toBe('gpt-5-codex')
    expect(unnamed(told.output)).toEqual(unnamed(OUTPUT))
    expect(told).toMatchObject(FIELDS)
  })

  test('returns items of any type with streaming, and the next request accepts all of them', async () => {
    const answer = answerOf(OUTPUT, FIELDS)
    responses.script((_call, to) => {
      to.open()
      for (const frame of framesOf(answer)) to.frame(frame, String(frame.type))
      to.end()
    })
    const events = await stream({ model: 'far', input: 'hi', tools: TOOLS })
    const end = events.at(-1)
    expect(end?.type).toBe('response.completed')
    const { output, ...fields } = (end as Json).response as Json
    expect(unnamed(output)).toEqual(unnamed(OUTPUT))
    expect(fields).toMatchObject(FIELDS)
    const done = events.filter(({ type }) => type === 'response.output_item.done').map(({ item }) => item)
    expect(unnamed(done)).toEqual(unnamed(OUTPUT))
    responses.script((_call, to) => to.json(answerOf([message('Done.')])))
    const results = [
      { type: 'custom_tool_call_output', call_id: 'c1', output: 'x' },
      { type: 'function_call_output', call_id: 'c2', output: 'y' },
    ]
    for (const model of ['far', 'echo-1']) {
      const input = [{ role: 'user', content: 'hi' }, ...(output as Json[]), ...results]
      await post({ model, input, tools: TOOLS })
    }
    const sent = responses.calls.at(-1)?.body.input as Json[]
    expect(unnamed(sent.slice(1, -2))).toEqual(
      unnamed(OUTPUT).map((item) =>
        item.phase === 'commentary'
          ? expect.objectContaining({ phase: 'commentary' })
          : expect.objectContaining({ type: item.type }),
      ),
    )
  })

  test("receives the caller's session headers and headers that models.yaml allows, but not the key", async () => {
    responses.script((_call, to) => to.json(answerOf([message('Done.')])))
    const traceparent = `00-${'a'.repeat(32)}-${'b'.repeat(16)}-01`
    const headers = { 'x-session-id': 's1', traceparent, tracestate: 'a=b', baggage: 'k=v', 'x-other': 'no' }
    await post({ model: 'far', input: 'hi' }, { headers })
    const sent = responses.calls.at(-1)?.headers
    expect(sent).toMatchObject({ 'x-session-id': 's1', traceparent, tracestate: 'a=b' })
    expect(sent?.baggage).toBeUndefined()
    expect(sent?.['x-other']).toBeUndefined()
    expect(sent?.authorization).toBeUndefined()
  })

  test.each([
    ['text only in response.completed', [{ type: 'response.completed', response: answerOf([message('Hello')]) }]],
    ['no output_index', framesOf(answerOf([message('Hello')])).map(({ output_index: _, ...frame }) => frame)],
    [
      'neither output_index nor item ids',
      framesOf(answerOf([message('Hello')])).map(({ output_index: _, item_id: __, ...frame }) => frame),
    ],
    ['[DONE] instead of response.completed', [...framesOf(answerOf([message('Hello')])).slice(0, -1), '[DONE]']],
  ])('may send a stream that has %s', async (_name, frames) => {
    responses.script((_call, to) => {
      to.open()
      for (const frame of frames) to.frame(frame)
      to.end()
    })
    const events = await stream({ model: 'far', input: 'hi' })
    const end = events.at(-1)?.response as Json
    expect([end.status, (end.output as Json[])[0]?.content]).toMatchObject(['completed', [{ text: 'Hello' }]])
  })

  test('fails the call if it reports output tokens without output', async () => {
    responses.script((_call, to) => to.json(answerOf([], { usage: { input_tokens: 3, output_tokens: 20 } })))
    const answer = await stack.post('/v1/responses', { model: 'far', input: 'hi', store: false })
    expect(answer.status).toBe(502)
  })
})

describe('an upstream of chat completions behind the Responses API', () => {
  test('receives the tools of additional_tools input items as functions', async () => {
    const namespace = { type: 'namespace', name: 'functions', tools: [{ ...PATCH, name: 'exec' }] }
    const input = [
      { type: 'additional_tools', id: 'at_1', role: 'developer', tools: [namespace] },
      { role: 'user', content: 'hi' },
    ]
    chat.script((_call, to) => to.json(callOf('exec', '{"input":"ls"}')))
    const { output } = await post({ model: 'chat', input })
    expect(chat.calls.at(-1)?.body.tools).toMatchObject([{ type: 'function', function: { name: 'exec' } }])
    expect(output).toMatchObject([{ type: 'custom_tool_call', name: 'exec', namespace: 'functions', input: 'ls' }])
    responses.script((_call, to) => to.json(answerOf([message('Done.')])))
    await post({ model: 'far', input })
    expect(responses.calls.at(-1)?.body).toMatchObject({ input: [input[0], expect.anything()] })
    expect(responses.calls.at(-1)?.body.tools).toBeUndefined()
  })

  const callOf = (name: string, text: string): Json => ({
    choices: [
      {
        index: 0,
        message: {
          role: 'assistant',
          tool_calls: [{ id: 'c1', type: 'function', function: { name, arguments: text } }],
        },
        finish_reason: 'tool_calls',
      },
    ],
    usage: { prompt_tokens: 3, completion_tokens: 2, total_tokens: 5 },
  })

  test('receives custom tools and namespaces as functions, and the caller receives the original tool types', async () => {
    const tools = [PATCH, NAMESPACE, { type: 'web_search' }, { type: 'local_shell' }]
    chat.script((_call, to) => to.json(callOf('apply_patch', '{"input":"*** Begin Patch"}')))
    const patched = await post({
      model: 'chat',
      input: 'hi',
      tools,
      client_metadata: { a: 'b' },
      prompt_cache_key: 'k',
    })
    const sent = chat.calls.at(-1)?.body as { tools: { type: string; function: { name: string } }[] } & Json
    expect(sent.tools.map(({ type, function: { name } }) => [type, name])).toEqual([
      ['function', 'apply_patch'],
      ['function', 'g'],
    ])
    expect(sent).toMatchObject({ prompt_cache_key: 'k' })
    expect(sent.client_metadata).toBeUndefined()
    const [called] = patched.output as Json[]
    expect(called).toMatchObject({
      type: 'custom_tool_call',
      name: 'apply_patch',
      input: '*** Begin Patch',
      call_id: 'c1',
    })

    chat.script((_call, to) => to.json(callOf('g', '{}')))
    const output = { type: 'custom_tool_call_output', call_id: 'c1', output: 'ok' }
    const next = await post({ model: 'chat', input: [{ role: 'user', content: 'hi' }, called, output], tools })
    expect(next.output).toMatchObject([{ type: 'function_call', name: 'g', namespace: 'mcp__x' }])
    expect(chat.calls.at(-1)?.body.messages).toMatchObject([
      { role: 'user' },
      {
        role: 'assistant',
        tool_calls: [{ id: 'c1', function: { name: 'apply_patch', arguments: '{"input":"*** Begin Patch"}' } }],
      },
      { role: 'tool', tool_call_id: 'c1', content: 'ok' },
    ])
  })

  test('receives earlier reasoning as text, even if the client returns only encrypted reasoning', async () => {
    const thought = { role: 'assistant', content: 'Done.', reasoning_content: 'Hm.' }
    const answer = { choices: [{ index: 0, message: thought, finish_reason: 'stop' }] }
    chat.script((_call, to) => to.json(answer))
    const include = ['reasoning.encrypted_content']
    const { output } = await post({ model: 'chat', input: 'hi', include })
    const [{ encrypted_content }] = output as [Json]
    expect(encrypted_content).toEqual(expect.any(String))
    const reasoning = { type: 'reasoning', summary: [], encrypted_content }
    const input = [{ role: 'user', content: 'hi' }, reasoning, message('Done.'), { role: 'user', content: 'go on' }]
    await post({ model: 'chat', input, include })
    expect(chat.calls.at(-1)?.body.messages).toMatchObject([{}, { reasoning_content: 'Hm.' }, {}])
  })

  test('receives shortened tool names, and the caller receives the original names', async () => {
    const name = `mcp__${'a_long_server_'.repeat(4)}.${'tool'.repeat(4)}`
    expect(name.length).toBeGreaterThan(64)
    chat.script((call, to) => {
      const [tool] = call.body.tools as { function: { name: string } }[]
      to.json(callOf(tool?.function.name ?? '', '{}'))
    })
    const tools = [{ type: 'function', name, parameters: EMPTY }]
    const { output } = await post({ model: 'chat', input: 'hi', tools, tool_choice: { type: 'function', name } })
    expect(output).toMatchObject([{ type: 'function_call', name }])
    const sent = chat.calls.at(-1)?.body as { tool_choice: { function: { name: string } } }
    expect(sent.tool_choice.function.name).toMatch(/^[A-Za-z0-9_-]{1,64}$/)
  })
})
