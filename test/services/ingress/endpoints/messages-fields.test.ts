/*
 * Tests of every field that the types of `@anthropic-ai/sdk` declare for messages. Each field passes from a caller to an upstream of the
 * same API, or back. The tests cover requests, whole responses and streams. A field that a new version of the SDK adds is tested as soon as the SDK
 * is installed.
 *
 * Exceptions: docs/reference/compatibility.md, Fields of messages that do not arrive unchanged.
 */

import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { type Answer, type ScriptedUpstream, startUpstream } from '../../../support/processes/upstream.ts'
import { type Stack, startStack } from '../../../support/stack.ts'
import { type Frame, messageOf } from '../../../support/wire/messages.ts'
import { SdkTypes } from '../../../support/wire/sdk-types.ts'

const VALUES = {
  ...{ data: 'QUJD', url: 'https://93.184.215.14/a', signature: 'c2ln', tool_use_id: 'toolu_1', budget_tokens: 1_024 },
  ...{
    input: { a: 1 },
    name: 'f',
    id: 'toolu_1',
    max_tokens: 2_048,
    schema: { type: 'object', properties: {} },
    properties: { a: { type: 'string' } },
    type: 'x',
  },
}
const types = new SdkTypes('node_modules/@anthropic-ai/sdk/resources/messages/messages.d.ts', VALUES)
const beta = new SdkTypes('node_modules/@anthropic-ai/sdk/resources/beta/messages/messages.d.ts', VALUES)

/** Response fields that Sluice sets itself, so they differ from those of the upstream. */
const OWN = ['id', 'model']
const VERSION = '2026-10-21'

let stack: Stack
let upstream: ScriptedUpstream
let answer: object = {}
beforeAll(async () => {
  upstream = await startUpstream((call, to) => {
    if (call.path.endsWith('count_tokens')) return to.json({ input_tokens: 3 })
    if (call.body.stream === true) streamed(answer as Json, to)
    else to.json(answer)
  })
  const capabilities = { images: true, files: true, tools: true, json: true, reasoning: true }
  const model = { id: 'm1', engine: { type: 'anthropic', base_url: upstream.url }, capabilities }
  stack = await startStack({ models: [model], settings: { REMOTE_IMAGES: 'true' } })
  answer = message([{ type: 'text', text: 'A' }])
})
afterAll(async () => {
  await stack?.[Symbol.asyncDispose]()
  await upstream?.[Symbol.asyncDispose]()
})

type Json = Record<string, unknown>

const FUNCTION = { name: 'f', input_schema: { type: 'object', properties: {} } }
const HELLO = [{ role: 'user', content: 'Hi' }]

function message(content: unknown[], more: object = {}): Json {
  const usage = { input_tokens: 9, output_tokens: 9, cache_read_input_tokens: 1, cache_creation_input_tokens: 1 }
  return {
    id: 'msg_1',
    type: 'message',
    role: 'assistant',
    model: 'm1',
    content,
    stop_reason: 'end_turn',
    usage,
    ...more,
  }
}

/** Sends a whole response to the service as a stream of the Messages API. */
function streamed(whole: Json, to: Answer): void {
  const { content, stop_reason, stop_sequence, stop_details, container, usage, context_management, ...start } = whole
  const { input_transformations, ...fields } = start
  to.open()
  to.frame({ type: 'message_start', message: { ...fields, content: [], usage, stop_reason: null } })
  for (const [index, block] of (content as Json[]).entries()) {
    const { deltas, opening } = piecesOf(block)
    to.frame({ type: 'content_block_start', index, content_block: opening })
    for (const delta of deltas) to.frame({ type: 'content_block_delta', index, delta })
    to.frame({ type: 'content_block_stop', index })
  }
  const delta = { stop_reason, stop_sequence, stop_details, container }
  to.frame({ type: 'message_delta', delta, usage, context_management, input_transformations })
  to.frame({ type: 'message_stop' })
  to.end()
}

function piecesOf(block: Json): { opening: Json; deltas: Json[] } {
  const { type, text, thinking, input } = block
  if (type === 'text') {
    const citations = (block.citations as unknown[] | undefined) ?? []
    const cited = citations.map((citation) => ({ type: 'citations_delta', citation }))
    const opening = { ...block, text: '', ...(block.citations ? { citations: [] } : {}) }
    return { opening, deltas: [{ type: 'text_delta', text }, ...cited] }
  }
  if (type === 'thinking') {
    const deltas = [
      { type: 'thinking_delta', thinking },
      { type: 'signature_delta', signature: block.signature },
    ]
    return { opening: { ...block, thinking: '', signature: '' }, deltas }
  }
  if (!String(type).endsWith('tool_use')) return { opening: block, deltas: [] }
  return {
    opening: { ...block, input: {} },
    deltas: [{ type: 'input_json_delta', partial_json: JSON.stringify(input) }],
  }
}

/** Sends a request that the service must accept. Returns the body that the upstream received. */
async function sent(body: object, path = '/v1/messages'): Promise<Json> {
  const before = upstream.calls.length
  const headers = { 'anthropic-version': VERSION, 'anthropic-beta': 'mid-conversation-output-config-2026-07-01' }
  const response = await stack.post(path, { model: 'm1', ...body }, { headers })
  const text = await response.text()
  expect(response.status, `status of the response ${text}`).toBe(200)
  return upstream.calls[before]?.body as Json
}

const request = (more: object) => ({ max_tokens: 2_048, messages: HELLO, ...more })

describe('messages requests to an upstream of the same API', () => {
  const SEPARATE = ['messages', 'tools', 'tool_choice', 'stream', 'model']

  test.each(types.fields('MessageCreateParamsBase').filter((field) => !SEPARATE.includes(field)))(
    'arrive with the field %s unchanged',
    async (field) => {
      for (const value of types.fieldSamples('MessageCreateParamsBase', field)) {
        expect(
          (await sent(request({ [field]: value })))[field],
          `field upstream for the value ${JSON.stringify(value)}`,
        ).toEqual(value)
      }
    },
  )

  const BETA_ONLY = [
    'messages',
    'tools',
    'tool_choice',
    'stream',
    'model',
    'betas',
    'mcp_servers',
    'thread',
    'fallbacks',
  ]
  test.each(beta.fields('MessageCreateParamsBase').filter((field) => !BETA_ONLY.includes(field)))(
    'arrive with the beta field %s unchanged',
    async (field) => {
      for (const value of beta.fieldSamples('MessageCreateParamsBase', field)) {
        expect(
          (await sent(request({ [field]: value })))[field],
          `field upstream for the value ${JSON.stringify(value)}`,
        ).toEqual(value)
      }
    },
  )

  test.each([
    ['tools', types.samples('ToolUnion')],
    ['beta tools', beta.samples('BetaToolUnion')],
  ])('arrive with each sample of %s unchanged', async (_, tools) => {
    for (const tool of tools) {
      expect(
        (await sent(request({ tools: [tool] }))).tools,
        `tools upstream for the tool ${JSON.stringify(tool)}`,
      ).toEqual([tool])
    }
    const count = { messages: HELLO, tools: tools.slice(0, 1) }
    expect((await sent(count, '/v1/messages/count_tokens')).tools).toEqual(count.tools)
  })

  test('arrive with each tool choice unchanged', async () => {
    for (const choice of types.samples('ToolChoice') as Json[]) {
      const tools = [{ ...FUNCTION, name: choice.name ?? 'f' }]
      expect(
        (await sent(request({ tools, tool_choice: choice }))).tool_choice,
        `tool_choice upstream for the value ${JSON.stringify(choice)}`,
      ).toEqual(choice)
    }
  })

  test.each([
    ['blocks', types.samples('ContentBlockParam')],
    ['beta blocks', beta.samples('BetaContentBlockParam')],
  ])('arrive with each sample of %s in a message unchanged', async (_, blocks) => {
    for (const block of blocks as Json[]) {
      const messages = conversationWith(block)
      expect(
        (await sent(request({ messages }))).messages,
        `messages upstream for the block ${JSON.stringify(block)}`,
      ).toEqual(messages)
    }
  })

  test('arrive with strings, text blocks and system messages unchanged', async () => {
    const text = [{ type: 'text', text: 'A' }]
    for (const content of ['A', text]) {
      const messages = [
        { role: 'user', content },
        { role: 'assistant', content },
        { role: 'user', content: 'B' },
      ]
      expect(await sent(request({ messages, system: content }))).toMatchObject({ messages, system: content })
    }
    const system = [...types.samples('SystemMessageParam'), ...beta.samples('BetaSystemMessageParam')]
    for (const turn of system) {
      const messages = [...HELLO, turn, { role: 'user', content: 'B' }]
      expect(
        (await sent(request({ messages }))).messages,
        `messages upstream for the message ${JSON.stringify(turn)}`,
      ).toEqual(messages)
    }
  })
})

/**
 * Returns a valid conversation that contains the block. If the block is a tool call, then a result follows. If the block is a result, then
 * a tool call precedes it.
 */
function conversationWith(block: Json): Json[] {
  const use = { type: 'tool_use', id: 'toolu_1', name: 'f', input: {} }
  const result = { type: 'tool_result', tool_use_id: 'toolu_1' }
  if (block.type === 'tool_result') {
    return [...HELLO, { role: 'assistant', content: [use] }, { role: 'user', content: [block] }]
  }
  if (block.type === 'tool_use') {
    return [
      ...HELLO,
      { role: 'assistant', content: [block] },
      { role: 'user', content: [{ ...result, tool_use_id: block.id }] },
    ]
  }
  if (/thinking$/.test(String(block.type))) {
    return [...HELLO, { role: 'assistant', content: [block, { type: 'text', text: 'A' }] }, ...HELLO]
  }
  return [{ role: 'user', content: [block, { type: 'text', text: 'A' }] }]
}

/** Returns a response that contains the block, with the stop reason that fits the block. */
function around(block: unknown): Json {
  const isCall = (block as Json).type === 'tool_use'
  return message([block, { type: 'text', text: 'A' }], { stop_reason: isCall ? 'tool_use' : 'end_turn' })
}

describe('messages responses of an upstream', () => {
  const usage = (sample: unknown) => message([{ type: 'text', text: 'A' }], { usage: sample })
  const whole = (sample: unknown): Json => {
    const { content, stop_reason, stop_sequence, ...fields } = sample as Json
    const hasSequence = stop_reason === 'stop_sequence'
    const use =
      stop_reason === 'tool_use'
        ? [{ type: 'tool_use', id: 'toolu_1', name: 'f', input: {}, caller: { type: 'direct' } }]
        : []
    return message([{ type: 'text', text: 'A' }, ...use], {
      ...fields,
      stop_reason,
      stop_sequence: hasSequence ? stop_sequence : null,
    })
  }

  test.each([
    ['blocks', types.samples('ContentBlock').map(around)],
    ['beta blocks', beta.samples('BetaContentBlock').map(around)],
    ['usage', types.samples('Usage').map(usage)],
    ['beta usage', beta.samples('BetaUsage').map(usage)],
    ['messages', types.samples('Message').map(whole)],
    ['beta messages', beta.samples('BetaMessage').map(whole)],
  ])('are returned unchanged with and without streaming, and accepted in the next request: %s', async (_, answers) => {
    for (const given of answers) {
      answer = given
      const expected = omit(given)
      const headers = { 'anthropic-version': VERSION }
      const plain = await stack.post('/v1/messages', request({ model: 'm1', tools: [FUNCTION] }), { headers })
      const got = (await plain.json()) as Json
      expect(omit(got), `response for the upstream response ${JSON.stringify(given)}`).toMatchObject(expected)
      const stream = await stack.post('/v1/messages', request({ model: 'm1', stream: true }), { headers })
      const joined = messageOf(framesOf(await stream.text()))
      expect(omit(joined), `stream for the upstream response ${JSON.stringify(given)}`).toMatchObject(expected)
      expect(joined.content).toEqual(got.content)
      const content = got.content as Json[]
      const results = content.flatMap(({ type, id }) =>
        type === 'tool_use' ? [{ type: 'tool_result', tool_use_id: id }] : [],
      )
      const next = results.length > 0 ? results : 'B'
      const messages = [...HELLO, { role: 'assistant', content }, { role: 'user', content: next }]
      const { messages: again } = await sent(request({ messages }))
      expect(
        (again as Json[])[1]?.content,
        `content upstream in the next request after the response ${JSON.stringify(given)}`,
      ).toEqual(content.map(withoutNulls))
    }
  })
})

function omit(value: Json): Json {
  return Object.fromEntries(Object.entries(value).filter(([name]) => !OWN.includes(name)))
}

function withoutNulls(block: Json): Json {
  return Object.fromEntries(Object.entries(block).filter(([, value]) => value !== null))
}

function framesOf(text: string): Frame[] {
  const frames = text.split('\n').filter((line) => line.startsWith('data: '))
  return frames.map((line) => JSON.parse(line.slice('data: '.length)) as Frame).filter(({ type }) => type !== 'ping')
}
