import { createAnthropic } from '@ai-sdk/anthropic'
import Anthropic from '@anthropic-ai/sdk'
import { generateText, streamText, tool } from 'ai'
import { streamText as streamText6, tool as tool6 } from 'ai-6'
import { createAnthropic as createAnthropic3 } from 'ai-sdk-anthropic-3'
import Anthropic0 from 'anthropic-sdk-0'
import fc from 'fast-check'
import { describe, expect, test } from 'vitest'
import { z } from 'zod'
import type { EncodeContext } from '#schemas/job.ts'
import { type GenerateEvent, GenerateRequest, type Turn } from '#schemas/kinds/generate.ts'
import { ModelConfig } from '#schemas/models.ts'

import {
  decodeCount as decodeCountTokens,
  decodeMessages,
  type MessagesContext,
  parseVersion,
} from '#services/ingress/endpoints/messages/decode.ts'
import { SSE_KEEP_ALIVE } from '#services/ingress/http/reply.ts'
import { messagesErrorBody } from '#shared/kinds/errors.ts'
import { messagesAnswer } from '#shared/kinds/generate/messages/stream.ts'
import { encodeMessage } from '#shared/kinds/generate/messages/whole.ts'
import { ServiceError } from '#shared/lib/error.ts'
import { runToEnd } from '#shared/lib/yielding.ts'
import { doAll } from '../../../support/pieces.ts'
import { sseFailure, sseOf, sseStream } from '../../../support/sse.ts'

const ABLE = { capabilities: { images: true, files: true, reasoning: true } }
const OLD = '2023-06-01'
const NEW = '2026-10-21'

function context(model: object = {}, more: Partial<MessagesContext> = {}): MessagesContext {
  const config = ModelConfig.parse({ id: 'm1', engine: { type: 'echo' }, ...model })
  const getModel = (id: string) => {
    if (id === config.id) return config
    throw new ServiceError('model_not_found', `The model '${id}' does not exist.`, { param: 'model' })
  }
  return { getModel, strictTurns: true, remoteImages: false, ...more }
}

const hello = { model: 'm1', max_tokens: 64, messages: [{ role: 'user', content: 'Hi' }] }

/**
 * Decodes a request body. A worker in another process gets the decoded request as JSON, so the function checks that the conversion to JSON
 * and back changes nothing.
 */
function decode(body: unknown, given: MessagesContext = context()): GenerateRequest {
  const request = doAll(decodeMessages(body, given))
  const read = GenerateRequest.parse(JSON.parse(JSON.stringify(request)))
  expect(read).toEqual(request)
  return read
}

function decodeCount(body: unknown, given: MessagesContext): GenerateRequest {
  return doAll(decodeCountTokens(body, given))
}

/** Returns the status and message of the error if the body is refused, otherwise undefined. */
function problem(
  body: unknown,
  given: MessagesContext = context(),
  read: (body: unknown, given: MessagesContext) => GenerateRequest = decode,
): [number, string] | undefined {
  try {
    read(body, given)
  } catch (error) {
    if (error instanceof ServiceError) return [error.status, messagesErrorBody(error, 'r').error.message]
    throw error
  }
  return undefined
}

const turns = (messages: unknown[], given?: MessagesContext) => decode({ ...hello, messages }, given).turns
const text = (given: string) => ({ type: 'text', text: given })
const use = (id: string, name = 'f') => ({ type: 'tool_use', id, name, input: { a: 1 } })
const result = (id: string, content?: unknown) => ({ type: 'tool_result', tool_use_id: id, content })
const user = (content: unknown) => ({ role: 'user', content })
const assistant = (content: unknown) => ({ role: 'assistant', content })

const BLANK_LINE = { type: 'native', dialect: 'anthropic', value: {}, text: '\n\n' }

/** Returns the text of a message as an upstream of another API receives it. */
const textFor = (turn: Turn | undefined) => turn?.parts.map((part) => ('text' in part ? part.text : '')).join('')

describe('decoding of a messages request', () => {
  test('sets the defaults of a minimal request', () => {
    expect(decode(hello)).toEqual({
      dialect: 'anthropic',
      model: 'm1',
      turns: [{ role: 'user', parts: [{ type: 'text', text: 'Hi' }] }],
      stream: false,
      max_tokens: 64,
      n: 1,
      stop: [],
      logprobs: false,
      tools: [],
    })
  })

  test('treats null as absent in every optional field', () => {
    const fields = ['system', 'temperature', 'top_p', 'top_k', 'stop_sequences', 'stream', 'tools', 'tool_choice']
    const others = ['metadata', 'thinking', 'output_config', 'service_tier', 'container']
    const nulls = Object.fromEntries([...fields, ...others].map((field) => [field, null]))
    expect(decode({ ...hello, ...nulls })).toEqual(decode(hello))
  })

  test('forwards sampling fields, the user and unknown fields, and limits max_tokens', () => {
    const body = { ...hello, temperature: 0.5, top_k: 40, stop_sequences: ['END'], metadata: { user_id: 'u' } }
    const limited = context({ limits: { max_output_tokens: 10 } })
    expect(decode({ ...body, container: 'c', service_tier: 'auto' }, limited)).toMatchObject({
      ...{ temperature: 0.5, top_k: 40, stop: ['END'], user: 'u', max_tokens: 10 },
      extra: { container: 'c', service_tier: 'auto' },
    })
    expect(decode({ ...hello, top_k: 0 }).top_k).toBeUndefined()
  })

  test('joins system blocks by blank lines only for upstreams of other APIs', () => {
    const cache_control = { type: 'ephemeral' }
    const system = decode({ ...hello, system: [{ ...text('A'), cache_control }, text('B')] }).turns[0]
    expect(system?.parts).toEqual([{ ...text('A'), extra: { cache_control } }, BLANK_LINE, text('B')])
    expect(textFor(system)).toBe('A\n\nB')
  })

  test("maps a tool use and its result to a call and a tool message before the user's text", () => {
    const image = { type: 'image', source: { type: 'base64', media_type: 'image/png', data: 'iVBORw0K' } }
    const failed = { ...result('t2', [text('no'), image]), is_error: true, cache_control: { type: 'ephemeral' } }
    const messages = [
      user('Hi'),
      assistant([text('Let me see.'), use('t1'), use('t2', 'g')]),
      user([text('Here:'), result('t1'), failed]),
    ]
    expect(turns(messages, context(ABLE)).slice(1)).toEqual([
      {
        role: 'assistant',
        parts: [
          text('Let me see.'),
          { type: 'tool_call', id: 't1', name: 'f', arguments: '{"a":1}' },
          { type: 'tool_call', id: 't2', name: 'g', arguments: '{"a":1}' },
        ],
      },
      { role: 'tool', call_id: 't1', parts: [] },
      {
        role: 'tool',
        call_id: 't2',
        is_error: true,
        parts: [text('no'), { type: 'image', url: 'data:image/png;base64,iVBORw0K' }],
        extra: { cache_control: { type: 'ephemeral' } },
      },
      { role: 'user', parts: [text('Here:')] },
    ])
  })

  test('maps text documents and search results to text, and other documents to files', () => {
    const document = (source: object, more: object = {}) => ({ type: 'document', source, ...more })
    const content = [
      document({ type: 'text', media_type: 'text/plain', data: 'D1' }, { title: 'T', cache_control: { type: 'e' } }),
      document({ type: 'content', content: [text('D2')] }),
      { type: 'search_result', source: 'https://a.test', title: 'S', content: [text('x'), text('y')] },
      document({ type: 'base64', media_type: 'application/pdf', data: 'JVBERi0=' }, { title: 'a.pdf' }),
    ]
    expect(turns([user(content)], context(ABLE))[0]?.parts).toEqual([
      { ...text('T\n\nD1'), extra: { cache_control: { type: 'e' } } },
      text('D2'),
      text('S\nhttps://a.test\n\nx\n\ny'),
      { type: 'file', data: 'data:application/pdf;base64,JVBERi0=', filename: 'a.pdf' },
    ])
  })

  test('maps thinking blocks to reasoning', () => {
    const thought = { type: 'thinking', thinking: 'hm', signature: 's' }
    const blocks = [thought, { type: 'redacted_thinking', data: 'd' }, text('A')]
    expect(turns([user('Q'), assistant(blocks), user('R')])[1]?.parts).toEqual([
      { type: 'reasoning', text: 'hm', signature: 's' },
      { type: 'reasoning', text: '', redacted: 'd' },
      text('A'),
    ])
  })

  test.each([
    [{ type: 'auto' }, { type: 'auto' }, undefined],
    [{ type: 'any', disable_parallel_tool_use: true }, { type: 'required' }, false],
    [{ type: 'tool', name: 'f' }, { type: 'tool', name: 'f' }, undefined],
    [{ type: 'none' }, { type: 'none' }, undefined],
  ])('maps tool_choice %j to %j', (tool_choice, choice, parallel) => {
    const input_schema = { type: 'object', properties: { a: { type: 'integer' } }, required: ['a'] }
    const tools = [{ name: 'f', description: 'd', input_schema, cache_control: { type: 'ephemeral' } }]
    const request = decode({ ...hello, tools, tool_choice })
    expect([request.tool_choice, request.parallel_tool_calls]).toEqual([choice, parallel])
    expect(request.tools).toEqual([
      { name: 'f', description: 'd', parameters: input_schema, extra: { cache_control: { type: 'ephemeral' } } },
    ])
  })

  test('forwards thinking and effort to reasoning models, and structured output to all models', () => {
    const format = { type: 'json_schema', schema: { type: 'object' } }
    const thinking = { type: 'enabled', budget_tokens: 1024, display: 'omitted' }
    const body = { ...hello, max_tokens: 2048, thinking, output_config: { format, effort: 'high' } }
    expect(decode(body)).toMatchObject({ response_format: format, extra: { thinking: { display: 'omitted' } } })
    expect(decode(body).reasoning).toBeUndefined()
    expect(decode(body, context(ABLE)).reasoning).toEqual({ enabled: true, budget_tokens: 1024, effort: 'high' })
    expect(decode({ ...hello, thinking: { type: 'adaptive' } }, context(ABLE)).reasoning).toMatchObject({
      adaptive: true,
    })
    expect(decode({ ...hello, thinking: { type: 'disabled' } }, context(ABLE)).reasoning).toEqual({ enabled: false })
  })

  test('accepts repeated roles and later system messages if the upstream allows them', () => {
    const lenient = context({}, { strictTurns: false })
    const cached = { ...text('C'), cache_control: { type: 'ephemeral' } }
    const messages = [
      user('A'),
      user('B'),
      { role: 'system', content: [cached], clear_at: 'never' },
      assistant([use('t1')]),
      user([result('t1')]),
    ]
    const decoded = decode({ ...hello, system: 'S', messages }, lenient).turns
    expect(decoded.map((turn) => turn.role)).toEqual(['system', 'user', 'user', 'system', 'assistant', 'tool'])
    expect(decoded[3]).toEqual({
      role: 'system',
      parts: [{ ...text('C'), extra: { cache_control: { type: 'ephemeral' } } }],
      extra: { clear_at: 'never' },
    })
  })

  test("accepts system messages if the caller's anthropic-beta header names the feature", () => {
    const messages = [user('A'), { role: 'system', content: 'S' }, assistant('B'), user('C')]
    expect(problem({ ...hello, messages }, context())).toMatchObject([400, expect.any(String)])
    const asking = context({}, { beta: 'x,mid-conversation-tool-changes-2026-07-01' })
    expect(decode({ ...hello, messages }, asking).turns.map((turn) => turn.role)).toEqual([
      ...['user', 'system', 'assistant', 'user'],
    ])
  })

  test('accepts a body without max_tokens for count_tokens', () => {
    const { max_tokens: _, ...body } = hello
    const request = decodeCount({ ...body, system: 'S' }, context())
    expect(request.turns.map((turn) => turn.role)).toEqual(['system', 'user'])
    expect(request.max_tokens).toBeUndefined()
    expect(problem({ model: 'm1' }, context(), decodeCount)).toEqual([400, 'messages: Field required'])
  })
})

describe('an invalid messages request', () => {
  /** The exact text of this error matters. Agents such as Claude Code recognise it, and move the system message to the field `system`. */
  const SYSTEM_REFUSED = "messages.1.role: role 'system' is not supported in messages; use the top-level system field"
  const tools = [{ name: 'f', input_schema: { type: 'object' } }]
  const image = { type: 'image', source: { type: 'base64', media_type: 'image/png', data: 'iVBORw0K' } }
  const pdf = { type: 'document', source: { type: 'base64', media_type: 'application/pdf', data: 'JVBERi0=' } }

  test.each([
    [{ max_tokens: undefined }, 'max_tokens: Field required'],
    [{ max_tokens: 0 }, 'max_tokens: Input should be greater than or equal to 1'],
    [{ temperature: 1.2 }, 'temperature: Input should be less than or equal to 1'],
    [
      { temperature: 1, top_p: 1 },
      'temperature: temperature and top_p cannot both be specified. Use only one of them.',
    ],
    [{ stop_sequences: ['', 'b'] }, 'stop_sequences.0: String should have at least 1 character, not 0'],
    [{ stop_sequences: [...'abcdef'] }, 'stop_sequences: List should have at most 5 items, not 6'],
    [{ messages: [] }, 'messages: List should have at least 1 item, not 0'],
    [{ messages: [assistant('A')] }, 'messages.0.role: the first message must use the "user" role'],
    [
      { messages: [user('A'), user('B')] },
      'messages: roles must alternate between "user" and "assistant", but found multiple "user" roles in a row',
    ],
    [{ messages: [user('A'), { role: 'system', content: 'S' }] }, SYSTEM_REFUSED],
    [
      { messages: [{ role: 'tool', content: 'x' }] },
      "messages.0.role: Input should be 'user' or 'assistant' or 'system', not 'tool'",
    ],
    [{ messages: [user([image])] }, "messages.0.content.0: The model 'm1' does not read images."],
    [
      { messages: [user('A')], tools: [{ type: 'function', function: { name: 'f', parameters: {} } }] },
      "tools.0: This tool has the format of OpenAI's API. Send name, description and input_schema, without type.",
    ],
    [{ messages: [user([pdf])] }, "messages.0.content.0: The model 'm1' does not read files."],
    [
      { messages: [user([{ type: 'image', source: { type: 'file', file_id: 'x' } }])] },
      "messages.0.content.0.source.type: Input should be 'base64' or 'url', not 'file'",
    ],
    [
      { messages: [user('A'), assistant([use('t1')]), user('B')] },
      "messages.1.content.0: tool_use 't1' has no tool_result block in the message after it",
    ],
    [
      { messages: [user('A'), assistant([use('t1')])] },
      "messages.1.content.0: tool_use 't1' has no tool_result block in the message after it",
    ],
    [
      { messages: [user([result('t9')])] },
      "messages.0.content.0.tool_use_id: no tool_use block with the id 't9' in the message before",
    ],
    [
      { messages: [user('A'), assistant([use('t1')]), user([result('t1'), result('t1')])] },
      "messages.2.content.1.tool_use_id: the tool_use 't1' has more than one tool_result",
    ],
    [
      { messages: [user('A'), assistant([use('t1')]), user('B'), assistant([use('t2')]), user([result('t1')])] },
      "messages.1.content.0: tool_use 't1' has no tool_result block in the message after it",
    ],
    [
      { messages: [user('A'), assistant([use('t1')]), user([result('t1')]), assistant('C'), user([result('t1')])] },
      "messages.4.content.0.tool_use_id: no tool_use block with the id 't1' in the message before",
    ],
    [
      { messages: [user('A'), assistant([use('t1'), use('t1')])] },
      'messages.1.content.1.id: tool_use ids must be unique',
    ],
    [
      { messages: [user('A'), assistant('The answer is ')] },
      'messages: final assistant content cannot end with trailing whitespace',
    ],
    [{ tools: [...tools, ...tools] }, "tools.1.name: Tool names must be unique, but 'f' occurs twice."],
    [
      { tools: [{ name: 'f', input_schema: { type: 'array' } }] },
      "tools.0.input_schema.type: Input should be 'object', not 'array'",
    ],
    [
      { tool_choice: { type: 'any' } },
      'tool_choice: A tool choice that forces a call requires tools, but the request has none.',
    ],
    [
      { tools, tool_choice: { type: 'tool', name: 'g' } },
      "tool_choice.name: The tool 'g' is not among the tools of the request.",
    ],
    [
      { thinking: { type: 'enabled', budget_tokens: 100 } },
      'thinking.budget_tokens: Input should be greater than or equal to 1024',
    ],
    [
      { max_tokens: 1024, thinking: { type: 'enabled', budget_tokens: 1024 } },
      'thinking.budget_tokens: Input should be less than max_tokens',
    ],
  ])('is refused with 400 for %j', (change, message) => {
    expect(problem({ ...hello, ...change })).toEqual([400, message])
  })

  test('with an unknown model is refused with 404 and the model name', () => {
    expect(problem({ ...hello, model: 'no-such-model' })).toEqual([404, 'model: no-such-model'])
  })

  test('whose fields contain random JSON is refused with 400 or 404, or accepted if the JSON is valid', () => {
    const full = {
      ...hello,
      system: [text('S')],
      messages: [user([text('A'), image]), assistant([text('x'), use('t1')]), user([result('t1', [text('r')])])],
      tools,
      tool_choice: { type: 'tool', name: 'f' },
      thinking: { type: 'adaptive' },
      output_config: { format: { type: 'json_schema', schema: {} } },
      metadata: { user_id: 'u' },
    }
    // The generated value may contain a negative zero, which JSON lacks. The conversion to JSON and back removes it.
    const sentJson = fc.jsonValue({ maxDepth: 4 }).map((value) => JSON.parse(JSON.stringify(value)) as unknown)
    fc.assert(
      fc.property(fc.constantFrom(...pathsOf(full)), sentJson, (path, value) => {
        const body = replaced(full, path, value)
        for (const read of [decode, decodeCount]) {
          expect([undefined, 400, 404]).toContain(problem(body, context(ABLE), read)?.[0])
        }
      }),
      { numRuns: 2_000 },
    )
  })
})

/** Returns the path of every value inside a JSON value, and the empty path of the JSON value itself. */
function pathsOf(value: unknown, path: string[] = []): string[][] {
  const inner = typeof value === 'object' && value !== null ? Object.entries(value) : []
  return [path, ...inner.flatMap(([key, child]) => pathsOf(child, [...path, key]))]
}

function replaced(value: unknown, path: readonly string[], put: unknown): unknown {
  const [key, ...rest] = path
  if (key === undefined) return put
  const copy = structuredClone(value) as Record<string, unknown>
  copy[key] = replaced(copy[key], rest, put)
  return copy
}

describe('the anthropic-version header', () => {
  test.each([
    [{}, OLD],
    [{ 'vendor-version': '2024-01-01' }, '2024-01-01'],
    [{ 'vendor-version': '2024-01-01', 'anthropic-version': NEW }, NEW],
  ])('%j selects the version %s', (headers, version) => {
    expect(parseVersion(headers)).toBe(version)
  })

  test.each(['', '2023', '2023-1-1', '2024-02-31', '2023-05-31', 'latest'])('%j is refused', (version) => {
    expect(() => parseVersion({ 'anthropic-version': version })).toThrow(ServiceError)
  })
})

const start: GenerateEvent = { type: 'start', model: 'm1', input_tokens: 12 }
const stop: GenerateEvent = { type: 'finish', choice: 0, reason: 'stop' }
const usage: GenerateEvent = { type: 'usage', usage: { input_tokens: 12, output_tokens: 3 } }
const say = (given: string): GenerateEvent => ({ type: 'text', choice: 0, text: given })
const think = (given: string, more: object = {}): GenerateEvent => ({
  type: 'reasoning',
  choice: 0,
  text: given,
  ...more,
})
const begin = (call: number, name: string, id = ''): GenerateEvent => ({ type: 'tool_call', choice: 0, call, id, name })
const argue = (call: number, given: string): GenerateEvent => ({ type: 'tool_arguments', choice: 0, call, text: given })
const finish = (reason: string, more: object = {}) => ({ type: 'finish', choice: 0, reason, ...more }) as GenerateEvent
const agent = [
  start,
  think('hm', {}),
  think('', { signature: 'sig' }),
  say('Let me '),
  say('see.'),
  begin(0, 'weather', 'call_7'),
  argue(0, '{"city":'),
  argue(0, '"Oslo"}'),
  begin(1, 'now'),
  finish('tool_calls'),
  usage,
]

function encoding(version: string): EncodeContext {
  const request = decode(hello)
  return { request_id: 'req_1', call_id: 'abc', created_at: 1, model: request.model, include_usage: true, version }
}

function frames(events: readonly GenerateEvent[], version = OLD): string {
  return sseStream(messagesAnswer.open?.(encoding(version)), events, 'anthropic')
}

interface Frame {
  type: string
  index?: number
  delta?: Record<string, unknown>
  content_block?: { type: string }
}

function parsed(given: string): Frame[] {
  return given
    .split('\n\n')
    .filter((frame) => frame !== '')
    .map((frame) => {
      const [name, data] = frame.split('\n')
      const read = JSON.parse((data ?? '').slice('data: '.length)) as Frame
      expect(name).toBe(`event: ${read.type}`)
      return read
    })
}

const whole = (events: readonly GenerateEvent[], version = OLD) => runToEnd(encodeMessage(events, encoding(version)))

describe('a messages response without streaming', () => {
  test('has exactly the documented fields for the older anthropic-version', () => {
    expect(whole([start, say('Hel'), say('lo.'), stop, usage])).toEqual({
      id: 'msg_abc',
      type: 'message',
      role: 'assistant',
      model: 'm1',
      content: [{ type: 'text', text: 'Hello.' }],
      stop_reason: 'end_turn',
      stop_sequence: null,
      usage: { input_tokens: 12, output_tokens: 3, cache_creation_input_tokens: 0, cache_read_input_tokens: 0 },
    })
  })

  test('has additional fields for the newer anthropic-version', () => {
    expect(whole([start, say('A'), begin(0, 'f', 't'), stop, usage], NEW)).toMatchObject({
      content: [
        { type: 'text', text: 'A', citations: null },
        { type: 'tool_use', id: 't', name: 'f', input: {}, caller: { type: 'direct' } },
      ],
      ...{ container: null, stop_details: null, diagnostics: null },
      usage: { cache_creation: null, service_tier: 'standard', output_tokens_details: null, speed: null },
    })
  })

  test('has its content blocks in the order in which they started', () => {
    const message = whole(agent)
    expect(message.stop_reason).toBe('tool_use')
    expect(message.content).toEqual([
      { type: 'thinking', thinking: 'hm', signature: 'sig' },
      { type: 'text', text: 'Let me see.' },
      { type: 'tool_use', id: 'call_7', name: 'weather', input: { city: 'Oslo' } },
      { type: 'tool_use', id: 'toolu_abc_1', name: 'now', input: {} },
    ])
  })

  test.each([
    [finish('stop'), 'end_turn', null],
    [finish('stop', { stop_sequence: 'END' }), 'stop_sequence', 'END'],
    [finish('length'), 'max_tokens', null],
    [finish('length', { context_full: true }), 'model_context_window_exceeded', null],
    [finish('content_filter'), 'refusal', null],
    [finish('tool_calls'), 'tool_use', null],
  ])('maps the finish reason %j to %s', (end, reason, sequence) => {
    const message = whole([start, say('a'), end, usage], NEW)
    expect([message.stop_reason, message.stop_sequence]).toEqual([reason, sequence])
    expect(message.stop_details).toEqual(
      reason === 'refusal' ? { type: 'refusal', category: null, explanation: null } : null,
    )
  })

  test('counts cached tokens separately', () => {
    const counted = { input_tokens: 10, output_tokens: 1, cached_tokens: 6, cache_write_tokens: 3 }
    expect(whole([start, stop, { type: 'usage', usage: counted }]).usage).toEqual({
      input_tokens: 1,
      output_tokens: 1,
      cache_creation_input_tokens: 3,
      cache_read_input_tokens: 6,
    })
  })

  test('has an empty tool input if the arguments were truncated', () => {
    expect(whole([start, begin(0, 'f', 't'), argue(0, '{"a":'), finish('length')]).content).toEqual([
      { type: 'tool_use', id: 't', name: 'f', input: {} },
    ])
    expect(() => whole([start, say('a')])).toThrow(ServiceError)
  })
})

describe('a messages response with streaming', () => {
  test('has exactly the frames of the API reference', () => {
    const counts = '"cache_creation_input_tokens":0,"cache_read_input_tokens":0}'
    expect(frames([start, say('Hel'), stop, usage])).toBe(
      [
        'event: message_start',
        `data: {"type":"message_start","message":{"id":"msg_abc","type":"message","role":"assistant","model":"m1","content":[],"stop_reason":null,"stop_sequence":null,"usage":{"input_tokens":12,"output_tokens":1,${counts}}}\n`,
        'event: content_block_start',
        'data: {"type":"content_block_start","index":0,"content_block":{"type":"text","text":""}}\n',
        'event: ping',
        'data: {"type":"ping"}\n',
        'event: content_block_delta',
        'data: {"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"Hel"}}\n',
        'event: content_block_stop',
        'data: {"type":"content_block_stop","index":0}\n',
        'event: message_delta',
        `data: {"type":"message_delta","delta":{"stop_reason":"end_turn","stop_sequence":null},"usage":{"input_tokens":12,"output_tokens":3,${counts}}\n`,
        'event: message_stop',
        'data: {"type":"message_stop"}\n\n',
      ].join('\n'),
    )
  })

  test('has additional fields in blocks and in the last frame for the newer anthropic-version', () => {
    const all = parsed(frames([start, say('A'), begin(0, 'f', 't'), stop, usage], NEW))
    expect(all.filter((frame) => frame.content_block).map((frame) => frame.content_block)).toEqual([
      { type: 'text', text: '', citations: null },
      { type: 'tool_use', id: 't', name: 'f', input: {}, caller: { type: 'direct' } },
    ])
    const end = all.find((frame) => frame.type === 'message_delta')
    expect(end?.delta).toEqual({ stop_reason: 'tool_use', stop_sequence: null, stop_details: null, container: null })
  })

  test('sends the signature of a thinking block as the last delta of the block', () => {
    const all = parsed(frames([start, think('a'), think('', { signature: 's' }), think('b'), stop]))
    expect(all.slice(1).map((frame) => [frame.index, frame.delta?.type ?? frame.type])).toEqual([
      [0, 'content_block_start'],
      [undefined, 'ping'],
      [0, 'thinking_delta'],
      [0, 'signature_delta'],
      [0, 'content_block_stop'],
      [1, 'content_block_start'],
      [1, 'thinking_delta'],
      [1, 'signature_delta'],
      [1, 'content_block_stop'],
      [undefined, 'message_delta'],
      [undefined, 'message_stop'],
    ])
  })

  test('sends redacted thinking as a block without deltas', () => {
    const all = parsed(frames([start, think('', { redacted: 'xyz' }), say('A'), stop]))
    expect(all[1]?.content_block).toEqual({ type: 'redacted_thinking', data: 'xyz' })
    expect(all[3]).toEqual({ type: 'content_block_stop', index: 0 })
  })

  test('starts the next tool call when the arguments of the previous tool call are complete', () => {
    const stream = messagesAnswer.open?.(encoding(OLD))
    for (const event of [start, begin(0, 'f', 'a'), argue(0, '{}')]) stream?.push(event)
    expect(sseOf(stream?.push(begin(1, 'g', 'b')) ?? [])).toContain('"id":"b"')
  })

  test('ends with an error frame without message_stop if the engine fails or sends no finish reason', () => {
    expect(sseFailure(new ServiceError('overloaded', 'Overloaded'), 'anthropic')).toBe(
      'event: error\ndata: {"type":"error","error":{"type":"overloaded_error","message":"Overloaded"},"request_id":"req_1"}\n\n',
    )
    expect(SSE_KEEP_ALIVE.anthropic).toBe('event: ping\ndata: {"type":"ping"}\n\n')
    expect(frames([start, say('a')])).not.toContain('message_stop')
  })

  test('sends interleaved tool calls as consecutive blocks with complete arguments', () => {
    const inputs = fc.array(fc.dictionary(fc.string({ unit: 'binary' }), fc.string()), { minLength: 1, maxLength: 4 })
    fc.assert(
      fc.property(inputs, fc.infiniteStream(fc.nat(1_000)), (given, random) => {
        const all = parsed(frames([start, ...interleaved(given, random), finish('tool_calls')]))
        expectSequential(all)
        const blocks = given.map((_, index) => {
          const own = all.filter((frame) => frame.index === index && frame.delta)
          return JSON.parse(own.map((frame) => frame.delta?.partial_json).join('') || '{}')
        })
        const wanted = JSON.parse(JSON.stringify(given), (_, value) => value) as object[]
        expect(blocks.map((block) => JSON.stringify(block))).toEqual(wanted.map((input) => JSON.stringify(input)))
      }),
    )
  })

  test('contains the complete text, and no delta splits a character', () => {
    const split = fc.array(fc.string({ unit: 'binary', maxLength: 6 }), { maxLength: 8 })
    fc.assert(
      fc.property(split, fc.infiniteStream(fc.nat(3)), (texts, cuts) => {
        const said = texts.join('').toWellFormed()
        const events = [start, ...cut(said, cuts).map(say), stop]
        const found = parsed(frames(events)).map((frame) => (frame.delta?.text as string) ?? '')
        expect(found.join('')).toBe(said)
        for (const delta of found) expect(delta.isWellFormed()).toBe(true)
        expect(whole(events).content).toEqual(said === '' ? [] : [{ type: 'text', text: said }])
      }),
    )
  })
})

/** Generates the events of parallel tool calls. The calls start in order, but pieces of their arguments are mixed at random. */
function interleaved(inputs: readonly object[], random: Iterator<number>): GenerateEvent[] {
  const left = inputs.map((input) => JSON.stringify(input))
  const events: GenerateEvent[] = []
  let begun = 0
  const draw = (bound: number) => (random.next().value as number) % bound
  while (begun < left.length || left.some((rest) => rest !== '')) {
    if (begun < left.length && draw(3) === 0) events.push(begin(begun, 'f', `t${begun++}`))
    if (begun === 0) continue
    const call = draw(begun)
    const length = 1 + draw(4)
    events.push(argue(call, (left[call] ?? '').slice(0, length)))
    left[call] = (left[call] ?? '').slice(length)
  }
  return events
}

/** Checks that the content blocks of a stream do not overlap: each block starts, gets its deltas and stops before the next index starts. */
function expectSequential(all: readonly Frame[]): void {
  let open = -1
  let isOpen = false
  for (const frame of all) {
    if (frame.type === 'content_block_start') {
      expect([isOpen, frame.index]).toEqual([false, open + 1])
      open += 1
      isOpen = true
    } else if (frame.index !== undefined) expect([isOpen, frame.index]).toEqual([true, open])
    if (frame.type === 'content_block_stop') isOpen = false
  }
  expect(isOpen).toBe(false)
}

/** Splits a text into pieces of 1 to 4 UTF-16 code units, also within surrogate pairs. */
function cut(given: string, lengths: Iterator<number>): string[] {
  const pieces: string[] = []
  for (let at = 0; at < given.length; ) {
    const length = 1 + (lengths.next().value as number)
    pieces.push(given.slice(at, at + length))
    at += length
  }
  return pieces
}

/** Returns a replacement for `fetch` that responds to every request with this body. */
function answering(body: string, type: string): typeof fetch {
  return async () => new Response(body, { headers: { 'content-type': type } })
}

const options = { apiKey: 'sk-test', baseURL: 'http://127.0.0.1:1', maxRetries: 0 }
const asked = { model: 'm1', max_tokens: 64, messages: [{ role: 'user' as const, content: 'Hi' }] }

describe.each([
  ['@anthropic-ai/sdk 1', Anthropic, NEW],
  ['@anthropic-ai/sdk 0', Anthropic0 as unknown as typeof Anthropic, OLD],
])('the stream helper of %s', (_, Client, version) => {
  test('assembles blocks and usage', async () => {
    const fetch = answering(frames(agent, version), 'text/event-stream; charset=utf-8')
    const message = await new Client({ ...options, fetch }).messages.stream(asked).finalMessage()
    expect(message.content).toMatchObject([
      { type: 'thinking', thinking: 'hm', signature: 'sig' },
      { type: 'text', text: 'Let me see.' },
      { type: 'tool_use', id: 'call_7', name: 'weather', input: { city: 'Oslo' } },
      { type: 'tool_use', id: 'toolu_abc_1', name: 'now', input: {} },
    ])
    expect(message.stop_reason).toBe('tool_use')
    expect(message.usage.output_tokens).toBe(3)
  })

  test('throws if the stream fails after its first delta', async () => {
    const stream = messagesAnswer.open?.(encoding(version))
    const said = [start, say('a')].flatMap((event) => stream?.push(event) ?? [])
    const failed = sseOf(said) + sseFailure(new ServiceError('overloaded', 'Busy'), 'anthropic')
    const client = new Client({ ...options, fetch: answering(failed, 'text/event-stream') })
    await expect(client.messages.stream(asked).finalMessage()).rejects.toThrow(/Busy/)
  })
})

describe('the Vercel AI SDK', () => {
  const inputs = [{ city: 'Oslo' }, {}]
  const fetchOf = (events: readonly GenerateEvent[]) => answering(frames(events), 'text/event-stream')
  const weather = z.object({ city: z.string() })

  test('reads messages responses with and without streaming in version 7', async () => {
    const tools = { weather: tool({ inputSchema: weather }), now: tool({ inputSchema: z.object({}) }) }
    const reading = (fetch: typeof globalThis.fetch) => createAnthropic({ ...options, fetch })('m1')
    const streamed = streamText({ model: reading(fetchOf(agent)), prompt: 'Hi', tools })
    const json = answering(JSON.stringify(whole(agent)), 'application/json')
    const once = await generateText({ model: reading(json), prompt: 'Hi', tools })
    expect((await streamed.toolCalls).map((call) => call.input)).toEqual(inputs)
    expect(once.toolCalls.map((call) => call.input)).toEqual(inputs)
    expect(await streamed.text).toBe('Let me see.')
    expect(await streamed.finishReason).toBe('tool-calls')
  })

  test('reads messages responses with streaming in version 6', async () => {
    const tools = { weather: tool6({ inputSchema: weather }), now: tool6({ inputSchema: z.object({}) }) }
    const model = createAnthropic3({ ...options, fetch: fetchOf(agent) })('m1')
    const streamed = streamText6({ model, prompt: 'Hi', tools })
    expect((await streamed.toolCalls).map((call) => call.input)).toEqual(inputs)
    expect(await streamed.reasoningText).toBe('hm')
  })
})
