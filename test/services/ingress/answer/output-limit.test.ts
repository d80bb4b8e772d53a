import { describe, expect, it } from 'vitest'
import { startUpstream } from '../../../support/processes/upstream.ts'
import { ECHO_MODEL, type Stack, startStack, until } from '../../../support/stack.ts'

const MODEL = { ...ECHO_MODEL, limits: { ...ECHO_MODEL.limits, max_output_tokens: 100, default_output_tokens: 100 } }
const messages = [{ role: 'user', content: 'Hello' }]

describe('an output limit above the limit of the model', () => {
  it('is lowered, and the header x-max-tokens has the lowered value', async () => {
    await using stack = await startStack({ models: [MODEL] })
    const headerOf = async (path: string, body: object, headers = {}) => {
      const answer = await stack.post(path, { model: 'echo-1', ...body }, { headers })
      await answer.text()
      expect(answer.ok, path).toBe(true)
      return answer.headers.get('x-max-tokens')
    }
    const chat = '/v1/chat/completions'
    expect(await headerOf(chat, { messages, max_tokens: 500 })).toBe('100')
    expect(await headerOf(chat, { messages, max_completion_tokens: 500, stream: true })).toBe('100')
    expect(await headerOf(chat, { messages, max_tokens: 500 }, { prefer: 'respond-async' })).toBe('100')
    expect(await headerOf('/v1/completions', { prompt: 'Hello', max_tokens: 500 })).toBe('100')
    expect(await headerOf('/v1/responses', { input: 'Hello', max_output_tokens: 500 })).toBe('100')
    expect(await headerOf('/v1/messages', { messages, max_tokens: 500 })).toBe('100')
    expect(await headerOf(chat, { messages, max_tokens: 100 })).toBeNull()
    expect(await headerOf(chat, { messages })).toBeNull()
    const ofOtherApi = { max_output_tokens: 500 }
    expect(await headerOf(chat, { messages, max_tokens: 10, ...ofOtherApi }), 'no limit was lowered').toBeNull()
  })
})

describe('a field that the API does not define', () => {
  it('is named in the header x-unknown-parameters, and a call without such a field has no header', async () => {
    await using stack = await startStack({ models: [MODEL] })
    const headerOf = async (path: string, body: object, headers = {}) => {
      const answer = await stack.post(path, { model: 'echo-1', ...body }, { headers })
      await answer.text()
      expect(answer.ok, path).toBe(true)
      return answer.headers.get('x-unknown-parameters')
    }
    const typo = { temprature: 1 }
    const chat = '/v1/chat/completions'
    expect(await headerOf(chat, { messages, ...typo, top_a: 0.5, 'x\ny': 1 })).toBe('temprature, top_a')
    expect(await headerOf(chat, { messages, stream: true, ...typo })).toBe('temprature')
    expect(await headerOf(chat, { messages, ...typo }, { prefer: 'respond-async' })).toBe('temprature')
    expect(await headerOf('/v1/completions', { prompt: 'Hello', ...typo })).toBe('temprature')
    expect(await headerOf('/v1/responses', { input: 'Hello', ...typo })).toBe('temprature')
    expect(await headerOf('/v1/messages', { messages, max_tokens: 9, ...typo })).toBe('temprature')
    expect(await headerOf(chat, { messages, temperature: 1, user: 'u', store: false })).toBeNull()
    expect(await headerOf('/v1/messages', { messages, max_tokens: 9, metadata: {} })).toBeNull()
  })
})

describe('the request log', () => {
  it('has the unknown fields of a call, in bounded length', async () => {
    await using stack = await startStack({ models: [MODEL] })
    const names = Array.from({ length: 10 }, (_, i) => `${i}${'x'.repeat(60)}`)
    const fields = Object.fromEntries(names.map((name) => [name, 1]))
    const answer = await stack.post('/v1/chat/completions', { model: 'echo-1', messages, ...fields })
    expect(answer.headers.get('x-unknown-parameters')).toBe(names.join(', '))
    expect((await loggedBy(stack, answer)).unknown_parameters).toBe(names.join(', ').slice(0, 200))
  })
})

describe('an answer of a model that ignores the requested format', () => {
  it('is returned with the header x-format-ignored, which the request log also has', async () => {
    let message: object = { content: 'Sure!' }
    let finish_reason = 'stop'
    await using upstream = await startUpstream((_, to) =>
      to.json({ choices: [{ index: 0, message: { role: 'assistant', ...message }, finish_reason }] }),
    )
    const engine = { type: 'openai', base_url: `${upstream.url}/v1` }
    await using stack = await startStack({ models: [{ id: 'm1', engine }] })
    const ignoredBy = async (fields: object, content: object = message, reason = 'stop', path = 'chat/completions') => {
      message = content
      finish_reason = reason
      const answer = await stack.post(`/v1/${path}`, { model: 'm1', ...fields })
      expect(answer.status).toBe(200)
      const ignored = answer.headers.get('x-format-ignored')
      expect((await loggedBy(stack, answer)).format_ignored).toBe(ignored)
      return ignored
    }
    const text = { content: 'Sure!' }
    const call = { tool_calls: [{ id: 'c', type: 'function', function: { name: 'f', arguments: '{}' } }] }
    const json = { messages, response_format: { type: 'json_object' } }
    const schema = { type: 'object', properties: {} }
    const json_schema = { name: 'a', schema }
    const tools = [{ type: 'function', function: { name: 'f', parameters: schema } }]
    const mustCall = { messages, tools, tool_choice: 'required' }
    expect(await ignoredBy(json, text)).toBe('json')
    expect(await ignoredBy(json, { content: '12' })).toBe('json')
    expect(await ignoredBy({ messages, response_format: { type: 'json_schema', json_schema } }, text)).toBe('json')
    const format = { type: 'json_schema', ...json_schema }
    expect(await ignoredBy({ input: 'Hello', store: false, text: { format } }, text, 'stop', 'responses')).toBe('json')
    expect(await ignoredBy(mustCall, text)).toBe('tool_call')
    expect(await ignoredBy({ ...mustCall, tool_choice: { type: 'function', function: { name: 'f' } } }, text)).toBe(
      'tool_call',
    )

    expect(await ignoredBy(json, { content: ' {"a": 1}\n' })).toBeNull()
    expect(await ignoredBy(json, text, 'length'), 'an incomplete answer').toBeNull()
    expect(await ignoredBy({ ...json, stop: '}' }, { content: '{"a": 1' }), 'cut by a stop sequence').toBeNull()
    const choices = { type: 'json_schema', json_schema: { name: 'a', schema: { enum: ['yes', 'no'] } } }
    expect(await ignoredBy({ messages, response_format: choices }, { content: '"yes"' }), 'a string').toBeNull()
    expect(await ignoredBy({ messages, response_format: choices }, text)).toBe('json')
    expect(await ignoredBy({ ...json, tools }, call, 'tool_calls'), 'a call instead of JSON').toBeNull()
    expect(await ignoredBy(mustCall, call, 'tool_calls')).toBeNull()
    expect(await ignoredBy({ ...mustCall, tool_choice: 'auto' }, text)).toBeNull()
    expect(await ignoredBy({ messages }, text)).toBeNull()
  })
})

async function loggedBy(stack: Stack, answer: Response): Promise<Record<string, unknown>> {
  const path = `/v1/admin/requests/${answer.headers.get('x-request-id')}`
  await until(async () => (await stack.get(path)).status === 200)
  return (await (await stack.get(path)).json()) as Record<string, unknown>
}
