import { type HostileInput, post, send } from './hostile-inputs.ts'
import { type Script, startUpstream } from './processes/upstream.ts'

/**
 * An answer of an upstream that costs the service far more CPU time than its number of tokens suggests. Tests check that none of these answers
 * blocks the event loop.
 */
interface HostileAnswer {
  readonly name: string
  readonly api: 'openai' | 'responses' | 'anthropic'
  readonly path: string
  readonly request?: object
  readonly script: Script
}

const CHAT = '/v1/chat/completions'
const RESPONSES = '/v1/responses'
const MESSAGES = '/v1/messages'
const TOOL = { type: 'custom', custom: { name: 'f' } }

const message = (message: object): Script => {
  return (_call, answer) => answer.json({ choices: [{ index: 0, finish_reason: 'stop', message }] })
}

/** An answer in the stream format of the Responses API: `count` messages with one character each. */
function messages(count: number): Script {
  const frames: object[] = [{ type: 'response.created', response: { id: 'r', status: 'in_progress', output: [] } }]
  for (let index = 0; index < count; index++) {
    const item = { type: 'message', id: `m${index}`, role: 'assistant', content: [{ type: 'output_text', text: 'a' }] }
    const at = { output_index: index, content_index: 0, item_id: item.id }
    frames.push(
      { type: 'response.output_item.added', output_index: index, item: { ...item, content: [] } },
      { type: 'response.output_text.delta', ...at, delta: 'a' },
      { type: 'response.output_item.done', output_index: index, item },
    )
  }
  frames.push({ type: 'response.completed', response: { id: 'r', status: 'completed', output: [] } })
  return async (_call, answer) => {
    answer.open()
    await answer.bytes(frames.map((frame) => `data: ${JSON.stringify(frame)}\n\n`).join(''))
    answer.end()
  }
}

/** An answer in the stream format of chat completions: one text, in deltas of 4,096 characters. */
function streamed(text: string): Script {
  const frames: object[] = []
  for (let at = 0; at < text.length; at += 4_096) {
    frames.push({ choices: [{ index: 0, delta: { content: text.slice(at, at + 4_096) } }] })
  }
  return chatStream(frames)
}

/** An answer in the stream format of chat completions: `count` tokens with 20 log probabilities each. */
function logprobs(count: number): Script {
  const content = Array(20).fill({ token: 'a', logprob: -0.5, bytes: [97], top_logprobs: [] })
  const frame = { choices: [{ index: 0, delta: { content: 'a'.repeat(20) }, logprobs: { content } }] }
  return chatStream(Array(count / 20).fill(frame))
}

function chatStream(frames: readonly object[]): Script {
  const end = { choices: [{ index: 0, delta: {}, finish_reason: 'stop' }] }
  return async (_call, answer) => {
    answer.open()
    await answer.bytes([...frames, end].map((frame) => `data: ${JSON.stringify(frame)}\n\n`).join(''))
    answer.frame('[DONE]')
    answer.end()
  }
}

function blocks(count: number, block: object): Script {
  const content = Array(count).fill(block)
  return (_call, answer) =>
    answer.json({ id: 'm', type: 'message', role: 'assistant', content, stop_reason: 'end_turn' })
}

const HOSTILE_ANSWERS: readonly HostileAnswer[] = [
  {
    name: '4,000 messages in a stream',
    api: 'responses',
    path: RESPONSES,
    request: { stream: true },
    script: messages(4_000),
  },
  {
    name: '1.8 MB of text in a stored stream',
    api: 'openai',
    path: RESPONSES,
    request: { stream: true },
    script: streamed('\n"\\'.repeat(600_000)),
  },
  {
    name: '20,000 log probabilities in a stored stream',
    api: 'openai',
    path: RESPONSES,
    request: { stream: true, include: ['message.output_text.logprobs'] },
    script: logprobs(20_000),
  },
  {
    name: 'an unknown item of 190,000 values',
    api: 'responses',
    path: RESPONSES,
    script: (_call, answer) => {
      const output = [{ type: 'mystery', id: 'x', data: Array(190_000).fill(1) }]
      answer.json({ id: 'r', status: 'completed', output })
    },
  },
  {
    name: 'free text of 6 MB for a custom tool',
    api: 'openai',
    path: CHAT,
    request: { tools: [TOOL] },
    script: message({
      tool_calls: [{ id: 'a', type: 'custom', custom: { name: 'f', input: 'x"\\'.repeat(2_000_000) } }],
    }),
  },
  {
    name: '20 calls with arguments of 100,000 values',
    api: 'openai',
    path: MESSAGES,
    script: message({
      tool_calls: Array.from({ length: 20 }, (_, index) => ({
        ...{ id: `c${index}`, type: 'function' },
        function: { name: 'f', arguments: `{"a":[${'1,'.repeat(100_000)}1]}` },
      })),
    }),
  },
  {
    name: '190,000 blocks of an unknown type',
    api: 'anthropic',
    path: MESSAGES,
    script: blocks(190_000, { type: 'z' }),
  },
  {
    name: '90,000 blocks of text',
    api: 'anthropic',
    path: MESSAGES,
    script: blocks(90_000, { type: 'text', text: 'a' }),
  },
]

/** Starts a test upstream and returns one model per API. {@link hostileAnswers} sets the answer of each call. */
export async function startHostileUpstream() {
  const upstream = await startUpstream()
  const engines = {
    openai: { type: 'openai', base_url: `${upstream.url}/v1` },
    responses: { type: 'openai', base_url: `${upstream.url}/v1`, api: 'responses' },
    anthropic: { type: 'anthropic', base_url: upstream.url },
  }
  const models = Object.entries(engines).map(([id, engine]) => ({ id, engine }))
  return { upstream, models }
}

/**
 * Requests that receive the hostile answers from {@link startHostileUpstream}.
 *
 * @param give Sets the next answer of the upstream
 */
export function hostileAnswers(give: (script: Script) => void): HostileInput[] {
  return HOSTILE_ANSWERS.map(({ name, api, path, request = {}, script }) => {
    const prompt =
      path === RESPONSES ? { input: 'hi' } : { max_tokens: 10, messages: [{ role: 'user', content: 'hi' }] }
    return {
      ...post(`an answer that has ${name}`, path, () => ({ model: api, ...prompt, ...request }), { isWarmed: true }),
      send: (url, made) => {
        give(script)
        return send(url, `POST ${path}`, made)
      },
    }
  })
}
