import { afterAll, beforeAll, describe, expect, it } from 'vitest'
import { type Stack, startStack } from '../../../support/stack.ts'

/**
 * Texts of responses. `LARGE` exceeds the maximum size of one record in the queue, and `TOO_LARGE` exceeds the maximum size of a response.
 */
const LARGE = 'abcdefg '.repeat(80_000)
const TOO_LARGE = `${'abcdefg'.repeat(30)} `.repeat(45_000)

const APIS = [
  ['/v1/chat/completions', (text: string) => ({ messages: [{ role: 'user', content: text }] })],
  ['/v1/messages', (text: string) => ({ max_tokens: 100_000, messages: [{ role: 'user', content: text }] })],
  ['/v1/completions', (text: string) => ({ prompt: text, max_tokens: 100_000 })],
  ['/v1/responses', (text: string) => ({ input: text })],
] as const

describe('a response that the engine returns as one large piece', () => {
  let stack: Stack
  beforeAll(async () => {
    stack = await startStack()
  })
  afterAll(() => stack[Symbol.asyncDispose]())

  const ask = async (path: string, body: object) => {
    const response = await stack.post(
      path,
      { model: 'echo-1', ...body },
      { headers: { 'anthropic-version': '2023-06-01' } },
    )
    return { status: response.status, text: await response.text(), retry: response.headers.get('x-should-retry') }
  }
  const said = (text: string): string => {
    const answer = JSON.parse(text)
    return (
      answer.choices?.[0].message?.content ??
      answer.choices?.[0].text ??
      answer.content?.[0].text ??
      answer.output[0].content[0].text
    )
  }

  it.each(APIS)('arrives complete from the endpoint %s', async (path, bodyOf) => {
    const { status, text } = await ask(path, bodyOf(LARGE))
    expect(status).toBe(200)
    expect(said(text) === LARGE).toBe(true)
  })

  it.each(APIS)('over the size limit makes the call to %s fail with 400 without a retry', async (path, bodyOf) => {
    const { status, text } = await ask(path, bodyOf(TOO_LARGE))
    expect(status).toBe(400)
    const { error } = JSON.parse(text)
    expect(error.type).toBe('invalid_request_error')
    expect(error.message).toMatch(/^The answer is larger than the \d+ bytes .* Request fewer/)
    if (path !== '/v1/messages') expect(error.code).toBe('answer_too_large')
  })

  it('over the size limit arrives complete if the request has stream: true', async () => {
    const [, bodyOf] = APIS[0]
    const { status, text } = await ask('/v1/chat/completions', { ...bodyOf(TOO_LARGE), stream: true })
    expect(status).toBe(200)
    const deltas = text
      .split('\n\n')
      .flatMap((frame) => (frame.startsWith('data: {') ? [JSON.parse(frame.slice(6))] : []))
    expect(deltas.map(({ choices }) => choices[0]?.delta.content ?? '').join('') === TOO_LARGE).toBe(true)
  })
})
