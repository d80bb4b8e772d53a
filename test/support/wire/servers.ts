import type { WireCase } from './case.ts'
import {
  CHAT_USAGE,
  chunk,
  completion,
  DONE,
  event,
  frame,
  HELLO,
  HELLO_BLOCK,
  JSON_TYPE,
  MESSAGE_ITEM,
  MESSAGE_STOP,
  messageStream,
  ROLE,
  response,
  SSE,
  STOP,
  USAGE,
} from './frames.ts'

const HELLO_STOP = { text: 'Hello', finish: 'stop' }
const USED = { ...HELLO_STOP, usage: [9, 4] }
const CALL = { calls: [['f', { a: 1 }]], finish: 'tool_calls' } as const

const called = (calls: readonly object[]) => frame(chunk({ tool_calls: calls }))
const fOf = (more: object) => ({
  id: 'call_a',
  type: 'function',
  function: { name: 'f', arguments: '{"a":1}' },
  ...more,
})

/** Streams of chat completions as real servers send them: name, body and expected response. */
const STREAMS: readonly (readonly [string, string, WireCase['expect']])[] = [
  [
    'vllm',
    ROLE + HELLO + frame(chunk({ content: '' }, 'stop', { usage: null, prompt_token_ids: null })) + USAGE + DONE,
    USED,
  ],
  [
    'vllm_reasoning',
    ROLE + frame(chunk({ reasoning: 'think', content: null })) + HELLO + STOP + DONE,
    { ...HELLO_STOP, reasoning: 'think' },
  ],
  [
    'sglang',
    frame(chunk({ role: 'assistant', content: '', reasoning_content: null, tool_calls: null }, null, { usage: null })) +
      frame(chunk({ content: 'Hello', reasoning_content: null, tool_calls: null })) +
      frame({
        ...chunk({}),
        choices: [{ index: 0, delta: { content: null }, finish_reason: 'stop', matched_stop: 2 }],
      }) +
      USAGE +
      DONE,
    USED,
  ],
  ['llamacpp', ROLE + HELLO + frame(chunk({}, 'stop', { timings: { prompt_n: 9 }, usage: CHAT_USAGE })) + DONE, USED],
  [
    'ollama',
    frame(chunk({ role: 'assistant', content: 'Hello' })) + frame(chunk({ content: '' }, 'stop')) + DONE,
    HELLO_STOP,
  ],
  ['lmstudio', ROLE + HELLO + frame(chunk({}, 'stop', { stats: {}, usage: CHAT_USAGE })) + DONE, USED],
  [
    'deepseek',
    ': keep-alive\n\n: keep-alive\n\n' +
      frame(chunk({ role: 'assistant', content: null, reasoning_content: 'think' })) +
      frame(chunk({ content: 'Hello', reasoning_content: null })) +
      frame(chunk({ content: '', reasoning_content: null }, 'stop', { usage: CHAT_USAGE })) +
      DONE,
    { ...USED, reasoning: 'think' },
  ],
  ['openrouter', `: OPENROUTER PROCESSING\n\n${ROLE}: OPENROUTER PROCESSING\n\n${HELLO}${STOP}${USAGE}${DONE}`, USED],
  [
    'azure',
    frame({ choices: [], id: '', model: '', object: '', prompt_filter_results: [{ prompt_index: 0 }] }) +
      ROLE +
      HELLO +
      frame({ ...chunk({}), choices: [{ index: 0, delta: {}, finish_reason: 'stop', content_filter_results: {} }] }) +
      DONE,
    HELLO_STOP,
  ],
  [
    'mistral_parts',
    ROLE +
      frame(chunk({ content: [{ type: 'thinking', thinking: [{ type: 'text', text: 'think' }] }] })) +
      frame(chunk({ content: [{ type: 'text', text: 'Hello' }] })) +
      STOP +
      DONE,
    { ...HELLO_STOP, reasoning: 'think' },
  ],
  ['groq_usage', ROLE + HELLO + frame(chunk({}, 'stop', { x_groq: { id: 'r', usage: CHAT_USAGE } })) + DONE, USED],
  ['tgi_eos', ROLE + HELLO + frame(chunk({}, 'eos_token')) + DONE, HELLO_STOP],
  ['gemini_max_tokens', HELLO + frame(chunk({}, 'MAX_TOKENS')) + DONE, { text: 'Hello', finish: 'length' }],
  ['gemini_recitation', HELLO + frame(chunk({}, 'RECITATION')) + DONE, { text: 'Hello', finish: 'content_filter' }],
  ['stop_upper', HELLO + frame(chunk({}, 'STOP')) + DONE, HELLO_STOP],
  ['call_whole', ROLE + called([{ index: 0, ...fOf({}) }]) + frame(chunk({}, 'tool_calls')) + DONE, CALL],
  ['call_finish_stop', ROLE + called([{ index: 0, ...fOf({}) }]) + STOP + DONE, CALL],
  [
    'call_object',
    ROLE +
      called([{ index: 0, id: 'call_a', function: { name: 'f', arguments: { a: 1 } } }]) +
      frame(chunk({}, 'tool_calls')) +
      DONE,
    CALL,
  ],
  [
    'call_pieces',
    ROLE +
      called([{ index: 0, id: 'call_a', type: 'function', function: { name: 'f', arguments: '' } }]) +
      called([{ index: 0, id: 'call_a', function: { name: 'f', arguments: '{"a"' } }]) +
      called([{ index: 0, id: 'call_a', function: { name: 'f', arguments: ':1}' } }]) +
      frame(chunk({}, 'tool_calls')) +
      DONE,
    CALL,
  ],
  [
    'gemini_calls',
    frame(
      chunk(
        {
          role: 'assistant',
          tool_calls: [
            { index: 0, id: '', type: 'function', function: { name: 'f', arguments: '{"a":1}' } },
            { index: 0, id: '', type: 'function', function: { name: 'g', arguments: '{"b":2}' } },
          ],
        },
        'stop',
      ),
    ) + DONE,
    {
      calls: [
        ['f', { a: 1 }],
        ['g', { b: 2 }],
      ],
      finish: 'tool_calls',
    },
  ],
  ['usage_only_last_choice', ROLE + HELLO + frame(chunk({}, 'stop', { usage: CHAT_USAGE })) + DONE, USED],
  [
    'usage_zero_then_real',
    frame(chunk({ content: 'Hello' }, null, { usage: { prompt_tokens: 0, completion_tokens: 0 } })) +
      STOP +
      USAGE +
      DONE,
    USED,
  ],
]

const WHOLES: readonly (readonly [string, object, WireCase['expect']])[] = [
  ['whole_call_stop', completion({ tool_calls: [fOf({})] }, 'stop'), CALL],
  [
    'whole_call_object',
    completion({ tool_calls: [fOf({ function: { name: 'f', arguments: { a: 1 } } })] }, 'tool_calls'),
    CALL,
  ],
  ['whole_null_calls', completion({ content: 'Hello', tool_calls: null, function_call: null, refusal: null }), USED],
  ['whole_empty_calls', completion({ content: 'Hello', tool_calls: [], reasoning_content: null }), USED],
  ['whole_length', completion({ content: 'Hello' }, 'model_length'), { text: 'Hello', finish: 'length' }],
  ['whole_error_null', completion({ content: 'Hello' }, 'stop', { error: null }), USED],
]

const MESSAGES: readonly WireCase[] = [
  {
    name: 'anthropic_ping',
    upstream: 'anthropic',
    head: SSE,
    body: messageStream(event({ type: 'ping' }) + HELLO_BLOCK) + event({ type: 'ping' }) + MESSAGE_STOP,
    expect: USED,
  },
  {
    name: 'anthropic_whole_as_stream',
    upstream: 'anthropic',
    head: SSE,
    body: JSON.stringify({
      type: 'message',
      role: 'assistant',
      content: [{ type: 'text', text: 'Hello' }],
      stop_reason: 'end_turn',
      usage: { input_tokens: 9, output_tokens: 4 },
    }),
    expect: USED,
  },
  {
    name: 'anthropic_no_event_names',
    upstream: 'anthropic',
    head: { 'content-type': 'application/json' },
    body: (messageStream(HELLO_BLOCK) + MESSAGE_STOP).replaceAll(/^event: .*\n/gm, ''),
    expect: USED,
  },
]

const RESPONSES: readonly WireCase[] = [
  {
    name: 'responses_whole',
    upstream: 'responses',
    head: { 'content-type': 'text/plain' },
    body: JSON.stringify(response([MESSAGE_ITEM])),
    expect: USED,
  },
  {
    name: 'responses_incomplete',
    upstream: 'responses',
    head: JSON_TYPE,
    body: JSON.stringify(
      response([MESSAGE_ITEM], { status: 'incomplete', incomplete_details: { reason: 'max_output_tokens' } }),
    ),
    expect: { text: 'Hello', finish: 'length' },
  },
]

/** All valid responses, as real servers send them. */
export const SERVERS: readonly WireCase[] = [
  ...STREAMS.map(([name, body, expect]): WireCase => ({ name, upstream: 'openai', head: SSE, body, expect })),
  ...WHOLES.map(
    ([name, body, expect]): WireCase => ({
      name,
      upstream: 'openai',
      head: JSON_TYPE,
      body: JSON.stringify(body),
      expect,
    }),
  ),
  ...MESSAGES,
  ...RESPONSES,
]
