import { describe, expect, it } from 'vitest'
import { ECHO_MODEL, startStack } from '../../../support/stack.ts'

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
