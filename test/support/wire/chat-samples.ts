/*
 * Values of every field that the types of the `openai` package declare for chat completions. The test chat-fields.test.ts compares the
 * names with the declarations, so a field of a new version must be added here.
 */

const PNG = 'data:image/png;base64,iVBORw0KGgo='
const BREAKPOINT = { mode: 'explicit', ttl: '30m' }
const FUNCTION = { name: 'f', description: 'Does f.', parameters: { type: 'object', properties: {} }, strict: true }
const CUSTOM = {
  name: 'sql',
  description: 'Runs SQL.',
  format: { type: 'grammar', grammar: { definition: 'start: "a"', syntax: 'lark' } },
}
const TOOLS = [
  { type: 'function', function: FUNCTION },
  { type: 'custom', custom: CUSTOM },
  { type: 'custom', custom: { name: 'text', format: { type: 'text' } } },
]

const CONVERSATION = [
  { role: 'developer', content: 'Be brief.', name: 'ann' },
  { role: 'system', content: [{ type: 'text', text: 'Be kind.', prompt_cache_breakpoint: BREAKPOINT }], name: 'ann' },
  {
    role: 'user',
    name: 'bob',
    content: [
      { type: 'text', text: 'See', prompt_cache_breakpoint: BREAKPOINT },
      { type: 'image_url', image_url: { url: PNG, detail: 'original' }, prompt_cache_breakpoint: BREAKPOINT },
      { type: 'input_audio', input_audio: { data: 'UklGRg==', format: 'mp3' }, prompt_cache_breakpoint: BREAKPOINT },
      {
        type: 'file',
        file: { file_data: 'data:application/pdf;base64,JVBERi0=', filename: 'a.pdf' },
        prompt_cache_breakpoint: BREAKPOINT,
      },
      { type: 'file', file: { file_id: 'file-1' } },
    ],
  },
  {
    role: 'assistant',
    content: [
      { type: 'text', text: 'I will look.', prompt_cache_breakpoint: BREAKPOINT },
      { type: 'refusal', refusal: 'I may not look.' },
    ],
    name: 'cat',
    tool_calls: [
      { id: 'call_1', type: 'function', function: { name: 'f', arguments: '{"a":1}' } },
      { id: 'call_2', type: 'custom', custom: { name: 'sql', input: 'select 1' } },
    ],
  },
  { role: 'tool', tool_call_id: 'call_1', content: 'one' },
  {
    role: 'tool',
    tool_call_id: 'call_2',
    content: [
      { type: 'text', text: 'two', prompt_cache_breakpoint: BREAKPOINT },
      { type: 'text', text: 'three' },
    ],
  },
  { role: 'assistant', content: null, audio: { id: 'audio_1' } },
  { role: 'assistant', content: null, refusal: 'No.' },
  { role: 'user', content: 'Go on.' },
]

const FIELDS = {
  audio: { format: 'wav', voice: 'ash' },
  frequency_penalty: 0.5,
  logit_bias: { '50256': -100 },
  logprobs: true,
  max_completion_tokens: 50,
  modalities: ['text', 'audio'],
  moderation: { model: 'omni', policy: { input: { mode: 'block' }, output: { mode: 'score' } } },
  n: 2,
  parallel_tool_calls: false,
  prediction: { type: 'content', content: [{ type: 'text', text: 'Hello' }] },
  presence_penalty: -0.5,
  prompt_cache_key: 'key',
  prompt_cache_options: { mode: 'explicit', ttl: '30m' },
  prompt_cache_retention: '24h',
  reasoning_effort: 'xhigh',
  safety_identifier: 'hash',
  seed: 7,
  service_tier: 'flex',
  stop: ['a', 'b'],
  temperature: 0.7,
  top_logprobs: 3,
  top_p: 0.9,
  user: 'u1',
  verbosity: 'low',
  web_search_options: {
    search_context_size: 'low',
    user_location: {
      type: 'approximate',
      approximate: { city: 'Oslo', country: 'NO', region: 'Oslo', timezone: 'Europe/Oslo' },
    },
  },
}

const HI = [{ role: 'user', content: 'Hi' }]
const allowed = (mode: string) => ({
  type: 'allowed_tools',
  allowed_tools: {
    mode,
    tools: [
      { type: 'function', function: { name: 'f' } },
      { type: 'custom', custom: { name: 'sql' } },
    ],
  },
})

/** Requests that must reach an upstream with the same API without any change. */
export const REQUESTS: readonly Record<string, unknown>[] = [
  { messages: CONVERSATION, ...FIELDS, tools: TOOLS, tool_choice: 'required' },
  ...['none', 'auto', allowed('auto'), allowed('required')].map((tool_choice) => ({
    messages: HI,
    tools: TOOLS,
    tool_choice,
  })),
  { messages: HI, tools: TOOLS, tool_choice: { type: 'function', function: { name: 'f' } } },
  { messages: HI, tools: TOOLS, tool_choice: { type: 'custom', custom: { name: 'sql' } } },
  { messages: HI, audio: { format: 'pcm16', voice: { id: 'voice_1' } }, response_format: { type: 'text' } },
  { messages: HI, prediction: { type: 'content', content: 'Hello' }, response_format: { type: 'json_object' } },
  {
    messages: HI,
    response_format: {
      type: 'json_schema',
      json_schema: { name: 'a', description: 'An a.', schema: { type: 'object', properties: {} }, strict: true },
    },
  },
  {
    messages: [
      ...HI,
      { role: 'assistant', content: null, function_call: { name: 'f', arguments: '{"a":1}' } },
      { role: 'function', name: 'f', content: '42' },
    ],
    functions: [{ name: 'f', description: 'Does f.', parameters: { type: 'object', properties: {} } }],
    function_call: { name: 'f' },
  },
  { messages: HI, functions: [{ name: 'f' }], function_call: 'none' },
]

const LOGPROB = {
  token: 'Hi',
  logprob: -0.1,
  bytes: [72, 105],
  top_logprobs: [{ token: 'Hi', logprob: -0.1, bytes: null }],
}
const MODERATED = {
  type: 'moderation_results',
  model: 'omni',
  results: [
    {
      type: 'moderation_result',
      model: 'omni',
      flagged: false,
      categories: { hate: false },
      category_scores: { hate: 0.1 },
      category_applied_input_types: { hate: ['text'] },
    },
  ],
}
const MODERATION = { input: MODERATED, output: { type: 'error', code: 'busy', message: 'Try again.' } }
const ANNOTATIONS = [
  { type: 'url_citation', url_citation: { start_index: 0, end_index: 2, title: 'A', url: 'https://a.example' } },
]
const USAGE = {
  prompt_tokens: 9,
  completion_tokens: 5,
  total_tokens: 14,
  prompt_tokens_details: { audio_tokens: 1, cached_tokens: 2, cache_write_tokens: 3, image_tokens: 1, text_tokens: 2 },
  completion_tokens_details: {
    accepted_prediction_tokens: 1,
    audio_tokens: 1,
    reasoning_tokens: 1,
    text_tokens: 2,
    rejected_prediction_tokens: 1,
  },
}
const ANSWER = {
  id: 'chatcmpl-1',
  object: 'chat.completion',
  created: 1,
  model: 'm',
  service_tier: 'flex',
  system_fingerprint: 'fp_1',
  moderation: MODERATION,
  usage: USAGE,
}
const message = (fields: object) => ({ role: 'assistant', content: null, refusal: null, annotations: [], ...fields })
const choice = (fields: object, more: object = {}) => ({
  index: 0,
  finish_reason: 'stop',
  logprobs: null,
  message: message(fields),
  ...more,
})
const CALLS = [
  { id: 'call_1', type: 'function', function: { name: 'f', arguments: '{"a":1}' } },
  { id: 'call_2', type: 'custom', custom: { name: 'sql', input: 'select 1' } },
]

/** Responses of an upstream, each with the request fields for which an upstream answers in this form. */
export const ANSWERS: readonly { readonly asked: object; readonly answer: Record<string, unknown> }[] = [
  {
    asked: {},
    answer: {
      ...ANSWER,
      choices: [
        choice({ content: 'Hi', annotations: ANNOTATIONS }, { logprobs: { content: [LOGPROB], refusal: null } }),
      ],
    },
  },
  {
    asked: {},
    answer: {
      ...ANSWER,
      choices: [choice({ refusal: 'No' }, { logprobs: { content: null, refusal: [LOGPROB] } })],
    },
  },
  {
    asked: {},
    answer: {
      ...ANSWER,
      choices: [choice({ audio: { id: 'audio_1', data: 'UklGRg==', expires_at: 9, transcript: 'Hi' } })],
    },
  },
  {
    asked: { tools: TOOLS },
    answer: { ...ANSWER, choices: [choice({ tool_calls: CALLS }, { finish_reason: 'tool_calls' })] },
  },
  {
    asked: { functions: [{ name: 'f' }] },
    answer: {
      ...ANSWER,
      choices: [choice({ function_call: { name: 'f', arguments: '{}' } }, { finish_reason: 'function_call' })],
    },
  },
  ...['length', 'content_filter'].map((finish_reason) => ({
    asked: {},
    answer: { ...ANSWER, choices: [choice({ content: 'Hi' }, { finish_reason })] },
  })),
]

type Json = Record<string, unknown>

/** Splits a response into the chunks in which OpenAI would stream it. */
export function chunksOf(answer: Json): Json[] {
  const { usage, choices, moderation, ...head } = answer as Json & { choices: Json[] }
  const [{ message, logprobs, finish_reason } = {}] = choices
  const { role, content, refusal, annotations, audio, tool_calls, function_call } = message as Json
  const chunk = (delta: object, more: object = {}) => ({
    ...head,
    object: 'chat.completion.chunk',
    choices: [{ index: 0, delta, logprobs: null, finish_reason: null, ...more }],
    obfuscation: 'x',
    usage: null,
  })
  const calls = ((tool_calls ?? []) as Json[]).map((call, index) => chunk({ tool_calls: [{ index, ...call }] }))
  const { id, ...spoken } = (audio ?? {}) as Json
  return [
    chunk({ role, content: content === null ? null : '', refusal: null }),
    ...(content ? [chunk({ content }, { logprobs })] : []),
    ...(refusal ? [chunk({ refusal }, { logprobs })] : []),
    ...((annotations as unknown[]).length > 0 ? [chunk({ annotations })] : []),
    ...(audio
      ? [
          chunk({ audio: { id } }),
          ...Object.entries(spoken).map(([name, value]) => chunk({ audio: { [name]: value } })),
        ]
      : []),
    ...calls,
    ...(function_call ? [chunk({ function_call })] : []),
    { ...chunk({}, { finish_reason }), moderation },
    { ...head, object: 'chat.completion.chunk', choices: [], usage },
  ]
}
