/* Tests responses of an upstream with the Messages API. A caller of this API must receive equal messages with and without streaming. */
import { describe, expect, test } from 'vitest'
import type { EncodeContext } from '#schemas/job.ts'
import type { GenerateEvent } from '#schemas/kinds/generate.ts'
import type { Message } from '#schemas/messages.ts'
import { messagesAnswer } from '#shared/kinds/generate/messages/stream.ts'
import { encodeMessage } from '#shared/kinds/generate/messages/whole.ts'
import { runToEnd } from '#shared/lib/yielding.ts'
import { ask, collect, engineOn, failure } from '../../support/engine-calls.ts'
import { startUpstream } from '../../support/processes/upstream.ts'
import { messageOf } from '../../support/wire/messages.ts'

const start = (usage: object = { input_tokens: 5, output_tokens: 1 }, more: object = {}) => ({
  type: 'message_start',
  message: { id: 'msg_1', type: 'message', role: 'assistant', content: [], model: 'm', usage, ...more },
})
const open = (index: number | undefined, content_block: object) => ({
  type: 'content_block_start',
  index,
  content_block,
})
const delta = (index: number | undefined, fields: object) => ({ type: 'content_block_delta', index, delta: fields })
const close = (index: number | undefined) => ({ type: 'content_block_stop', index })
const end = (
  fields: object = { stop_reason: 'end_turn' },
  usage: object = { output_tokens: 7 },
  more: object = {},
) => ({
  ...{ type: 'message_delta', delta: fields, usage },
  ...more,
})
const stop = { type: 'message_stop' }
const words = (index: number, text: string) => [
  open(index, { type: 'text', text: '' }),
  delta(index, { type: 'text_delta', text }),
  close(index),
]

const CONTEXT: EncodeContext = {
  ...{ request_id: 'req_1', call_id: 'abc', created_at: 1, model: 'm1', include_usage: true, version: '2023-06-01' },
}

async function eventsOf(answer: object | readonly unknown[], dialect = 'anthropic'): Promise<GenerateEvent[]> {
  await using upstream = await startUpstream((_call, to) => {
    if (!Array.isArray(answer)) return to.json(answer)
    to.open()
    for (const frame of answer) to.frame(frame)
    to.end()
  })
  await using engine = engineOn('anthropic', upstream.url)
  return await collect(engine, ask({ dialect, stream: Array.isArray(answer) }))
}

/** Returns the message that a caller receives. The message without streaming and the joined stream must be equal. */
async function messageFrom(answer: object | readonly unknown[], version = CONTEXT.version): Promise<Message> {
  const events = await eventsOf(answer)
  const context = { ...CONTEXT, version }
  const stream = messagesAnswer.open?.(context)
  const frames = [...events.flatMap((event) => stream?.push(event) ?? []), ...(stream?.end() ?? [])]
  const joined = messageOf(frames.map(({ data }) => JSON.parse(data)))
  const whole = JSON.parse(JSON.stringify(runToEnd(encodeMessage(events, context)))) as Message
  expect(joined).toEqual(whole)
  return whole
}

async function failureOf(answer: object | readonly unknown[]) {
  await using upstream = await startUpstream((_call, to) => {
    if (!Array.isArray(answer)) return to.json(answer)
    to.open()
    for (const frame of answer) to.frame(frame)
    to.end()
  })
  await using engine = engineOn('anthropic', upstream.url)
  return await failure(engine, ask({ dialect: 'anthropic', stream: Array.isArray(answer) }))
}

describe('content blocks of an Anthropic upstream', () => {
  test('keep the order and the deltas even if the blocks overlap in the stream', async () => {
    const { content } = await messageFrom([
      start(),
      open(0, { type: 'text', text: '' }),
      open(1, { type: 'tool_use', id: 'toolu_1', name: 'f', input: {} }),
      open(2, { type: 'tool_use', id: 'toolu_2', name: 'g', input: {} }),
      delta(2, { type: 'input_json_delta', partial_json: '{"b":' }),
      delta(1, { type: 'input_json_delta', partial_json: '{"a":1}' }),
      delta(0, { type: 'text_delta', text: 'Hello' }),
      delta(2, { type: 'input_json_delta', partial_json: '2}' }),
      close(1),
      close(2),
      close(0),
      end({ stop_reason: 'tool_use' }),
      stop,
    ])
    expect(content).toEqual([
      { type: 'text', text: 'Hello' },
      { type: 'tool_use', id: 'toolu_1', name: 'f', input: { a: 1 } },
      { type: 'tool_use', id: 'toolu_2', name: 'g', input: { b: 2 } },
    ])
  })

  test.each([
    ['without stops', [start(), open(0, { type: 'text', text: 'He' }), delta(0, { text: 'llo' }), end(), stop]],
    ['without a start', [start(), delta(0, { type: 'text_delta', text: 'Hello' }), close(0), end(), stop]],
    [
      'without indices',
      [start(), open(undefined, { type: 'text', text: '' }), delta(undefined, { text: 'Hello' }), end()],
    ],
    ['without message_start', [...words(0, 'Hello'), end(), stop]],
    ['without message_stop', [start(), ...words(0, 'Hello'), end()]],
    ['with [DONE] before message_stop', [start(), ...words(0, 'Hello'), end(), '[DONE]', stop]],
    ['with [DONE] alone', [start(), ...words(0, 'Hello'), '[DONE]']],
    [
      'as a whole message in the stream',
      [{ type: 'message', content: 'Hello', usage: { input_tokens: 5, output_tokens: 7 } }],
    ],
    ['as content of message_start', [start(undefined, { content: [{ type: 'text', text: 'Hello' }] }), end(), stop]],
  ])('are forwarded as one text if the stream sends them %s', async (_, frames) => {
    expect(await messageFrom(frames)).toMatchObject({
      content: [{ type: 'text', text: 'Hello' }],
      stop_reason: 'end_turn',
    })
  })

  test('fail with upstream_error if the stream ends before a stop reason', async () => {
    expect(await failureOf([start(), ...words(0, 'Hello')])).toMatchObject({ code: 'upstream_error', status: 502 })
  })

  test.each([
    [{}, [], '{}'],
    [{ a: 1 }, [], '{"a":1}'],
    ['{"a":1}', [], '{"a":1}'],
    ['', [], '{}'],
    [null, [], '{}'],
    [{ a: 1 }, ['{"a"', ':1}'], '{"a":1}'],
    [{}, [{ a: 1 }], '{"a":1}'],
  ])('with the tool input %j and the deltas %j yield the arguments %s', async (input, deltas, expected) => {
    const { content } = await messageFrom([
      start(),
      open(0, { type: 'tool_use', id: 'toolu_1', name: 'f', input }),
      ...deltas.map((partial_json) => delta(0, { type: 'input_json_delta', partial_json })),
      close(0),
      end({ stop_reason: 'tool_use' }),
      stop,
    ])
    expect(content).toEqual([{ type: 'tool_use', id: 'toolu_1', name: 'f', input: JSON.parse(expected) }])
  })

  test('of tool calls get new ids if ids are missing or duplicate', async () => {
    const use = (id: unknown, name: unknown = 'f') => ({ type: 'tool_use', id, name, input: {} })
    const answer = (content: object[]) => ({ type: 'message', content, stop_reason: 'tool_use' })
    const { content } = await messageFrom(answer([use('a'), use('a'), use(''), use(7)]))
    expect(content.map((block) => (block as { id: string }).id)).toEqual([
      'a',
      'toolu_abc_1',
      'toolu_abc_2',
      'toolu_abc_3',
    ])
    for (const name of ['', null, 7]) {
      expect(await failureOf(answer([use('a', name)]))).toMatchObject({ code: 'upstream_error', status: 502 })
    }
  })

  test('of thinking without text stay separate, each with its own signature', async () => {
    const content = [
      { type: 'thinking', thinking: '', signature: 'one' },
      { type: 'thinking', thinking: '', signature: 'two' },
      { type: 'redacted_thinking', data: 'three' },
      { type: 'thinking', thinking: 'Hm.', signature: '' },
      { type: 'text', text: 'A' },
    ]
    expect((await messageFrom({ type: 'message', content, stop_reason: 'end_turn' })).content).toEqual(content)
  })

  test('of unknown types are forwarded unchanged, from whole and streamed responses', async () => {
    const search = { type: 'server_tool_use', id: 'srvtoolu_1', name: 'web_search', caller: { type: 'direct' } }
    const found = {
      type: 'web_search_tool_result',
      tool_use_id: 'srvtoolu_1',
      content: [{ type: 'web_search_result', url: 'u' }],
    }
    const content = [
      { ...search, input: { query: 'x' } },
      found,
      { type: 'compaction', content: 'Sum.', encrypted_content: null },
      { type: 'of_next_month', list: [1, 2], text: 'ab' },
      {
        type: 'tool_use',
        id: 'toolu_1',
        name: 'left_click',
        input: {},
        toolset_name: 'computer',
        caller: { type: 'direct' },
      },
      { type: 'text', text: 'A' },
    ]
    const whole = await messageFrom({ type: 'message', content, stop_reason: 'end_turn' })
    const streamed = await messageFrom([
      start(),
      open(0, { ...search, input: {} }),
      delta(0, { type: 'input_json_delta', partial_json: '{"query":' }),
      delta(0, { type: 'input_json_delta', partial_json: '"x"}' }),
      close(0),
      open(1, found),
      close(1),
      open(2, { type: 'compaction', content: null, encrypted_content: null }),
      delta(2, { type: 'compaction_delta', content: 'Sum.' }),
      close(2),
      open(3, { type: 'of_next_month', list: [1], text: 'a' }),
      delta(3, { type: 'of_next_month_delta', list: [2], text: 'b' }),
      close(3),
      open(4, content[4] as object),
      close(4),
      ...words(5, 'A'),
      end(),
      stop,
    ])
    expect(whole.content).toEqual(content)
    expect(streamed.content).toEqual(content)
  })

  test('are dropped for a caller of the OpenAI API if they have no OpenAI form', async () => {
    const content = [
      { type: 'server_tool_use', id: 's', name: 'web_search', input: {} },
      { type: 'text', text: 'A', citations: [{}] },
    ]
    const events = await eventsOf({ type: 'message', content, stop_reason: 'pause_turn', container: {} }, 'openai')
    expect(events.map(({ type }) => type)).toEqual(['start', 'text', 'finish', 'usage'])
  })
})

describe('citations of an Anthropic upstream', () => {
  const cite = (cited_text: string) => ({ type: 'char_location', cited_text, document_index: 0 })
  const content = [
    { type: 'text', text: 'I think: ' },
    { type: 'text', text: 'Grass is green', citations: [cite('green'), cite('grass')] },
    { type: 'text', text: '.' },
  ]

  test('remain part of the cited text block in whole and streamed responses', async () => {
    expect((await messageFrom({ type: 'message', content, stop_reason: 'end_turn' })).content).toEqual(content)
    const streamed = await messageFrom([
      start(),
      ...words(0, 'I think: '),
      open(1, { type: 'text', text: '', citations: [] }),
      delta(1, { type: 'citations_delta', citation: cite('green') }),
      delta(1, { type: 'text_delta', text: 'Grass is green' }),
      delta(1, { type: 'citations_delta', citation: cite('grass') }),
      close(1),
      ...words(2, '.'),
      end(),
      stop,
    ])
    expect(streamed.content).toEqual(content)
  })
})

describe('the end of an Anthropic response', () => {
  test('forwards stop_reason pause_turn, the container and unknown fields', async () => {
    const container = { id: 'container_1', expires_at: '2026-01-01T00:00:00Z', skills: null }
    const context_management = { applied_edits: [] }
    const expected = { stop_reason: 'pause_turn', container, context_management, new_field: 1 }
    expect(await messageFrom({ type: 'message', content: [{ type: 'text', text: 'A' }], ...expected })).toMatchObject(
      expected,
    )
    const { context_management: beside, ...fields } = expected
    expect(
      await messageFrom([start(), ...words(0, 'A'), end(fields, undefined, { context_management: beside }), stop]),
    ).toMatchObject(expected)
  })

  test('forwards a refusal without output as a valid response with stop_details', async () => {
    const stop_details = { type: 'refusal', category: 'cyber', explanation: 'x' }
    const usage = { input_tokens: 5, output_tokens: 0 }
    const answer = { type: 'message', content: [], stop_reason: 'refusal', stop_details, usage }
    expect(await messageFrom(answer, '2026-10-21')).toMatchObject({ content: [], stop_reason: 'refusal', stop_details })
  })

  test.each([
    [{ type: 'message', content: [], stop_reason: 'end_turn', usage: { output_tokens: 7 } }],
    [{ type: 'message', content: [{ type: 'text', text: '' }], stop_reason: 'end_turn', usage: { output_tokens: 7 } }],
    [{ type: 'message', content: [], stop_reason: 'tool_use', usage: { output_tokens: 2 } }],
    [[start(), end(), stop]],
  ])('fails with upstream_error if usage reports output tokens but no output arrived: %j', async (answer) => {
    expect(await failureOf(answer)).toMatchObject({ code: 'upstream_error', status: 502 })
  })

  test('accepts an empty response that reports at most two output tokens', async () => {
    const usage = { input_tokens: 5, output_tokens: 2 }
    expect(await messageFrom({ type: 'message', content: [], stop_reason: 'end_turn', usage })).toMatchObject({
      content: [],
    })
  })
})

describe('usage of an Anthropic response', () => {
  const counts = { input_tokens: 50, output_tokens: 1, cache_read_input_tokens: 10, cache_creation_input_tokens: 4 }
  const details = {
    ...{ cache_creation: { ephemeral_5m_input_tokens: 3, ephemeral_1h_input_tokens: 1 }, service_tier: 'priority' },
    ...{ inference_geo: 'eu', speed: 'fast', server_tool_use: { web_search_requests: 2, web_fetch_requests: 0 } },
  }

  test('is forwarded with all details, even if the details arrive in message_start', async () => {
    const events = await eventsOf([start({ ...counts, ...details }), ...words(0, 'A'), end(), stop])
    const stream = messagesAnswer.open?.(CONTEXT)
    const frames = events.flatMap((event) => stream?.push(event) ?? [])
    expect(JSON.parse(frames[0]?.data ?? '').message.usage).toEqual({ ...counts, ...details })
    expect(JSON.parse(stream?.end()[0]?.data ?? '').usage).toEqual({
      ...{ ...counts, output_tokens: 7 },
      server_tool_use: details.server_tool_use,
    })
    const message = await messageFrom([start({ ...counts, ...details }), ...words(0, 'A'), end(), stop])
    expect(message.usage).toEqual({ ...counts, ...details, output_tokens: 7 })
  })

  test.each([
    [{ input_tokens: 0, output_tokens: 7, cache_read_input_tokens: 0, cache_creation_input_tokens: 0 }],
    [{ input_tokens: null, output_tokens: 7, cache_creation: null, service_tier: null }],
    [{ output_tokens: 7, cache_creation: { ephemeral_5m_input_tokens: 0 } }],
  ])('keeps the counts of message_start if the final report is %j', async (later) => {
    const frames = [start({ ...counts, ...details }), ...words(0, 'A'), end(undefined, later), stop]
    expect((await messageFrom(frames)).usage).toEqual({ ...counts, ...details, output_tokens: 7 })
  })

  test('is estimated if all reported counts are zero', async () => {
    const frames = [start({ input_tokens: 0, output_tokens: 0 }), ...words(0, 'Hello there'), end(undefined, {}), stop]
    const { usage } = await messageFrom(frames)
    expect(usage.input_tokens).toBeGreaterThan(0)
    expect(usage.output_tokens).toBeGreaterThan(0)
  })
})
