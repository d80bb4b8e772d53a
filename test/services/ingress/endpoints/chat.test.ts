import { createOpenAICompatible } from '@ai-sdk/openai-compatible'
import { ChatOpenAI } from '@langchain/openai'
import { generateText, streamText, tool } from 'ai'
import { streamText as streamText6, tool as tool6 } from 'ai-6'
import { createOpenAICompatible as createOpenAICompatible2 } from 'ai-sdk-openai-compatible-2'
import fc from 'fast-check'
import OpenAI from 'openai'
import OpenAI4 from 'openai-4'
import OpenAI6 from 'openai-6'
import { describe, expect, test } from 'vitest'
import { z } from 'zod'
import type { ChatChunk, ChatCompletion } from '#schemas/chat.ts'
import type { EncodeContext } from '#schemas/job.ts'
import { type GenerateEvent, GenerateRequest } from '#schemas/kinds/generate.ts'
import { ModelConfig } from '#schemas/models.ts'
import type { DecodeContext } from '#services/ingress/body/decode.ts'
import { decodeChat } from '#services/ingress/endpoints/chat/decode.ts'
import { OpenCalls } from '#services/ingress/endpoints/chat/turns.ts'
import { SSE_KEEP_ALIVE } from '#services/ingress/http/reply.ts'
import { chatAnswer } from '#shared/kinds/generate/chat/stream.ts'
import { ServiceError } from '#shared/lib/error.ts'
import { doAll } from '../../../support/pieces.ts'
import { sseFailure, sseOf, sseStream } from '../../../support/sse.ts'

const PNG = 'data:image/png;base64,iVBORw0KGgo='
const SEEING = { capabilities: { images: true, audio: true, files: true, reasoning: true } }

function context(model: object = {}, more: Partial<DecodeContext> = {}): DecodeContext {
  const config = ModelConfig.parse({ id: 'm1', engine: { type: 'echo' }, ...model })
  const getModel = (id: string) => {
    if (id === config.id || config.aliases.includes(id)) return config
    throw new ServiceError('model_not_found', `The model '${id}' does not exist.`, { param: 'model' })
  }
  return { getModel, strictTurns: true, remoteImages: false, ...more }
}

const hello = { model: 'm1', messages: [{ role: 'user', content: 'Hi' }] }

/**
 * Decodes a request body. A worker in another process gets the decoded request as JSON, so the function checks that the conversion to JSON
 * and back changes nothing.
 */
function decode(body: unknown, given: DecodeContext = context()): GenerateRequest {
  const request = doAll(decodeChat(body, given))
  const read = GenerateRequest.parse(JSON.parse(JSON.stringify(request)))
  expect(read).toEqual(request)
  return read
}

function problem(body: unknown, given: DecodeContext = context()): [string, string | null, number] | undefined {
  try {
    decode(body, given)
  } catch (error) {
    if (error instanceof ServiceError) return [error.code, error.param, error.status]
    throw error
  }
  return undefined
}

describe('decoding of a chat request', () => {
  test('sets the defaults of a minimal request', () => {
    expect(decode(hello)).toEqual({
      dialect: 'openai',
      model: 'm1',
      turns: [{ role: 'user', parts: [{ type: 'text', text: 'Hi' }] }],
      stream: false,
      n: 1,
      stop: [],
      logprobs: false,
      tools: [],
    })
  })

  test('treats null as absent in every optional field', () => {
    const fields = [
      'stream',
      'stream_options',
      'temperature',
      'top_p',
      'max_completion_tokens',
      'max_tokens',
      'n',
      'stop',
    ]
    const others = ['seed', 'logprobs', 'tools', 'tool_choice', 'user', 'metadata', 'store', 'modalities', 'audio']
    const more = ['functions', 'function_call', 'response_format', 'reasoning_effort', 'logit_bias', 'service_tier']
    const nulls = Object.fromEntries([...fields, ...others, ...more].map((field) => [field, null]))
    expect(decode({ ...hello, ...nulls })).toEqual(decode(hello))
  })

  test('forwards sampling fields, and prefers max_completion_tokens to max_tokens', () => {
    const sampling = { temperature: 0.5, top_p: 0.9, n: 2, seed: 7, presence_penalty: 1, frequency_penalty: -1 }
    const more = {
      logit_bias: { '50256': -100 },
      logprobs: true,
      top_logprobs: 3,
      user: 'u',
    }
    const request = decode({ ...hello, ...sampling, ...more, stop: 'END', max_tokens: 9, max_completion_tokens: 7 })
    expect(request).toMatchObject({ ...sampling, ...more, stop: ['END'], max_tokens: 7 })
  })

  test("limits max_tokens to the model's maximum, and uses the model's default if it is absent", () => {
    const limited = context({ limits: { max_output_tokens: 100, default_output_tokens: 50 } })
    expect(decode({ ...hello, max_tokens: 4096 }, limited).max_tokens).toBe(100)
    expect(decode(hello, limited).max_tokens).toBe(50)
    expect(decode({ ...hello, max_tokens: 10 }, limited).max_tokens).toBe(10)
  })

  test('maps a seed of 64 bits to a safe integer', () => {
    expect(Number.isSafeInteger(decode({ ...hello, seed: 2 ** 62 }).seed)).toBe(true)
    expect(problem({ ...hello, seed: 1.5 })).toEqual(['invalid_type', 'seed', 400])
  })

  test('resolves an alias to the id of its model', () => {
    expect(decode({ ...hello, model: 'gpt' }, context({ aliases: ['gpt'] })).model).toBe('m1')
  })

  test('forwards parts of every type to a model that supports them', () => {
    const content = [
      { type: 'text', text: 'See', prompt_cache_breakpoint: { mode: 'x' } },
      { type: 'image_url', image_url: { url: PNG, detail: 'low' } },
      { type: 'input_audio', input_audio: { data: 'UklGRg==', format: 'wav' } },
      { type: 'file', file: { filename: 'a.pdf', file_data: 'data:application/pdf;base64,JVBERi0=' } },
    ]
    expect(decode({ model: 'm1', messages: [{ role: 'user', content, name: 'ann' }] }, context(SEEING)).turns).toEqual([
      {
        role: 'user',
        name: 'ann',
        parts: [
          { type: 'text', text: 'See', extra: { prompt_cache_breakpoint: { mode: 'x' } } },
          { type: 'image', url: PNG, detail: 'low' },
          { type: 'audio', data: 'UklGRg==', format: 'wav' },
          { type: 'file', data: 'data:application/pdf;base64,JVBERi0=', filename: 'a.pdf' },
        ],
      },
    ])
  })

  test('forwards unknown fields of the request, messages, calls and tools, but not job fields', () => {
    const request = decode({
      model: 'm1',
      messages: [
        { role: 'developer', content: 'Be brief.', weight: 2 },
        { role: 'user', content: [{ type: 'text', text: 'Hi' }] },
        {
          role: 'assistant',
          content: null,
          annotations: [],
          tool_calls: [{ id: 'c1', type: 'function', function: { name: 'f', arguments: '{}' }, index: 0 }],
        },
        { role: 'tool', tool_call_id: 'c1', content: [{ type: 'text', text: '42' }] },
      ],
      tools: [{ type: 'function', function: { name: 'f' }, cached: true }],
      min_p: 0.1,
      store: true,
      metadata: { a: 'b' },
      ['__proto__']: { polluted: true },
    })
    expect(request.extra).toEqual({ min_p: 0.1 })
    expect(request.tools).toEqual([
      { name: 'f', parameters: { type: 'object', properties: {} }, extra: { cached: true } },
    ])
    expect(request.turns).toEqual([
      { role: 'system', parts: [{ type: 'text', text: 'Be brief.' }], developer: true, extra: { weight: 2 } },
      { role: 'user', parts: [{ type: 'text', text: 'Hi' }] },
      { role: 'assistant', parts: [{ type: 'tool_call', id: 'c1', name: 'f', arguments: '{}', extra: { index: 0 } }] },
      { role: 'tool', call_id: 'c1', parts: [{ type: 'text', text: '42' }] },
    ])
  })

  test.each([
    ['none', { type: 'none' }, undefined],
    ['required', { type: 'required' }, undefined],
    [{ type: 'function', function: { name: 'f' } }, { type: 'tool', name: 'f' }, undefined],
    [
      {
        type: 'allowed_tools',
        allowed_tools: { mode: 'required', tools: [{ type: 'function', function: { name: 'g' } }] },
      },
      { type: 'required' },
      ['g'],
    ],
  ])('maps tool_choice %j to %j', (tool_choice, choice, allowed) => {
    const tools = ['f', 'g'].map((name) => ({ type: 'function', function: { name } }))
    const request = decode({ ...hello, tools, tool_choice, parallel_tool_calls: false })
    expect([request.tool_choice, request.allowed_tools]).toEqual([choice, allowed])
    expect(request.parallel_tool_calls).toBe(false)
  })

  test('drops tool_choice and related fields if the request has no tools', () => {
    const request = decode({ ...hello, tool_choice: 'auto', parallel_tool_calls: false })
    expect([request.tool_choice, request.parallel_tool_calls]).toEqual([undefined, undefined])
  })

  test('maps a JSON schema to the response format, and the format type text to no response format', () => {
    const json_schema = { name: 'person', strict: true, schema: { type: 'object' } }
    expect(decode({ ...hello, response_format: { type: 'json_schema', json_schema } }).response_format).toEqual({
      type: 'json_schema',
      ...json_schema,
    })
    expect(decode({ ...hello, response_format: { type: 'json_object' } }).response_format?.type).toBe('json_object')
    expect(decode({ ...hello, response_format: { type: 'text' } }).response_format).toBeUndefined()
  })

  test('forwards the reasoning effort to reasoning models only', () => {
    expect(decode({ ...hello, reasoning_effort: 'high' }).reasoning).toBeUndefined()
    expect(decode({ ...hello, reasoning_effort: 'high' }, context(SEEING)).reasoning).toEqual({ effort: 'high' })
  })

  test('matches a legacy function result to the preceding call, which has no id', () => {
    const call = { name: 'f', arguments: '{"a":1}' }
    const extra = { implied_call: true }
    const turns = (messages: unknown[]) => decode({ model: 'm1', messages }).turns
    const answered = [
      {
        role: 'assistant',
        parts: [
          { type: 'native', dialect: 'openai', value: { function_call: call } },
          { type: 'tool_call', id: 'call_function_1', name: 'f', arguments: '{"a":1}', extra },
        ],
      },
      {
        role: 'tool',
        call_id: 'call_function_1',
        parts: [{ type: 'text', text: '42' }],
        extra: { role: 'function', name: 'f' },
      },
    ]
    const result = { role: 'function', name: 'f', content: '42' }
    expect(turns([{ role: 'assistant', content: null, function_call: call }, result])).toEqual(answered)
    expect(turns([{ role: 'user', content: 'x' }, result])).toMatchObject([
      { role: 'user' },
      { role: 'assistant', parts: [{ type: 'tool_call', arguments: '{}' }] },
      { role: 'tool' },
    ])
  })

  test('allows remote images only if the deployment fetches them, and only over https', () => {
    const image = (url: string) => ({
      model: 'm1',
      messages: [{ role: 'user', content: [{ type: 'image_url', image_url: { url } }] }],
    })
    const param = 'messages[0].content[0].image_url.url'
    const open = context(SEEING, { remoteImages: true })
    expect(problem(image('https://example.com/a.png'), context(SEEING))).toEqual(['unsupported_value', param, 400])
    expect(problem(image('https://example.com/a.png'), open)).toBeUndefined()
    expect(problem(image('http://example.com/a.png'), open)).toEqual(['invalid_value', param, 400])
    expect(problem(image('not a url'), open)).toEqual(['invalid_value', param, 400])
  })
})

describe('decoding of a chat request of an agent', () => {
  const CHAT = { engine: { type: 'openai', base_url: 'http://127.0.0.1:1/v1' }, ...SEEING }
  const turnsOf = (messages: readonly object[], given = context(CHAT)) => decode({ model: 'm1', messages }, given).turns
  const call = (id: string, name = 'f') => ({ id, type: 'function', function: { name, arguments: '{}' } })
  const result = (id: string, content: unknown = 'ok') => ({ role: 'tool', tool_call_id: id, content })

  test('accepts images, files and audio in the result of a tool', () => {
    const content = [
      { type: 'text', text: 'see' },
      { type: 'image_url', image_url: { url: PNG } },
      { type: 'input_audio', input_audio: { data: 'UklGRg==', format: 'flac' } },
    ]
    const [, tool] = turnsOf([{ role: 'assistant', tool_calls: [call('a')] }, result('a', content)], context(SEEING))
    expect(tool?.parts).toMatchObject([
      { type: 'text' },
      { type: 'image', url: PNG },
      { type: 'audio', format: 'flac' },
    ])
  })

  test('maps calls with equal ids to separate calls, with their results in order', () => {
    const calls = { role: 'assistant', tool_calls: [call('a', 'f'), call('a_2', 'g'), call('a', 'h')] }
    const turns = turnsOf([calls, result('a', '1'), result('a_2', '2'), result('a', '3')])
    expect(turns[0]?.parts).toMatchObject([
      { id: 'a', name: 'f' },
      { id: 'a_2', name: 'g' },
      { id: 'a_3', name: 'h' },
    ])
    expect(turns.slice(1)).toMatchObject(['a', 'a_2', 'a_3'].map((call_id) => ({ role: 'tool', call_id })))
  })

  test('removes one of two tool calls with equal ids if only one has a result', () => {
    const turns = turnsOf([{ role: 'assistant', tool_calls: [call('a'), call('a')] }, result('a')])
    expect(turns).toMatchObject([{ parts: [{ id: 'a' }] }, { call_id: 'a' }])
    expect(turns[0]?.parts).toHaveLength(1)
  })

  test('matches 30,000 calls with equal ids in linear time', () => {
    const ids = Array.from({ length: 30_000 }, (_, index) => (index % 2 === 0 ? 'a' : `a_${index}`))
    const made = ids.map((id) => ({ type: 'tool_call' as const, id, name: 'f', arguments: '{}' }))
    const startedMs = performance.now()
    const calls = new OpenCalls(made, [])
    const answered = ids.map((id) => calls.answer(id)?.id)
    expect(performance.now() - startedMs).toBeLessThan(2_000)
    expect(new Set(answered).size).toBe(30_000)
    expect(calls.unanswered()).toEqual([])
  })

  test.each([
    [{ role: 'assistant', content: null, audio: { id: 'audio_1' } }],
    [{ role: 'assistant', content: null, reasoning_content: 'Hm.' }],
    [{ role: 'assistant', content: null, refusal: 'No.' }],
    [{ role: 'assistant', content: null, function_call: { name: 'f', arguments: '' } }],
    [{ role: 'assistant', content: [{ type: 'refusal', refusal: 'No.' }] }],
  ])('accepts %j as an assistant message', (message) => {
    expect(turnsOf([message, { role: 'user', content: 'Go on.' }])).toHaveLength(2)
  })

  test('forwards a custom tool twice, unchanged and as a function', () => {
    const custom = {
      name: 'sql',
      description: 'Runs SQL.',
      format: { type: 'grammar', grammar: { syntax: 'lark', definition: 'start: "a"' } },
    }
    const made = { id: 'a', type: 'custom', custom: { name: 'sql', input: 'select 1' } }
    const tool_choice = { type: 'custom', custom: { name: 'sql' } }
    const messages = [{ role: 'assistant', tool_calls: [made] }, result('a')]
    const request = decode({ model: 'm1', messages, tools: [{ type: 'custom', custom }], tool_choice })
    expect(request.tools).toEqual([
      {
        name: 'sql',
        description: 'Runs SQL.\n\nThe input follows this grammar (lark):\nstart: "a"',
        parameters: { type: 'object', properties: { input: { type: 'string' } }, required: ['input'] },
        native: { type: 'custom', custom },
        custom: true,
      },
    ])
    expect(request.tool_choice).toEqual({ type: 'tool', name: 'sql' })
    expect(request.turns).toMatchObject([
      { parts: [{ type: 'tool_call', name: 'sql', arguments: '{"input":"select 1"}', custom: true }] },
      { role: 'tool', call_id: 'a', custom: true },
    ])
  })

  test('forwards tools, parts and formats of unknown types if the upstream has the same API', () => {
    const video = { type: 'video_url', video_url: { url: 'data:video/mp4;base64,AA' } }
    const tools = [{ type: 'web_search' }, { type: 'mcp', server_label: 'a' }, { type: 'mcp', server_label: 'b' }]
    const response_format = { type: 'structural_tag', structures: [] }
    const messages = [{ role: 'user', content: [video] }]
    const request = decode(
      { model: 'm1', messages, tools, response_format, tool_choice: { type: 'web_search' } },
      context(CHAT),
    )
    expect(request.turns[0]?.parts).toEqual([{ type: 'native', dialect: 'openai', value: video }])
    expect(request.tools).toMatchObject(tools.map((native) => ({ native, native_only: true })))
    expect(request.tool_choice).toEqual({ type: 'tool', name: 'web_search#0' })
    expect(request.extra).toEqual({ response_format })
  })

  test.each(['http://10.0.0.1/a.mp4', 'https://a.example/a.mp4', 'FILE:/etc/passwd', ' gopher://x'])(
    'refuses the URL %s inside a part of an unknown type',
    (url) => {
      const open = context(CHAT, { remoteImages: true })
      for (const part of [
        { type: 'video_url', video_url: { url } },
        { type: 'image', image: [url] },
      ])
        expect(problem({ model: 'm1', messages: [{ role: 'user', content: [part] }] }, open)?.[0]).toBe(
          'unsupported_value',
        )
    },
  )

  test('forwards additional OpenAI fields if the upstream has the same API', () => {
    const fields = {
      functions: [{ name: 'f' }],
      function_call: 'auto',
      audio: { voice: 'ash' },
      modalities: ['text', 'audio'],
    }
    const more = {
      web_search_options: {},
      moderation: { model: 'm' },
      stream: true,
      stream_options: { include_obfuscation: false },
    }
    expect(decode({ ...hello, ...fields, ...more, top_k: -1 }, context(CHAT)).extra).toEqual({
      ...fields,
      web_search_options: {},
      moderation: { model: 'm' },
      stream_options: { include_obfuscation: false },
      top_k: -1,
    })
  })

  test('forwards top_k to every upstream, and accepts tool names of 83 characters', () => {
    const name = `mcp.${'x'.repeat(78)}`
    const request = decode({ ...hello, top_k: 7, tools: [{ type: 'function', function: { name } }] })
    expect(request).toMatchObject({ top_k: 7, tools: [{ name }] })
  })
})

describe('an invalid chat request', () => {
  const user = { role: 'user', content: 'Hi' }
  const call = { id: 'c1', type: 'function', function: { name: 'f', arguments: '{}' } }
  const asks = { role: 'assistant', tool_calls: [call] }
  const f = { type: 'function', function: { name: 'f' } }
  const part = (given: object) => ({ messages: [{ role: 'user', content: [given] }] })

  test.each([
    [{ model: undefined }, 'missing_required_parameter', 'model'],
    [{ messages: [] }, 'empty_array', 'messages'],
    [{ messages: [{ content: 'x' }] }, 'missing_required_parameter', 'messages[0].role'],
    [{ messages: [{ role: 'narrator', content: 'x' }] }, 'invalid_value', 'messages[0].role'],
    [{ messages: [{ role: 'user' }] }, 'missing_required_parameter', 'messages[0].content'],
    [{ messages: [{ role: 'user', content: 5 }] }, 'invalid_type', 'messages[0].content'],
    [
      { messages: [{ role: 'system', content: [{ type: 'image_url' }] }] },
      'invalid_value',
      'messages[0].content[0].type',
    ],
    [{ messages: [user, { role: 'assistant', content: null }] }, 'missing_required_parameter', 'messages[1].content'],
    [{ messages: [user, { role: 'tool', tool_call_id: 'c1', content: '' }] }, 'invalid_value', 'messages[1].role'],
    [
      { messages: [asks, { role: 'tool', tool_call_id: 'c2', content: '' }] },
      'invalid_value',
      'messages[1].tool_call_id',
    ],
    [{ messages: [asks, user] }, 'invalid_value', 'messages[0]'],
    [{ messages: [asks, user, { role: 'tool', tool_call_id: 'c1', content: '' }] }, 'invalid_value', 'messages[0]'],
    [{ messages: [user, asks] }, 'invalid_value', 'messages[1]'],
    [part({ type: 'image_url', image_url: { url: PNG } }), 'unsupported_value', 'messages[0].content[0]'],
    [
      part({ type: 'input_audio', input_audio: { data: 'x', format: 'wav' } }),
      'unsupported_value',
      'messages[0].content[0]',
    ],
    [part({ type: 'file', file: { file_data: 'x' } }), 'unsupported_value', 'messages[0].content[0]'],
    [{ temperature: 2.1 }, 'decimal_above_max_value', 'temperature'],
    [{ max_tokens: 0 }, 'integer_below_min_value', 'max_tokens'],
    [{ n: 129 }, 'integer_above_max_value', 'n'],
    [{ n: 9 }, 'integer_above_max_value', 'n'],
    [{ stop: ['a', 'b', 'c', 'd', 'e'] }, 'array_above_max_length', 'stop'],
    [{ logit_bias: { '1': 101 } }, 'decimal_above_max_value', 'logit_bias.1'],
    [{ stream_options: { include_usage: true } }, 'invalid_value', 'stream_options'],
    [{ top_logprobs: 2 }, 'invalid_value', 'top_logprobs'],
    [{ modalities: ['text', 'audio'] }, 'unsupported_value', 'modalities'],
    [{ functions: [] }, 'unsupported_parameter', 'functions'],
    [{ function_call: 'auto' }, 'unsupported_parameter', 'function_call'],
    [{ web_search_options: {} }, 'unsupported_parameter', 'web_search_options'],
    [{ metadata: { ['k'.repeat(65)]: '' } }, 'string_above_max_length', `metadata.${'k'.repeat(65)}`],
    [
      { metadata: Object.fromEntries(Array.from({ length: 17 }, (_, i) => [`k${i}`, ''])) },
      'invalid_value',
      'metadata',
    ],
    [{ tools: Array.from({ length: 129 }, () => f) }, 'array_above_max_length', 'tools'],
    [{ tools: [f, f] }, 'invalid_value', 'tools[1].function.name'],
    [{ tools: [{ type: 'function', function: { name: 'a\nb' } }] }, 'invalid_value', 'tools[0].function.name'],
    [{ tools: [{ type: 'function', function: { name: 'a'.repeat(257) } }] }, 'invalid_value', 'tools[0].function.name'],
    [
      { tools: [{ type: 'function', function: { name: 'g', parameters: { type: 'objekt' } } }] },
      'invalid_value',
      'tools[0].function.parameters.type',
    ],
    [{ tools: [{ type: 'custom' }] }, 'missing_required_parameter', 'tools[0].custom'],
    [{ tools: [{ type: 'retrieval' }] }, 'invalid_value', 'tools[0].type'],
    [{ response_format: { type: 'grammar' } }, 'invalid_value', 'response_format.type'],
    [
      part({ type: 'video_url', video_url: { url: 'data:video/mp4;base64,AA' } }),
      'invalid_value',
      'messages[0].content[0].type',
    ],
    [{ tool_choice: 'required' }, 'invalid_value', 'tool_choice'],
    [{ tools: [f], tool_choice: { type: 'function', function: { name: 'g' } } }, 'invalid_value', 'tool_choice'],
    [{ tool_choice: 'always' }, 'invalid_value', 'tool_choice'],
    [{ response_format: { type: 'json_schema' } }, 'missing_required_parameter', 'response_format.json_schema'],
  ])('is refused with 400 and the name of the invalid field: %j', (change, code, param) => {
    expect(problem({ ...hello, ...change })).toEqual([code, param, 400])
  })

  test.each([
    [{ images: true }, part({ type: 'image_url', image_url: { url: 'data:image/png;base64,?!??' } }), 'image_url.url'],
    [{ images: true }, part({ type: 'image_url', image_url: { url: 'data:text/html;base64,AAAA' } }), 'image_url.url'],
    [{ images: true }, part({ type: 'image_url', image_url: { url: 'data:image/png,AAAA' } }), 'image_url.url'],
    [{ audio: true }, part({ type: 'input_audio', input_audio: { data: 'AA!A', format: 'wav' } }), 'input_audio.data'],
    [{ files: true }, part({ type: 'file', file: { file_data: 'AAAA' } }), 'file.file_data'],
  ])('for a model with the capabilities %j is refused for %j at the path %s', (capabilities, change, path) => {
    const found = problem({ ...hello, ...change }, context({ capabilities }))
    expect(found?.slice(1)).toEqual([`messages[0].content[0].${path}`, 400])
  })

  test.each([
    [{ tools: false }, { tools: [f] }, 'tools'],
    [{ json: false }, { response_format: { type: 'json_object' } }, 'response_format'],
    [{ logprobs: false }, { logprobs: true }, 'logprobs'],
  ])('for a model with the capabilities %j is refused for %j', (capabilities, change, param) => {
    expect(problem({ ...hello, ...change }, context({ capabilities }))?.[1]).toBe(param)
  })

  test('with an unknown model is refused with 404', () => {
    expect(problem({ ...hello, model: 'nope' })).toEqual(['model_not_found', 'model', 404])
  })

  test('whose fields contain random JSON is refused with 400 or 404, or accepted if the JSON is valid', () => {
    const full = {
      ...hello,
      messages: [user, asks, { role: 'tool', tool_call_id: 'c1', content: [{ type: 'text', text: 'x' }] }],
      tools: [f],
      tool_choice: { type: 'function', function: { name: 'f' } },
      stream: true,
      stream_options: { include_usage: true },
      response_format: { type: 'json_schema', json_schema: { name: 'a', schema: {} } },
      metadata: { a: 'b' },
      stop: ['x'],
    }
    const paths = pathsOf(full)
    fc.assert(
      fc.property(fc.constantFrom(...paths), fc.jsonValue({ maxDepth: 4 }), (path, value) => {
        // The generated value may contain a negative zero, which JSON lacks. The conversion to JSON and back removes it.
        const found = problem(replaced(full, path, JSON.parse(JSON.stringify(value))))
        expect([undefined, 400, 404]).toContain(found?.[2])
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

const NOTHING_FILTERED = {
  hate: { filtered: false },
  self_harm: { filtered: false },
  sexual: { filtered: false },
  violence: { filtered: false },
  jailbreak: { filtered: false, detected: false },
  profanity: { filtered: false, detected: false },
}

const start: GenerateEvent = { type: 'start', model: 'm1', input_tokens: 12, fingerprint: 'fp_1' }
const stop: GenerateEvent = { type: 'finish', choice: 0, reason: 'stop' }
const usage: GenerateEvent = { type: 'usage', usage: { input_tokens: 12, output_tokens: 3 } }
const say = (text: string, choice = 0): GenerateEvent => ({ type: 'text', choice, text })
const begin = (call: number, name: string, id = ''): GenerateEvent => ({ type: 'tool_call', choice: 0, call, id, name })
const argue = (call: number, text: string): GenerateEvent => ({ type: 'tool_arguments', choice: 0, call, text })
const twoCalls = [
  start,
  begin(0, 'weather', 'toolu_7'),
  argue(0, '{"city":'),
  argue(0, '"Oslo"}'),
  begin(1, 'now'),
  stop,
  usage,
]

function encoding(more: Partial<EncodeContext> = {}): EncodeContext {
  const request = decode(hello)
  return {
    request_id: 'req_1',
    call_id: 'abc',
    created_at: 1,
    model: request.model,
    include_usage: false,
    version: '',
    ...more,
  }
}

function frames(events: readonly GenerateEvent[], more: Partial<EncodeContext> = {}): string {
  return sseStream(chatAnswer.open?.(encoding(more)), events)
}

function chunks(text: string): ChatChunk[] {
  const lines = text.split('\n\n').filter((line) => line !== '' && line !== 'data: [DONE]')
  return lines.map((line) => JSON.parse(line.slice('data: '.length)))
}

const deltas = (text: string) => chunks(text).map((chunk) => chunk.choices[0]?.delta)
const whole = (events: readonly GenerateEvent[]) => chatAnswer.whole(events, encoding()) as ChatCompletion

describe('a chat response without streaming', () => {
  test('has every field of the API reference', () => {
    expect(whole([start, say('Hel'), say('lo.'), stop, usage])).toEqual({
      id: 'chatcmpl-abc',
      object: 'chat.completion',
      created: 1,
      model: 'm1',
      service_tier: 'default',
      system_fingerprint: 'fp_1',
      choices: [
        {
          index: 0,
          message: { role: 'assistant', content: 'Hello.', refusal: null, annotations: [] },
          logprobs: null,
          finish_reason: 'stop',
          content_filter_results: NOTHING_FILTERED,
        },
      ],
      usage: {
        prompt_tokens: 12,
        completion_tokens: 3,
        total_tokens: 15,
        prompt_tokens_details: null,
        completion_tokens_details: null,
      },
    })
  })

  test('has null content, the finish reason tool_calls and valid JSON arguments if it calls tools', () => {
    const [choice] = whole(twoCalls).choices
    expect(choice?.finish_reason).toBe('tool_calls')
    expect(choice?.message).toEqual({
      role: 'assistant',
      content: null,
      refusal: null,
      annotations: [],
      tool_calls: [
        { id: 'toolu_7', type: 'function', function: { name: 'weather', arguments: '{"city":"Oslo"}' } },
        { id: 'call_abc_1', type: 'function', function: { name: 'now', arguments: '{}' } },
      ],
    })
  })

  test('has its choices in order, each with its refusal, reasoning and filter results', () => {
    const answer = whole([
      start,
      say('b', 1),
      { type: 'finish', choice: 1, reason: 'content_filter', filter: { hate: { filtered: true } } },
      { type: 'reasoning', choice: 0, text: 'hm' },
      { type: 'refusal', choice: 0, text: 'No.' },
      stop,
    ])
    expect(answer.choices.map((choice) => choice.index)).toEqual([0, 1])
    expect(answer.choices[0]?.message).toMatchObject({ content: null, refusal: 'No.', reasoning_content: 'hm' })
    expect(answer.choices[1]?.content_filter_results).toEqual({ ...NOTHING_FILTERED, hate: { filtered: true } })
  })

  test('has usage details if the engine reports them', () => {
    const reported = { input_tokens: 9, output_tokens: 4, cached_tokens: 5, reasoning_tokens: 2 }
    expect(whole([start, stop, { type: 'usage', usage: reported }]).usage).toMatchObject({
      prompt_tokens_details: { cached_tokens: 5 },
      completion_tokens_details: { reasoning_tokens: 2 },
    })
  })

  test('fails if the engine sends no finish reason', () => {
    expect(() => whole([start, say('Hel')])).toThrow(ServiceError)
  })
})

describe('a chat response with streaming', () => {
  test('has exactly the frames of the API reference', () => {
    const head =
      'data: {"id":"chatcmpl-abc","object":"chat.completion.chunk","created":1,"model":"m1","system_fingerprint":"fp_1","choices":['
    const tail = ',"logprobs":null,"finish_reason":null}],"usage":null}\n\n'
    expect(frames([start, say('Hel'), stop, usage], { include_usage: true })).toBe(
      `${head}{"index":0,"delta":{"role":"assistant","content":"","refusal":null}${tail}` +
        `${head}{"index":0,"delta":{"content":"Hel"}${tail}` +
        `${head}{"index":0,"delta":{},"logprobs":null,"finish_reason":"stop","content_filter_results":${JSON.stringify(NOTHING_FILTERED)}}],"usage":null}\n\n` +
        `${head}],"usage":{"prompt_tokens":12,"completion_tokens":3,"total_tokens":15,"prompt_tokens_details":null,"completion_tokens_details":null}}\n\n` +
        'data: [DONE]\n\n',
    )
  })

  test('has no usage in its chunks without include_usage', () => {
    expect(frames([start, say('a'), stop, usage])).not.toContain('usage')
  })

  test('names a tool call once, after a role chunk with null content', () => {
    expect(deltas(frames(twoCalls))).toEqual([
      { role: 'assistant', content: null, refusal: null },
      { tool_calls: [{ index: 0, id: 'toolu_7', type: 'function', function: { name: 'weather', arguments: '' } }] },
      { tool_calls: [{ index: 0, function: { arguments: '{"city":' } }] },
      { tool_calls: [{ index: 0, function: { arguments: '"Oslo"}' } }] },
      { tool_calls: [{ index: 1, id: 'call_abc_1', type: 'function', function: { name: 'now', arguments: '' } }] },
      { tool_calls: [{ index: 1, function: { arguments: '{}' } }] },
      {},
    ])
  })

  test('has the log probabilities in the chunk of their text', () => {
    const logprob = { token: 'Hel', logprob: -0.1, bytes: [72, 101, 108], top_logprobs: [] }
    const text = frames([start, { type: 'text', choice: 0, text: 'Hel', logprobs: [logprob] }, stop])
    expect(chunks(text)[1]?.choices[0]).toEqual({
      index: 0,
      delta: { content: 'Hel' },
      logprobs: { content: [logprob], refusal: null },
      finish_reason: null,
    })
  })

  test('may interleave its choices, each with one role and one finish reason', () => {
    const ends: GenerateEvent = { type: 'finish', choice: 1, reason: 'length' }
    const all = chunks(frames([start, say('a'), say('b', 1), say('c'), ends, stop])).map((chunk) => chunk.choices[0])
    expect(all.filter((choice) => choice?.delta.role)).toHaveLength(2)
    expect(all.filter((choice) => choice?.finish_reason).map((choice) => choice?.index)).toEqual([1, 0])
  })

  test('has a role chunk even if the text is empty', () => {
    expect(deltas(frames([start, stop]))).toEqual([{ role: 'assistant', content: '', refusal: null }, {}])
  })

  test('ends with an error frame and without [DONE] if the engine fails', () => {
    expect(sseFailure(new ServiceError('internal_error', 'The worker failed.'))).toBe(
      'data: {"error":{"message":"The worker failed.","type":"server_error","param":null,"code":"internal_error"}}\n\n',
    )
    expect(SSE_KEEP_ALIVE.openai).toBe(': keep-alive\n\n')
  })

  test('fails if the engine sends no finish reason', () => {
    const text = frames([start, say('Hel')])
    expect(text).toContain('"code":"upstream_error"')
    expect(text).not.toContain('[DONE]')
  })

  test('contains the complete text, and no delta splits a character', () => {
    const split = fc.array(fc.string({ unit: 'binary', maxLength: 6 }), { maxLength: 8 })
    fc.assert(
      fc.property(split, fc.infiniteStream(fc.nat(3)), (texts, cuts) => {
        const text = texts.join('').toWellFormed()
        const found = deltas(frames([start, ...cut(text, cuts).map((piece) => say(piece)), stop]))
        expect(found.map((delta) => delta?.content ?? '').join('')).toBe(text)
        for (const delta of found) expect((delta?.content ?? '').isWellFormed()).toBe(true)
        expect(whole([start, ...cut(text, cuts).map((piece) => say(piece)), stop]).choices[0]?.message.content).toBe(
          text,
        )
      }),
    )
  })
})

/** Splits a text into pieces of 1 to 4 UTF-16 code units, also within surrogate pairs. */
function cut(text: string, lengths: Iterator<number>): string[] {
  const pieces: string[] = []
  for (let at = 0; at < text.length; ) {
    const length = 1 + (lengths.next().value as number)
    pieces.push(text.slice(at, at + length))
    at += length
  }
  return pieces
}

/** Returns a replacement for `fetch` that responds to every request with this body. */
function answering(body: string, type: string): typeof fetch {
  return async () => new Response(body, { headers: { 'content-type': type } })
}

const streaming = (events: readonly GenerateEvent[]) =>
  answering(frames(events, { include_usage: true }), 'text/event-stream; charset=utf-8')
const answered = (events: readonly GenerateEvent[]) => answering(JSON.stringify(whole(events)), 'application/json')
const options = { apiKey: 'sk-test', baseURL: 'http://127.0.0.1:1/v1', maxRetries: 0 }
const asked = { model: 'm1', messages: [{ role: 'user' as const, content: 'Hi' }] }

describe.each([
  ['openai 7', OpenAI],
  ['openai 6', OpenAI6 as unknown as typeof OpenAI],
  ['openai 4', OpenAI4 as unknown as typeof OpenAI],
])('the stream helper of %s', (_, Client) => {
  const streamOf = (events: readonly GenerateEvent[]) => {
    const client = new Client({ ...options, fetch: streaming(events) })
    const completions = 'stream' in client.chat.completions ? client.chat.completions : undefined
    const old = (client as unknown as { beta: { chat: { completions: OpenAI['chat']['completions'] } } }).beta?.chat
    return (completions ?? old.completions).stream({ ...asked, stream_options: { include_usage: true } })
  }

  test('assembles text, usage and finish reason', async () => {
    const completion = await streamOf([start, say('Hel'), say('lo.'), stop, usage]).finalChatCompletion()
    expect(completion.choices[0]?.message.content).toBe('Hello.')
    expect(completion.choices[0]?.finish_reason).toBe('stop')
    expect(completion.usage?.total_tokens).toBe(15)
  })

  test('assembles tool calls', async () => {
    const { tool_calls } = (await streamOf(twoCalls).finalChatCompletion()).choices[0]?.message ?? {}
    const calls = tool_calls?.map(
      (call) => call.type === 'function' && [call.id, call.function.name, call.function.arguments],
    )
    expect(calls).toEqual([
      ['toolu_7', 'weather', '{"city":"Oslo"}'],
      ['call_abc_1', 'now', '{}'],
    ])
  })

  test('throws if the stream fails after its first delta', async () => {
    const opened = chatAnswer.open?.(encoding())
    const said = [start, say('a')].flatMap((event) => opened?.push(event) ?? [])
    const text = sseOf(said) + sseFailure(new ServiceError('overloaded', 'Busy.'))
    const client = new Client({ ...options, fetch: answering(text, 'text/event-stream') })
    const stream = await client.chat.completions.create({ ...asked, stream: true })
    const read = async () => {
      for await (const chunk of stream) expect(chunk.choices).toBeDefined()
    }
    await expect(read()).rejects.toMatchObject({ code: 'overloaded' })
  })
})

describe('ChatOpenAI of LangChain', () => {
  const model = (events: readonly GenerateEvent[]) =>
    new ChatOpenAI({ model: 'm1', ...options, configuration: { baseURL: options.baseURL, fetch: streaming(events) } })

  test('assembles text, tool calls and usage of a stream', async () => {
    const message = (await Array.fromAsync(await model(twoCalls).stream('Hi'))).reduce((all, part) => all.concat(part))
    expect(message.tool_calls?.map((call) => [call.id, call.name, call.args])).toEqual([
      ['toolu_7', 'weather', { city: 'Oslo' }],
      ['call_abc_1', 'now', {}],
    ])
    expect(message.usage_metadata?.total_tokens).toBe(15)
  })
})

describe('the Vercel AI SDK', () => {
  const model = (
    events: readonly GenerateEvent[],
    fetch: (events: readonly GenerateEvent[]) => typeof globalThis.fetch,
  ) => createOpenAICompatible({ name: 'sluice', baseURL: options.baseURL, fetch: fetch(events) })('m1')
  const tools = {
    weather: tool({ inputSchema: z.object({ city: z.string() }) }),
    now: tool({ inputSchema: z.object({}) }),
  }

  test('reads a stream of text', async () => {
    const result = streamText({ model: model([start, say('Hel'), say('lo.'), stop, usage], streaming), prompt: 'Hi' })
    expect(await result.text).toBe('Hello.')
    expect(await result.finishReason).toBe('stop')
    expect((await result.usage).inputTokens).toBe(12)
  })

  test('reads a stream of tool calls in version 6', async () => {
    const provider = createOpenAICompatible2({ name: 's', baseURL: options.baseURL, fetch: streaming(twoCalls) })
    const tools = {
      weather: tool6({ inputSchema: z.object({ city: z.string() }) }),
      now: tool6({ inputSchema: z.object({}) }),
    }
    const result = streamText6({ model: provider('m1'), prompt: 'Hi', tools })
    expect((await result.toolCalls).map((call) => call.input)).toEqual([{ city: 'Oslo' }, {}])
  })

  test('reads tool calls with and without streaming', async () => {
    const streamed = streamText({ model: model(twoCalls, streaming), prompt: 'Hi', tools })
    const once = await generateText({ model: model(twoCalls, answered), prompt: 'Hi', tools })
    const inputs = [{ city: 'Oslo' }, {}]
    expect((await streamed.toolCalls).map((call) => call.input)).toEqual(inputs)
    expect(once.toolCalls.map((call) => call.input)).toEqual(inputs)
  })
})
