import { describe, expect, test } from 'vitest'
import { GenerateEvent, type GenerateRequest } from '#schemas/kinds/generate.ts'
import { OpenAiDecoder } from '#shared/engines/openai/decode.ts'
import { runToEnd } from '#shared/lib/yielding.ts'
import { ask } from '../../support/engine-calls.ts'

/** Content of a decoded response. */
interface Seen {
  readonly text: string
  readonly thought: string
  readonly calls: readonly [id: string, name: string, args: string][]
  readonly finish: readonly string[]
  readonly native: readonly (readonly [scope: string, value: unknown])[]
}

/** Decodes the frames of a stream, or a whole response, with a new decoder. */
function read(answer: object | readonly object[], fields: object = {}, isDone = true) {
  const decoder = new OpenAiDecoder(ask(fields) as GenerateRequest)
  const out: GenerateEvent[] = []
  if (Array.isArray(answer)) for (const frame of answer) decoder.frame(frame, out)
  else decoder.whole(answer as Record<string, unknown>, out)
  const { isComplete } = decoder
  if (Array.isArray(answer) && isDone) decoder.isEnd('[DONE]')
  runToEnd(decoder.end(out))
  return { seen: seenIn(out.map((event) => GenerateEvent.parse(event))), decoder, isComplete }
}

function seenIn(events: readonly GenerateEvent[]): Seen {
  const textOf = (wanted: string) => events.map((event) => (event.type === wanted && 'text' in event ? event.text : ''))
  const calls = events.flatMap((event) => {
    if (event.type !== 'tool_call') return []
    const pieces = events.map((other) => {
      return other.type === 'tool_arguments' && other.call === event.call && other.choice === event.choice
        ? other.text
        : ''
    })
    return [[event.id, event.name, pieces.join('')] as [string, string, string]]
  })
  return {
    text: textOf('text').join(''),
    thought: textOf('reasoning').join(''),
    calls,
    finish: events.flatMap((event) => (event.type === 'finish' ? [event.reason] : [])),
    native: events.flatMap((event) =>
      event.type === 'native' ? [[event.scope, JSON.parse(event.text)] as const] : [],
    ),
  }
}

const chunk = (delta: unknown, more: object = {}) => ({ choices: [{ index: 0, delta, finish_reason: null, ...more }] })
const end = (finish_reason: unknown = 'stop', more: object = {}) => ({
  choices: [{ index: 0, delta: {}, finish_reason }],
  ...more,
})
const whole = (message: object, finish_reason: unknown = 'stop', more: object = {}) => ({
  choices: [{ index: 0, message: { role: 'assistant', content: null, ...message }, finish_reason }],
  ...more,
})
const role = chunk({ role: 'assistant', content: '' })
const call = (fields: object) => chunk({ tool_calls: [fields] })
const named = (name: string, args: unknown) => ({ function: { name, arguments: args } })

describe('tool calls of an OpenAI upstream', () => {
  const two = [
    ['', 'f', '{"a":1}'],
    ['', 'g', '{"b":2}'],
  ]

  test.each<[string, object[], string[][]]>([
    [
      'with one index and no ids',
      [call({ index: 0, ...named('f', '{"a":1}') }), call({ index: 0, ...named('g', '{"b":2}') })],
      two,
    ],
    [
      'with one index, no ids and arguments in pieces',
      [
        call({ index: 0, ...named('f', '{"a"') }),
        call({ index: 0, function: { arguments: ':1}' } }),
        call({ index: 0, ...named('g', '{"b":') }),
        call({ index: 0, function: { arguments: '2}' } }),
      ],
      two,
    ],
    [
      'with two calls of one function, one index and no ids',
      [call({ index: 0, ...named('f', '{"a":1}') }), call({ index: 0, ...named('f', '{"a":1}') })],
      [
        ['', 'f', '{"a":1}'],
        ['', 'f', '{"a":1}'],
      ],
    ],
    [
      'with one id',
      [call({ index: 0, id: 'x', ...named('f', '{"a":1}') }), call({ index: 1, id: 'x', ...named('g', '{"b":2}') })],
      [
        ['x', 'f', '{"a":1}'],
        ['', 'g', '{"b":2}'],
      ],
    ],
    [
      'with one id and one index',
      [call({ index: 0, id: 'x', ...named('f', '{"a":1}') }), call({ index: 0, id: 'x', ...named('g', '{"b":2}') })],
      [
        ['x', 'f', '{"a":1}'],
        ['', 'g', '{"b":2}'],
      ],
    ],
    [
      'with the name repeated in each delta',
      [
        call({ index: 0, id: 'x', ...named('f', '') }),
        call({ index: 0, id: 'x', ...named('f', '{"a":') }),
        call({ index: 0, id: 'x', ...named('f', '1}') }),
        call({ index: 0, id: 'x', ...named('f', '') }),
      ],
      [['x', 'f', '{"a":1}']],
    ],
    [
      'whose braces are inside a string',
      [call({ index: 0, ...named('f', '{"a":"}"') }), call({ index: 0, function: { arguments: ',"b":2}' } })],
      [['', 'f', '{"a":"}","b":2}']],
    ],
    [
      'with pieces that only their id distinguishes',
      [
        call({ id: 'x', ...named('f', '') }),
        call({ id: 'y', ...named('g', '') }),
        call({ id: 'x', function: { arguments: '{"a":1}' } }),
        call({ id: 'y', function: { arguments: '{"b":2}' } }),
      ],
      [
        ['x', 'f', '{"a":1}'],
        ['y', 'g', '{"b":2}'],
      ],
    ],
    ['with arguments as an object', [call({ index: 0, ...named('f', { a: 1 }) })], [['', 'f', '{"a":1}']]],
    ['with null as arguments', [call({ index: 0, ...named('f', 'null') })], [['', 'f', '{}']]],
    [
      'with arguments encoded as JSON twice',
      [call({ index: 0, ...named('f', '"{\\"a\\"') }), call({ index: 0, function: { arguments: ':1}"' } })],
      [['', 'f', '{"a":1}']],
    ],
    ['without the field "function"', [call({ index: 0, name: 'f', arguments: { a: 1 } })], [['', 'f', '{"a":1}']]],
    ['as an object instead of a list', [chunk({ tool_calls: { id: 'x', ...named('f', '{}') } })], [['x', 'f', '{}']]],
    [
      'as a deprecated function',
      [chunk({ function_call: { name: 'f', arguments: '{"a":1}' } })],
      [['', 'f', '{"a":1}']],
    ],
    [
      'as a deprecated function in pieces',
      [chunk({ function_call: { name: 'f', arguments: '' } }), chunk({ function_call: { arguments: '{"a":1}' } })],
      [['', 'f', '{"a":1}']],
    ],
  ])('are decoded from a stream %s', (_, frames, calls) => {
    const { seen } = read([role, ...frames, end('tool_calls')])
    expect(seen).toMatchObject({ calls, finish: ['tool_calls'] })
  })

  test.each<[string, object, string[][]]>([
    [
      'with one id',
      { tool_calls: ['f', 'g'].map((name) => ({ id: 'x', ...named(name, '{}') })) },
      [
        ['x', 'f', '{}'],
        ['', 'g', '{}'],
      ],
    ],
    [
      'with index 0 for each call',
      { tool_calls: ['f', 'f'].map((name) => ({ index: 0, ...named(name, '') })) },
      [
        ['', 'f', '{}'],
        ['', 'f', '{}'],
      ],
    ],
    ['with null in the list of calls', { tool_calls: [null, { id: 'x', ...named('f', {}) }] }, [['x', 'f', '{}']]],
    ['as a deprecated function', { function_call: { name: 'f', arguments: '{}' } }, [['', 'f', '{}']]],
  ])('are decoded from a whole response %s', (_, message, calls) => {
    expect(read(whole(message, null)).seen).toMatchObject({ calls, finish: ['tool_calls'] })
  })

  test.each(['{"a": 1', '{a: 1}', '[1]', '5', '"text"', '{"a":1}}'])(
    'with invalid JSON arguments end the response with finish reason length: %s',
    (text) => {
      expect(read([call({ index: 0, ...named('f', text) }), end('tool_calls')]).seen.finish).toEqual(['length'])
      expect(read(whole({ tool_calls: [named('f', text)] }, 'tool_calls')).seen.finish).toEqual(['length'])
    },
  )

  test.each([{ name: '' }, { name: ' ' }, { name: null }, { name: 5 }, {}])(
    'make the response fail if the name of the tool is %j',
    (called) => {
      const frames = [call({ index: 0, function: { ...called, arguments: '{}' } }), end('tool_calls')]
      expect(() => read(frames)).toThrow('called a tool without a name')
    },
  )

  test('of type custom are forwarded with text input and unknown fields', () => {
    const custom = {
      id: 'x',
      type: 'custom',
      extra_content: { google: 1 },
      custom: { name: 'sql', input: 'null; select' },
    }
    const decoder = new OpenAiDecoder(ask({}))
    const out: GenerateEvent[] = []
    decoder.whole(whole({ tool_calls: [custom] }, 'tool_calls'), out)
    runToEnd(decoder.end(out))
    expect(out.slice(1)).toEqual([
      {
        type: 'tool_call',
        choice: 0,
        call: 0,
        id: 'x',
        name: 'sql',
        custom: true,
        extra: { extra_content: { google: 1 } },
      },
      { type: 'tool_arguments', choice: 0, call: 0, text: 'null; select' },
      { type: 'finish', choice: 0, reason: 'tool_calls' },
    ])
  })

  test('are parsed with an event-loop yield after each call', () => {
    const call = { type: 'function', function: { name: 'f', arguments: '{}' } }
    const decoder = new OpenAiDecoder(ask({}))
    decoder.whole(whole({ tool_calls: [call, call, call] }, 'tool_calls'), [])
    expect([...decoder.end([])]).toHaveLength(3)
  })

  test('keep the deprecated function_call form if the caller used functions', () => {
    const fields = { extra: { functions: [{ name: 'f' }] } }
    const function_call = { name: 'f', arguments: '{"a":1}' }
    expect(read(whole({ function_call }, 'function_call'), fields).seen.native).toEqual([
      ['message', { function_call }],
      ['text', { finish_reason: 'function_call' }],
    ])
  })
})

describe('the content of an OpenAI response', () => {
  test.each<[string, object[]]>([
    [
      'a message next to an empty delta',
      [chunk({}, { message: { role: 'assistant', content: 'Hello' }, finish_reason: 'stop' })],
    ],
    [
      'a message next to a delta of nulls',
      [chunk({ role: 'assistant', content: null, tool_calls: [] }, { message: { content: 'Hello' } })],
    ],
    ['a message without a delta', [{ choices: [{ index: 0, message: { content: 'Hello' }, finish_reason: 'stop' }] }]],
    [
      'a message at the end that repeats the deltas',
      [chunk({ content: 'Hello' }), chunk({}, { message: { content: 'Hello' }, finish_reason: 'stop' })],
    ],
    ['content parts', [chunk({ content: [{ type: 'text', text: 'Hel' }, 'lo'] })]],
    ['a single content part', [chunk({ content: { type: 'text', text: 'Hello' } })]],
    ['a text object with a value', [chunk({ content: [{ type: 'text', text: { value: 'Hello', annotations: [] } }] })]],
    ['a chunk after one with a null choice', [{ choices: [null] }, chunk({ content: 'Hello' })]],
    ['choices as an object instead of a list', [{ choices: { index: 0, delta: { content: 'Hello' } } }]],
    ['a choice with index 1', [{ choices: [{ index: 1, delta: { content: 'Hello' } }] }]],
    ['a choice with a string as index', [{ choices: [{ index: '0', delta: { content: 'Hello' } }] }]],
    ['text with another index than the role', [role, { choices: [{ index: 1, delta: { content: 'Hello' } }] }]],
    [
      'the first choice if the server adds a second one',
      [chunk({ content: 'Hello' }), { choices: [{ index: 1, delta: { content: 'Bye' } }] }],
    ],
    [
      'the native format of Ollama',
      [{ message: { role: 'assistant', content: 'Hello' }, done: true, done_reason: 'stop' }],
    ],
  ])('is decoded from %s', (_, frames) => {
    expect(read(frames).seen).toMatchObject({ text: 'Hello', finish: ['stop'] })
  })

  test.each([
    [42, '42'],
    [true, 'true'],
    [{ a: 1 }, '{"a":1}'],
  ])('is converted to text if it is %j', (content, text) => {
    expect(read([chunk({ content }), end()]).seen.text).toBe(text)
    expect(read(whole({ content })).seen.text).toBe(text)
  })

  test.each<[object, string]>([
    [{ reasoning: 'think', reasoning_content: '' }, 'think'],
    [{ reasoning: 'think', reasoning_content: 'think' }, 'think'],
    [{ thinking: 'think' }, 'think'],
    [{ reasoning_details: [{ type: 'reasoning.text', text: 'think' }] }, 'think'],
    [{ reasoning: 'think', reasoning_details: [{ type: 'reasoning.text', text: 'think' }] }, 'think'],
    [{ content: [{ type: 'thinking', thinking: [{ type: 'text', text: 'think' }] }] }, 'think'],
    [{ content: [{ type: 'reasoning', text: 'think' }] }, 'think'],
  ])('contains reasoning if the delta is %j', (delta, thought) => {
    expect(read([chunk(delta), chunk({ content: 'Hello' }), end()]).seen).toMatchObject({ thought, text: 'Hello' })
  })
})

describe('the finish reason of an OpenAI response', () => {
  test.each([
    [
      'length',
      ['model_length', 'max_tokens', 'MAX_TOKENS', 'max_output_tokens', 'model_context_window_exceeded', 'LENGTH'],
    ],
    [
      'content_filter',
      ['SAFETY', 'RECITATION', 'content_filtered', 'PROHIBITED_CONTENT', 'guardrail_intervened', 'sensitive'],
    ],
    ['stop', ['stop', 'STOP', 'eos', 'eos_token', 'end_turn', 'stop_sequence', 'COMPLETE', 'a word of tomorrow']],
  ])('is %s for each of the upstream values %j', (finish, words) => {
    for (const word of words) {
      expect([word, ...read([chunk({ content: 'Hello' }), end(word)], {}, false).seen.finish]).toEqual([word, finish])
    }
  })

  test.each(['tool_use', 'function_call', 'TOOL_CALLS', 'stop'])(
    'becomes tool_calls if the upstream sends %s and the response has a tool call',
    (word) => {
      expect(read([call({ index: 0, ...named('f', '{}') }), end(word)]).seen.finish).toEqual(['tool_calls'])
    },
  )

  test.each(['error', 'abort', 'MALFORMED_FUNCTION_CALL', 'insufficient_system_resource', 'network_error'])(
    'makes the response fail with an error if the upstream sends %s',
    (word) => {
      expect(() => read([chunk({ content: 'Hello' }), end(word)])).toThrow('stopped before its response was complete')
    },
  )

  test.each([null, '', 'null', 'FINISH_REASON_UNSPECIFIED'])(
    'completes a whole response, but not a stream, if it is %j',
    (word) => {
      expect(read(whole({ content: 'Hello' }, word)).seen.finish).toEqual(['stop'])
      expect(() => read([chunk({ content: 'Hello' }), end(word)], {}, false)).toThrow('before it was complete')
    },
  )

  test('completes a response once each choice has a finish reason', () => {
    const of = (index: number, finish_reason: string | null) => ({
      choices: [{ index, delta: { content: 'a' }, finish_reason }],
    })
    expect(read([of(0, 'stop'), of(1, null)], { n: 2 }).isComplete).toBe(false)
    expect(read([of(0, 'stop'), of(1, 'length')], { n: 2 }).isComplete).toBe(true)
    expect(read([chunk({ content: 'a' })]).isComplete).toBe(false)
  })
})

describe('an OpenAI response without readable output', () => {
  const tokens = (completion_tokens: number, more: object = {}) => ({
    usage: { prompt_tokens: 3, completion_tokens, ...more },
  })
  const details = (reasoning_tokens: number) => ({ completion_tokens_details: { reasoning_tokens } })

  test.each<[string, string, object]>([
    ['output tokens', 'stop', tokens(5)],
    ['output tokens and finish reason length', 'length', tokens(5)],
    ['finish reason length', 'length', {}],
    ['finish reason tool_calls', 'tool_calls', {}],
    ['finish reason tool_calls and no output tokens', 'tool_calls', tokens(0)],
    ['finish reason function_call', 'function_call', tokens(3)],
    ['more output tokens than reasoning tokens', 'stop', tokens(9, details(4))],
  ])('fails with an error if the upstream reports %s', (_, finish, more) => {
    expect(() => read([role, end(finish, more)])).toThrow('reported output tokens, but sent no readable output')
    expect(() => read(whole({ content: '' }, finish, more))).toThrow(
      'reported output tokens, but sent no readable output',
    )
  })

  test.each<[string, string, object, object?]>([
    ['no output tokens', 'stop', tokens(0)],
    ['one output token, the end-of-text mark', 'stop', tokens(1)],
    ['no usage', 'stop', {}],
    ['an empty usage object', 'stop', { usage: {} }],
    ['reasoning tokens only and finish reason length', 'length', tokens(9, details(9))],
    ['finish reason content_filter', 'content_filter', tokens(9)],
    ['two output tokens and the request has a stop string', 'stop', tokens(2), { stop: ['###'] }],
  ])('is an empty response if the upstream reports %s', (_, finish, more, fields = {}) => {
    expect(read([role, end(finish, more)], fields).seen).toMatchObject({ text: '', finish: [finish] })
  })

  test('fails as incomplete if the stream ends without a finish reason', () => {
    expect(() => read([role])).toThrow('before it was complete')
  })
})

describe('usage of an OpenAI response', () => {
  const usage = { prompt_tokens: 9, completion_tokens: 4, total_tokens: 13 }
  const empty = { choices: [] }

  test.each<[string, object[]]>([
    ['from the last chunk', [{ ...empty, usage }]],
    [
      'from chunks that all have usage',
      [
        { ...empty, usage: { ...usage, completion_tokens: 1 } },
        { ...empty, usage },
      ],
    ],
    [
      'from a chunk before one with empty usage',
      [
        { ...empty, usage },
        { ...empty, usage: {} },
        { ...empty, usage: null },
      ],
    ],
    [
      'from a chunk before one with zero counts',
      [
        { ...empty, usage },
        { ...empty, usage: { prompt_tokens: 0, completion_tokens: 0 } },
      ],
    ],
    [
      'from a chunk after one with zero counts',
      [
        { ...empty, usage: { prompt_tokens: 9, completion_tokens: 0 } },
        { ...empty, usage },
      ],
    ],
    [
      'from two chunks with one count each',
      [
        { ...empty, usage: { prompt_tokens: 9 } },
        { ...empty, usage: { completion_tokens: 4 } },
      ],
    ],
    ['from a choice', [{ choices: [{ index: 0, delta: {}, usage }] }]],
    ['from a delta', [{ choices: [{ index: 0, delta: { usage } }] }]],
    ['from the field of Groq', [{ ...empty, x_groq: { id: 'x', usage } }]],
    ['from the fields of Ollama', [{ ...empty, prompt_eval_count: 9, eval_count: 4 }]],
    ['from the timings of llama.cpp', [{ ...empty, timings: { prompt_n: 7, cache_n: 2, predicted_n: 4 } }]],
    ['from the field of Gemini', [{ ...empty, usageMetadata: { promptTokenCount: 9, candidatesTokenCount: 4 } }]],
    ['from the field names of the Messages API', [{ ...empty, usage: { input_tokens: 9, output_tokens: 4 } }]],
    ['from one count and the total', [{ ...empty, usage: { prompt_tokens: 9, total_tokens: 13 } }]],
    ['from usage rather than timings if both exist', [{ ...empty, usage, timings: { prompt_n: 1, predicted_n: 1 } }]],
  ])('is decoded %s', (_, chunks) => {
    const { decoder } = read([chunk({ content: 'Hello' }), ...chunks, end()])
    expect(decoder.usage).toMatchObject({ input_tokens: 9, output_tokens: 4 })
  })

  test('has no value for a count that is missing, or that is zero despite output', () => {
    const of = (usage: object) => read([chunk({ content: 'Hello' }), end('stop', { usage })]).decoder.usage
    expect(of({ prompt_tokens: 9 })).toEqual({ input_tokens: 9 })
    expect(of({ prompt_tokens: 0, completion_tokens: 4 })).toEqual({ output_tokens: 4 })
    expect(of({ prompt_tokens: 9, completion_tokens: 0 })).toEqual({ input_tokens: 9 })
    for (const nothing of [
      {},
      { prompt_tokens: 0, completion_tokens: 0 },
      { prompt_tokens: null },
      { prompt_tokens: -1 },
    ])
      expect(of(nothing)).toBeUndefined()
  })

  test('is forwarded with all details to a caller of the OpenAI API only', () => {
    const details = { prompt_tokens_details: { cached_tokens: 5, audio_tokens: 1 }, cost: 0.1 }
    const frames = [
      chunk({ content: 'Hello' }),
      end('stop', { usage: { ...usage, ...details } }),
      { ...empty, usage: { ...usage, cost: 0 } },
    ]
    const { decoder } = read(frames)
    expect(decoder.usage).toEqual({ input_tokens: 9, output_tokens: 4, cached_tokens: 5 })
    expect(decoder.nativeUsage).toEqual({ dialect: 'openai', value: { ...usage, ...details } })
    expect(read(frames, { dialect: 'anthropic' }).decoder.nativeUsage).toBeUndefined()
    expect(read([chunk({ content: 'Hello' }), end('stop', { usage })]).decoder.nativeUsage).toBeUndefined()
  })
})

describe('fields of an OpenAI response without an internal form', () => {
  const annotations = [{ type: 'url_citation', url_citation: { url: 'https://a.example' } }]

  test('are forwarded to a caller of the OpenAI API and dropped for others', () => {
    const frames = [
      { ...role, service_tier: 'flex', obfuscation: 'x' },
      {
        ...chunk({ content: 'Hi', reasoning_details: [{ type: 'reasoning.encrypted', data: 'x' }] }),
        service_tier: 'flex',
      },
      chunk({ annotations, audio: null, tool_calls: [] }),
      end('stop', { service_tier: 'default', moderation: null }),
    ]
    expect(read(frames).seen.native).toEqual([
      ['answer', { service_tier: 'flex' }],
      ['message', { reasoning_details: [{ type: 'reasoning.encrypted', data: 'x' }] }],
      ['message', { annotations }],
      ['answer', { service_tier: 'default' }],
    ])
    expect(read(frames, { dialect: 'anthropic' }).seen.native).toEqual([])
  })

  test('include the log probabilities of a refusal', () => {
    const refusal = [{ token: 'No', logprob: -1, bytes: null, top_logprobs: [] }]
    const frames = [chunk({ refusal: 'No' }, { logprobs: { content: null, refusal } }), end()]
    expect(read(frames).seen.native).toEqual([['text', { logprobs: { refusal } }]])
  })
})
