import { request } from 'node:http'
import { WebSocket } from 'ws'
import { WS_PROTOCOL } from '#schemas/ws.ts'
import { TEST_KEY } from './stack.ts'

/**
 * A request that costs the service much CPU time, because it is large or unusual. Tests send each one and measure how long it blocks the event loop.
 * A developer who adds an endpoint must add requests for the endpoint.
 */
export interface HostileInput {
  readonly name: string
  /** Builds the body. Called just before the request is sent, because all bodies together would fill the memory of the test process. */
  make(): Buffer
  /**
   * Sends the body and settles with the response.
   *
   * @returns HTTP status, if any
   */
  send(url: string, made: Buffer): Promise<number | undefined>
  /** If true, then the request is sent once before the measurement. The first answer of this type spends most of its time in the JIT compiler. */
  readonly isWarmed?: boolean
  /** Set only if this request is known to block the event loop longer than allowed: the expected duration, and the reason. */
  readonly holds?: { readonly ms: number; readonly why: string }
}

const MIB = 1024 * 1024
const LARGE = 28 * MIB
const CHAT = '/v1/chat/completions'
const COMPLETIONS = '/v1/completions'
const MESSAGES = '/v1/messages'
const COUNT = '/v1/messages/count_tokens'
const RESPONSES = '/v1/responses'
const EMBEDDINGS = '/v1/embeddings'
const CODE = '/v1/tools/code'

/** Sends one request and waits for the end of its response. If the server cuts the connection, then the returned status is 0. */
export function send(
  url: string,
  line: string,
  body: string | Buffer = '',
  headers: Record<string, string> = {},
): Promise<number> {
  const [method = '', path = ''] = line.split(/ (.*)/s)
  return new Promise((resolve) => {
    const sent = request(`${url}${path}`, {
      method,
      agent: false,
      headers: {
        authorization: `Bearer ${TEST_KEY}`,
        ...(body.length > 0 && { 'content-type': 'application/json' }),
        ...headers,
      },
    })
    sent.on('response', (response) => {
      response.resume()
      response.on('close', () => resolve(response.statusCode ?? 0))
    })
    sent.on('error', () => resolve(0))
    sent.end(body)
  })
}

/** A hostile request that sends a JSON body to `path`. */
export function post(name: string, path: string, make: () => unknown, more: Partial<HostileInput> = {}): HostileInput {
  return {
    name: `POST ${path} with ${name}`,
    make: () => bytesOf(make()),
    send: (url, made) => send(url, `POST ${path}`, made),
    ...more,
  }
}

function bytesOf(value: unknown): Buffer {
  return Buffer.from(typeof value === 'string' ? value : JSON.stringify(value))
}

function get(name: string, target: string, headers: Record<string, string> = {}): HostileInput {
  return { name, make: () => Buffer.alloc(0), send: (url) => send(url, `GET ${target}`, '', headers) }
}

const ECHO_WORD = { ms: 1_500, why: 'the echo engine, which is for tests and load, finds a word in one search' }
const UNMASKED = { ms: 400, why: 'ws joins and unmasks a message of 32 MiB at once' }

const chat = (content: unknown, more: object = {}) => ({
  model: 'echo-1',
  max_tokens: 10,
  messages: [{ role: 'user', content }],
  ...more,
})
const words = (bytes: number) => 'hello world '.repeat(Math.floor(bytes / 12))
const nested = (depth: number) => `${'['.repeat(depth)}${']'.repeat(depth)}`
const pixels = (bytes: number) => `data:image/png;base64,${'iVBORw0K'.repeat(Math.floor(bytes / 8))}`
const responses = (input: readonly object[]) => ({ model: 'echo-1', input })
/** Returns item `index` of a list in which each function call is followed by its output. */
const callItem = (index: number) =>
  index % 2 === 0
    ? { type: 'function_call', call_id: `c${index}`, name: 'f', arguments: '{}' }
    : { type: 'function_call_output', call_id: `c${index - 1}`, output: 'x' }
const toolCall = (index: number) => ({ id: `c${index}`, type: 'function', function: { name: 'f', arguments: '{}' } })
const toolUse = (index: number) => ({ type: 'tool_use', id: `c${index}`, name: 'f', input: {} })
const tool = (index: number, parameters: object) => ({
  type: 'function',
  function: { name: `tool_${index}`, parameters },
})

const COMPLETIONS_INPUTS: readonly HostileInput[] = [
  post('a prompt of words', COMPLETIONS, () => ({ model: 'echo-1', prompt: words(LARGE) })),
  post('2,048 prompts, repeated', COMPLETIONS, () => ({
    model: 'echo-1',
    prompt: Array(2_048).fill('hi'),
    echo: true,
  })),
  post('300,000 tokens', COMPLETIONS, () => ({ model: 'echo-1', prompt: Array(300_000).fill(1) })),
]

const CHAT_INPUTS: readonly HostileInput[] = [
  post('a text of words', CHAT, () => chat(words(LARGE))),
  post('a text of one word', CHAT, () => chat('a'.repeat(LARGE)), { holds: ECHO_WORD }),
  post('a text of escapes', CHAT, () => chat('\n"\\'.repeat(LARGE / 6))),
  post('a text of Japanese', CHAT, () => chat('日本語'.repeat(LARGE / 9)), { holds: ECHO_WORD }),
  post('a text of emoji', CHAT, () => chat('😀'.repeat(LARGE / 4))),
  post('a text of blanks', CHAT, () => chat(' '.repeat(LARGE)), { holds: ECHO_WORD }),
  post('a streamed text', CHAT, () => chat(words(LARGE), { stream: true })),
  post('24,000 tool calls in one message', CHAT, () => ({
    model: 'echo-1',
    messages: [
      { role: 'assistant', tool_calls: Array.from({ length: 24_000 }, (_, i) => toolCall(i)) },
      ...Array.from({ length: 24_000 }, (_, i) => ({ role: 'tool', tool_call_id: `c${i}`, content: 'x' })),
    ],
  })),
  post('100,000 messages', CHAT, () => ({
    model: 'echo-1',
    messages: Array.from({ length: 100_000 }, () => ({ role: 'user', content: 'hi' })),
  })),
  post('100,000 parts', CHAT, () => chat(Array.from({ length: 100_000 }, () => ({ type: 'text', text: 'hi' })))),
  post('a deep body', CHAT, () => `{"model":"echo-1","messages":${nested(127)}}`),
  post('a body nested too deeply', CHAT, () => `{"model":"echo-1","messages":${nested(LARGE / 2)}}`),
  post('400,000 numbers in place of messages', CHAT, () => ({ model: 'echo-1', messages: Array(399_000).fill(1) })),
  post('60,000 unknown fields', CHAT, () => ({
    ...chat('hi'),
    ...Object.fromEntries(Array.from({ length: 60_000 }, (_, i) => [`f${i}`, i])),
  })),
  post('400,000 unknown fields', CHAT, () => ({
    ...chat('hi'),
    ...Object.fromEntries(Array.from({ length: 390_000 }, (_, i) => [`f${i}`, i])),
  })),
  post('128 tools', CHAT, () => chat('tool_1', { tools: Array.from({ length: 128 }, (_, i) => tool(i, {})) })),
  post('a schema of 8 MB', CHAT, () =>
    chat('tool_1', { tools: [tool(1, { type: 'object', description: words(8 * MIB) })] }),
  ),
  post('max_tokens of 100,000', CHAT, () => chat('!echo tokens=100000', { max_tokens: 100_000, stream: true })),
  post('a stop string of 28 MB', CHAT, () => chat('hi', { stop: ['a'.repeat(LARGE)] })),
  post('an image of 28 MB', CHAT, () => chat([{ type: 'image_url', image_url: { url: pixels(LARGE) } }])),
  post('a broken image of 28 MB', CHAT, () => chat([{ type: 'image_url', image_url: { url: `${pixels(LARGE)}!` } }])),
  post('metadata of 28 MB', CHAT, () => chat('hi', { metadata: { a: words(LARGE) } })),
  post('truncated JSON', CHAT, () => `{"model":"echo-1","messages":["${words(LARGE)}"`),
  post('bytes that are not JSON', CHAT, () => '\u0000'.repeat(LARGE)),
  post('a body of blanks', CHAT, () => ' '.repeat(LARGE)),
  post('a text of words and an Idempotency-Key', CHAT, () => chat(words(LARGE)), {
    send: (url, made) => send(url, `POST ${CHAT}`, made, { 'idempotency-key': `k${LARGE}` }),
  }),
]

const MESSAGES_INPUTS: readonly HostileInput[] = [
  post('a text of words', MESSAGES, () => chat(words(LARGE))),
  post('a system prompt of words', MESSAGES, () => chat('hi', { system: words(LARGE) })),
  post('100,000 messages', MESSAGES, () => ({
    model: 'echo-1',
    max_tokens: 10,
    messages: Array.from({ length: 100_000 }, (_, i) => ({ role: i % 2 ? 'assistant' : 'user', content: 'hi' })),
  })),
  post('60,000 tool calls in one message', MESSAGES, () => ({
    model: 'echo-1',
    max_tokens: 10,
    messages: [{ role: 'assistant', content: Array.from({ length: 60_000 }, (_, i) => toolUse(i)) }],
  })),
  post('a text of words', COUNT, () => chat(words(LARGE), { max_tokens: undefined })),
  post('a text of one word', COUNT, () => chat('a'.repeat(LARGE), { max_tokens: undefined })),
]

const items = (item: object) => ({ model: 'echo-1', input: Array.from({ length: 100_000 }, () => item) })

const RESPONSES_INPUTS: readonly HostileInput[] = [
  post('100,000 items', RESPONSES, () => items({ role: 'user', content: 'hi' })),
  post('encrypted reasoning of nested brackets', RESPONSES, () => {
    const encrypted_content = `sluice1.${Buffer.from('['.repeat(LARGE / 2)).toString('base64url')}`
    return { model: 'echo-1', input: [{ type: 'reasoning', id: 'rs_1', summary: [], encrypted_content }] }
  }),
  post('130,000 parts in one item', RESPONSES, () =>
    responses([{ role: 'user', content: Array(130_000).fill({ type: 'input_text', text: 'a' }) }]),
  ),
  post('130,000 parts of reasoning in one item', RESPONSES, () =>
    responses([{ type: 'reasoning', summary: Array(130_000).fill({ type: 'summary_text', text: 'a' }) }]),
  ),
  post('60,000 calls and outputs', RESPONSES, () => responses(Array.from({ length: 60_000 }, (_, i) => callItem(i)))),
  post('100,000 item references', RESPONSES, () => items({ type: 'item_reference', id: 'msg_0123456789_0' })),
  post('a text of words, streamed', RESPONSES, () => ({ model: 'echo-1', input: words(LARGE), stream: true })),
  post('a text of words that is not stored', RESPONSES, () => ({
    ...{ model: 'echo-1', input: words(LARGE), stream: true, store: false },
  })),
  post('instructions of 28 MB', RESPONSES, () => ({ model: 'echo-1', input: 'hi', instructions: words(LARGE) })),
]

const OTHER_INPUTS: readonly HostileInput[] = [
  post('2,048 inputs', EMBEDDINGS, () => ({ model: 'embed-1', input: Array(2_048).fill(words(12 * 1024)) })),
  post('an input of 28 MB', EMBEDDINGS, () => ({ model: 'embed-1', input: words(LARGE) })),
  post('2,047 documents', '/v1/rerank', () => ({
    ...{ model: 'embed-1', query: 'q' },
    documents: Array(2_047).fill(words(12 * 1024)),
  })),
  post('a text of a million characters', '/v1/moderations', () => ({ input: words(1_000_000).slice(0, 1_000_000) })),
  post('256 texts of one word', '/v1/moderations', () => ({ input: Array(256).fill('fuck'.repeat(970)) })),
  post('a text of 28 MB', '/v1/audio/speech', () => ({ model: 'tts-1', input: words(LARGE) })),
  post('300,000 tokens', EMBEDDINGS, () => ({ model: 'embed-1', input: Array(300_000).fill(1) })),
  post('code of 28 MB', CODE, () => ({ lang: 'python', code: 'x = 1;'.repeat(LARGE / 6) })),
  post('100,000 libraries', CODE, () => ({ lang: 'python', code: '1', libraries: Array(100_000).fill('numpy') })),
  post('audio of 28 MB in JSON', '/v1/jobs', () => ({
    endpoint: '/v1/audio/transcriptions',
    body: { model: 'speech-1', file: `data:audio/wav;base64,${'UklGRg=='.slice(0, 4).repeat(LARGE / 4)}` },
  })),
  post('a text of words', '/v1/jobs', () => ({ endpoint: CHAT, body: chat(words(LARGE)) })),
  post('an unknown endpoint of 28 MB', '/v1/jobs', () => ({ endpoint: 'x'.repeat(LARGE), body: {} })),
  form(
    'fields of 16 MB',
    [1, 2, 3, 4].map((i) => [`known_speaker_references[${i}]`, 'a'.repeat(4 * MIB)]),
  ),
  form(
    '1,000 fields',
    Array.from({ length: 1_000 }, (_, i) => [`f${i}`, 'x']),
  ),
  get('GET /v1/models with a long path', `/v1/models/${'%41'.repeat(4_000)}`),
  get('GET with long headers', '/v1/models', { 'x-long': 'a, '.repeat(4_000) }),
  get('GET /v1/jobs with many statuses', `/v1/jobs?status=${'queued,'.repeat(2_000)}`),
  get('GET /v1/jobs with many parameters', `/v1/jobs?${'a[b][]=1&'.repeat(1_500)}`),
  get('GET /v1/jobs with a long cursor', `/v1/jobs?after=${'job_'.repeat(3_000)}`),
]

const SOCKET_INPUTS: readonly HostileInput[] = [
  frame('a request of 28 MB', () => ({ type: 'request.create', id: 'r1', endpoint: CHAT, body: chat(words(LARGE)) }), {
    holds: UNMASKED,
  }),
  frame('400,000 values', () => ({
    type: 'request.create',
    id: 'r1',
    endpoint: CHAT,
    body: { a: Array(390_000).fill(1) },
  })),
  frame('28 MB that are not JSON', () => 'x'.repeat(LARGE), { holds: UNMASKED }),
]

export const HOSTILE_INPUTS: readonly HostileInput[] = [
  ...CHAT_INPUTS,
  ...COMPLETIONS_INPUTS,
  ...MESSAGES_INPUTS,
  ...RESPONSES_INPUTS,
  ...OTHER_INPUTS,
  ...SOCKET_INPUTS,
]

/** Hostile requests to a model that runs inside the worker process, whose prompts must be tokenized. The other requests go to the echo model. */
export function modelInputs(model: string): HostileInput[] {
  return [
    post(`a text of words for ${model}`, CHAT, () => chat(words(LARGE), { model })),
    post(`a text close to the context length for ${model}`, CHAT, () => chat(words(128 * 1024), { model })),
    post(`1,000 messages for ${model}`, CHAT, () => ({
      model,
      messages: Array.from({ length: 1_000 }, () => ({ role: 'user', content: 'hi' })),
    })),
    post(`2 MB of words for ${model}`, COUNT, () => chat(words(2 * MIB), { model, max_tokens: undefined })),
  ]
}

function form(name: string, fields: readonly (readonly string[])[]): HostileInput {
  const parts = () =>
    fields.map(([field, value]) => `--x\r\ncontent-disposition: form-data; name="${field}"\r\n\r\n${value}\r\n`)
  const path = '/v1/audio/transcriptions'
  return {
    name: `POST ${path} with ${name}`,
    make: () => Buffer.from(`${parts().join('')}--x--\r\n`),
    send: (url, made) => send(url, `POST ${path}`, made, { 'content-type': 'multipart/form-data; boundary=x' }),
  }
}

function frame(name: string, make: () => unknown, more: Partial<HostileInput> = {}): HostileInput {
  const exchange = (url: string, made: Buffer) =>
    new Promise<undefined>((resolve, reject) => {
      const ws = new WebSocket(`${url.replace('http', 'ws')}/v1/ws`, WS_PROTOCOL, {
        headers: { authorization: `Bearer ${TEST_KEY}` },
      })
      ws.on('error', reject)
      ws.on('close', () => resolve(undefined))
      ws.on('message', (data) => {
        const { type } = JSON.parse(String(data)) as { type: string }
        if (type === 'session.created') ws.send(made, { binary: false })
        else if (['error', 'request.failed', 'request.completed'].includes(type)) ws.close()
      })
    })
  return { name: `a WebSocket with ${name}`, make: () => bytesOf(make()), send: exchange, ...more }
}
