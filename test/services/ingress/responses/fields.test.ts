/*
 * Tests of every field that the types of the `openai` package declare for responses. Each field passes from a caller to an upstream of the
 * same API, or back. The tests cover requests, whole responses and streams. A field that a new version of the SDK adds is tested as soon as the SDK
 * is installed.
 *
 * Exceptions: docs/guides/responses.md, Fields that do not arrive unchanged.
 */

import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { type Answer, type ScriptedUpstream, startUpstream } from '../../../support/processes/upstream.ts'
import { type Stack, startStack } from '../../../support/stack.ts'
import { SdkTypes } from '../../../support/wire/sdk-types.ts'

type Json = Record<string, unknown>

const EMPTY = { type: 'object', properties: {} }
const URL = 'https://93.184.215.14/a'
const PNG = 'data:image/png;base64,iVBORw0KGgo='
const types = new SdkTypes('node_modules/openai/resources/responses/responses.d.ts', {
  ...{
    parameters: EMPTY,
    output_schema: EMPTY,
    schema: EMPTY,
    image_url: PNG,
    file_url: URL,
    server_url: URL,
    url: URL,
  },
  ...{
    file_data: 'data:text/plain;base64,QUJD',
    data: 'QUJD',
    name: 'f',
    arguments: '{"a":1}',
    call_id: 'call_1',
    id: 'x_1',
  },
  ...{ max_output_tokens: 50, temperature: 0.5, top_p: 0.5, top_logprobs: 2, encrypted_content: 'gAAAA', metadata: {} },
})

/** Request fields that the first test leaves out: Sluice handles them itself, or they have a test of their own below. */
const OWN = [
  ...['background', 'conversation', 'previous_response_id', 'metadata', 'store', 'stream', 'stream_options', 'model'],
  ...['input', 'instructions', 'tools', 'tool_choice', 'include', 'reasoning', 'text', 'parallel_tool_calls'],
]
const FUNCTION = { type: 'function', name: 'f', parameters: EMPTY, strict: true }
const HELLO = { type: 'message', role: 'user', content: 'Hi' }
const DONE = {
  type: 'message',
  role: 'assistant',
  status: 'completed',
  content: [{ type: 'output_text', text: 'Done.', annotations: [], logprobs: [] }],
}

let stack: Stack
let upstream: ScriptedUpstream
let answer: Json = {}
beforeAll(async () => {
  upstream = await startUpstream((call, to) => (call.body.stream === true ? streamed(answer, to) : to.json(answer)))
  const capabilities = { images: true, files: true, audio: true, reasoning: true }
  const engine = { type: 'openai', api: 'responses', base_url: `${upstream.url}/v1` }
  const models = [{ id: 'm1', engine, capabilities }]
  stack = await startStack({ models, settings: { REMOTE_IMAGES: 'true' } })
  answer = responseOf([{ id: 'msg_1', ...DONE }])
})
afterAll(async () => {
  await stack?.[Symbol.asyncDispose]()
  await upstream?.[Symbol.asyncDispose]()
})

function responseOf(output: readonly unknown[], fields: Json = {}): Json {
  const usage = {
    input_tokens: 9,
    input_tokens_details: { cached_tokens: 1, cache_write_tokens: 1 },
    output_tokens: 9,
    output_tokens_details: { reasoning_tokens: 1 },
    total_tokens: 18,
  }
  return { id: 'resp_1', object: 'response', status: 'completed', output, usage, ...fields }
}

/**
 * Sends a whole response to the service as a stream. Each item is added without its text, the text follows as deltas, and then the item is
 * done.
 */
function streamed(whole: Json, to: Answer): void {
  to.open()
  const frame = (type: string, fields: Json) => to.frame({ type, ...fields }, type)
  frame('response.created', { response: { ...whole, status: 'in_progress', output: [], usage: null } })
  for (const [output_index, item] of (whole.output as Json[]).entries()) {
    const at = { output_index, item_id: item.id }
    const isMessage = item.type === 'message'
    frame('response.output_item.added', { output_index, item: isMessage ? { ...item, content: [] } : item })
    for (const [content_index, part] of (isMessage ? (item.content as Json[]) : []).entries()) {
      const { text, annotations = [], logprobs } = part
      if (text !== undefined) frame('response.output_text.delta', { ...at, content_index, delta: text, logprobs })
      for (const annotation of annotations as unknown[]) {
        frame('response.output_text.annotation.added', { ...at, content_index, annotation })
      }
      if (part.refusal !== undefined) frame('response.refusal.delta', { ...at, content_index, delta: part.refusal })
    }
    frame('response.output_item.done', { output_index, item })
  }
  frame(whole.status === 'incomplete' ? 'response.incomplete' : 'response.completed', { response: whole })
  to.end()
}

/** Sends a request that the service must accept. Returns the body that the upstream received. */
async function sent(body: object): Promise<Json> {
  const before = upstream.calls.length
  const response = await stack.post('/v1/responses', { model: 'm1', input: [HELLO], store: false, ...body })
  const text = await response.text()
  expect(response.status, `${JSON.stringify(body)}\n${text}`).toBe(200)
  return upstream.calls[before]?.body as Json
}

describe('responses requests to an upstream of the same API', () => {
  test.each(types.fields('ResponseCreateParamsBase').filter((field) => !OWN.includes(field)))(
    'arrive with the field %s unchanged',
    async (field) => {
      for (const value of types.fieldSamples('ResponseCreateParamsBase', field)) {
        expect(
          (await sent({ [field]: value }))[field],
          `field upstream for the value ${JSON.stringify(value)}`,
        ).toEqual(value)
      }
    },
  )

  test('arrive with reasoning, text and include unchanged', async () => {
    const reasoning = { effort: 'low', summary: 'auto', generate_summary: 'concise', mode: 'standard', context: 'auto' }
    expect((await sent({ reasoning })).reasoning).toEqual(reasoning)
    const texts = types.samples('ResponseTextConfig') as Json[]
    for (const text of texts.filter(({ format }) => typeof format === 'object')) {
      const format = text.format as Json | undefined
      const isText = format?.type === 'text'
      const body = isText ? { ...text, format: { type: 'text' } } : text
      // Sluice does not send the format `text` to the upstream, because it is the default.
      const { format: _, ...others } = body
      expect((await sent({ text: body })).text, `text upstream for the value ${JSON.stringify(body)}`).toEqual(
        isText ? others : body,
      )
    }
    const include = types.samples('ResponseIncludable')
    expect((await sent({ include })).include).toEqual(expect.arrayContaining(include))
  })

  test('arrive with each tool unchanged', async () => {
    // The package declares two interfaces with the name `Tool`. The samples of one of them have no field `type`; they are left out, because
    // they are no tools of the Responses API.
    const declared = (types.samples('Tool') as Json[]).filter(({ type }) => type !== undefined)
    const tools = declared.map((tool) => (tool.type === 'web_search' ? { ...tool, filters: undefined } : tool))
    for (const tool of tools) {
      const got = (await sent({ tools: [tool] })).tools
      expect(got, `tools upstream for the tool ${JSON.stringify(tool)}`).toEqual([JSON.parse(JSON.stringify(tool))])
    }
  })

  test('arrive with each tool choice unchanged', async () => {
    const [choices] = [types.fieldSamples('ResponseCreateParamsBase', 'tool_choice') as (string | Json)[]]
    const tools = [FUNCTION, { type: 'custom', name: 'g' }, { type: 'mcp', server_label: 'x' }]
    for (const choice of choices) {
      const asked =
        typeof choice === 'object' && Array.isArray(choice.tools)
          ? { ...choice, tools: [{ type: 'function', name: 'f' }] }
          : choice
      expect(
        (await sent({ tools, tool_choice: asked, parallel_tool_calls: false })).tool_choice,
        `tool_choice upstream for the value ${JSON.stringify(asked)}`,
      ).toEqual(asked)
    }
  })

  test('arrive with each input item unchanged', async () => {
    const items = (types.samples('ResponseInputItem') as Json[]).filter(
      ({ type, tools }) => type !== 'item_reference' && (tools === undefined || type === 'mcp_list_tools'),
    )
    expect(items.length).toBeGreaterThan(100)
    for (const item of items) {
      const input = conversationWith(withOneSource(item))
      const got = (await sent({ input })).input as Json[]
      expect(got.map(plain), `input items upstream for the item ${JSON.stringify(item)}`).toEqual(input.map(plain))
    }
  })
})

/** Removes the URL from each file, because a file must not have both its content and a URL. */
function withOneSource(value: unknown): Json {
  return JSON.parse(
    JSON.stringify(value, (_name, inner) => (inner?.type === 'input_file' ? { ...inner, file_url: undefined } : inner)),
  )
}

/**
 * Returns a valid conversation that contains the item. If the item is a call, then its output follows. If it is an output, then a call
 * precedes it.
 */
function conversationWith(item: Json): Json[] {
  const call_id = item.call_id ?? 'call_1'
  const output = { call_id, output: 'x' }
  switch (item.type) {
    case 'function_call':
      return [HELLO, item, { type: 'function_call_output', ...output }]
    case 'custom_tool_call':
      return [HELLO, item, { type: 'custom_tool_call_output', ...output }]
    case 'function_call_output':
      return item.call_id
        ? [HELLO, { type: 'function_call', call_id, name: 'f', arguments: '{}' }, item]
        : [HELLO, item]
    case 'custom_tool_call_output':
      return [HELLO, { type: 'custom_tool_call', call_id, name: 'f', input: 'x' }, item]
    default:
      return [item, HELLO]
  }
}

/**
 * Converts an item to a normal form, so that items of equal meaning are equal. For example, a single part of plain text becomes a string.
 */
function plain(item: Json): Json {
  const { content, output } = item
  return {
    ...(item.role ? { type: 'message' } : {}),
    ...withoutNull(item),
    ...(content === undefined || item.type === 'reasoning' ? {} : { content: plainContent(content) }),
    ...(output === undefined ? {} : { output: plainContent(output) }),
  }
}

/** Removes the fields whose value is null, because null means that the field is absent. */
function withoutNull(item: Json): Json {
  return Object.fromEntries(Object.entries(item).filter(([, value]) => value !== null))
}

function plainContent(content: unknown): unknown {
  if (!Array.isArray(content)) return content
  const parts = content.map((part: Json) => {
    const { annotations, logprobs, detail, ...rest } = withoutNull(part)
    const cited = Array.isArray(annotations) && annotations.length > 0 ? { annotations } : {}
    const logged = Array.isArray(logprobs) && logprobs.length > 0 ? { logprobs } : {}
    return { ...rest, ...cited, ...logged, ...(detail !== undefined && detail !== 'auto' && { detail }) }
  }) as Json[]
  const [only] = parts
  const isPlain = parts.length === 1 && Object.keys(only ?? {}).every((name) => name === 'type' || name === 'text')
  return isPlain && typeof only?.text === 'string' ? only.text : parts
}

describe('responses of an upstream of the same API', () => {
  const ECHOED = [
    ...[
      'id',
      'output_text',
      'created_at',
      'error',
      'incomplete_details',
      'instructions',
      'metadata',
      'model',
      'object',
    ],
    ...['output', 'parallel_tool_calls', 'temperature', 'tool_choice', 'tools', 'top_p', 'background', 'completed_at'],
    ...['conversation', 'max_output_tokens', 'max_tool_calls', 'previous_response_id', 'prompt', 'prompt_cache_key'],
    ...['reasoning', 'safety_identifier', 'status', 'text', 'top_logprobs', 'truncation', 'usage', 'user'],
  ]

  /**
   * Makes one call without streaming and one with streaming. Returns the whole response, and the response in the last event of the stream.
   */
  async function given(): Promise<Json[]> {
    const body = { model: 'm1', input: 'hi', store: false, tools: [FUNCTION] }
    const whole = await stack.post('/v1/responses', body)
    const json = (await whole.json()) as Json
    expect(whole.status, `status of the response and its body ${JSON.stringify([answer, json])}`).toBe(200)
    const stream = await (await stack.post('/v1/responses', { ...body, stream: true })).text()
    const last = stream.split('\n\n').findLast((frame) => frame.includes('"response":')) ?? ''
    return [json, (JSON.parse(last.slice(last.indexOf('data: ') + 'data: '.length)) as { response: Json }).response]
  }

  test.each(types.fields('Response').filter((field) => !ECHOED.includes(field)))(
    'are returned with the field %s unchanged',
    async (field) => {
      for (const value of types.fieldSamples('Response', field)) {
        answer = responseOf([{ id: 'msg_1', ...DONE }], { [field]: value })
        for (const got of await given())
          expect(got[field], `field of the response for the value ${JSON.stringify(value)}`).toEqual(value)
      }
    },
  )

  test('are returned with their usage unchanged', async () => {
    for (const usage of types.samples('ResponseUsage') as Json[]) {
      answer = responseOf([{ id: 'msg_1', ...DONE }], { usage })
      for (const got of await given()) expect(got.usage).toMatchObject({ ...usage, total_tokens: 14 })
    }
  })

  test('are returned with their items unchanged, which the next request accepts', async () => {
    const items = (types.samples('ResponseOutputItem') as Json[]).filter(
      ({ type, id, tools }) =>
        type !== undefined &&
        id !== undefined &&
        tools === undefined &&
        type !== 'function_call_output' &&
        type !== 'custom_tool_call_output',
    )
    expect(items.length).toBeGreaterThan(50)
    for (const item of items) {
      answer = responseOf([item, { id: 'msg_9', ...DONE }])
      for (const got of await given()) {
        const [first] = got.output as Json[]
        expect(unnamed(first as Json), `first output item for the item ${JSON.stringify(item)}`).toEqual(unnamed(item))
        const isCall = ['function_call', 'custom_tool_call'].includes(String(item.type))
        const results = isCall ? [{ type: `${item.type}_output`, call_id: first?.call_id, output: 'x' }] : []
        const input = [HELLO, ...(got.output as Json[]), ...results, HELLO]
        await sent({ input, tools: [FUNCTION] })
      }
    }
  })
})

/** Types of output items whose ids and states Sluice sets itself. Comparisons leave these fields out. */
const OWN_ITEMS = ['message', 'reasoning', 'function_call', 'custom_tool_call']

function unnamed(item: Json): Json {
  if (!OWN_ITEMS.includes(String(item.type))) return item
  const { id, status, encrypted_content, ...rest } = withoutNull(item)
  return { ...rest, ...(encrypted_content ? { encrypted_content: expect.any(String) } : {}) }
}
