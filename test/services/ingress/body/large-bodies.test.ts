import { describe, expect, test } from 'vitest'
import { ChatRequest } from '#schemas/chat.ts'
import { MessagesRequest } from '#schemas/messages.ts'
import { ModelConfig } from '#schemas/models.ts'
import { parseBody } from '#services/ingress/body/validate.ts'
import { decodeChat } from '#services/ingress/endpoints/chat/decode.ts'
import { decodeMessages } from '#services/ingress/endpoints/messages/decode.ts'
import { refuseShape } from '#shared/json/read.ts'
import { cpuMs, longestHold } from '../../../support/loop-hold.ts'
import { doAll } from '../../../support/pieces.ts'
import { startStack } from '../../../support/stack.ts'

const MODEL = ModelConfig.parse({ id: 'm1', engine: { type: 'echo' } })

const CONTEXT = { getModel: () => MODEL, strictTurns: false, remoteImages: false }

/** Bodies in which every value is invalid. A validation that collects all problems would need 0.3 to 1 s of CPU time for each body. */
const WRONG_BODIES: readonly [string, object][] = [
  ['messages of an unknown role', { messages: Array(100_000).fill({ role: 'x', content: 1 }) }],
  ['100,000 numbers as messages', { messages: Array(100_000).fill(1) }],
  ['190,000 parts without text', { messages: [{ role: 'user', content: Array(190_000).fill({ type: 'text' }) }] }],
]

describe('a large request body', () => {
  test.each(WRONG_BODIES)('is validated only up to the first problem: %s', (_, fields) => {
    const body = { model: 'm1', max_tokens: 1, ...fields }
    for (const check of [
      () => parseBody(ChatRequest, body, 'openai'),
      () => parseBody(MessagesRequest, body, 'messages'),
    ]) {
      const startedMs = cpuMs()
      expect(check).toThrow(expect.objectContaining({ param: expect.stringMatching(/^messages\[0\]/) }))
      expect(cpuMs() - startedMs).toBeLessThan(150)
    }
  })

  test.each(['logit_bias', 'metadata'])('is validated only up to the first problem in the field %s', (field) => {
    const map = Object.fromEntries(
      Array.from({ length: 50_000 }, (_, index) => [`${index}`, index < 3 ? undefined : {}]),
    )
    const body = { model: 'm1', messages: [{ role: 'user', content: 'Hi' }], [field]: { ...map, 0: 0, 1: 0, 2: 0 } }
    if (field === 'metadata') Object.assign(body.metadata ?? {}, { 0: 'a', 1: 'b', 2: 'c' })
    const startedMs = cpuMs()
    expect(() => parseBody(ChatRequest, body, 'openai')).toThrow(expect.objectContaining({ param: `${field}.3` }))
    expect(cpuMs() - startedMs).toBeLessThan(250)
  })

  test('is refused if an object at any level has more than 50,000 keys', () => {
    const wide = Object.fromEntries(Array.from({ length: 50_001 }, (_, index) => [`k${index}`, 1]))
    const message = /more than 50000 keys/
    expect(() => doAll(refuseShape(Buffer.from(JSON.stringify({ a: [1, { b: wide }] }))))).toThrow(message)
    const lists = { a: Array(60_000).fill(1), ...Object.fromEntries(Object.entries(wide).slice(2)) }
    expect(() => doAll(refuseShape(Buffer.from(JSON.stringify(lists))))).not.toThrow()
  })

  test('with 10,000 legacy function results is decoded in linear time', () => {
    const tool_calls = Array.from({ length: 10_000 }, (_, index) => ({
      id: `call_${index}`,
      function: { name: index % 2 ? 'f' : 'g', arguments: '{}' },
    }))
    const results = tool_calls.map(({ function: { name } }) => ({ role: 'function', name, content: 'x' })).reverse()
    const body = {
      model: 'm1',
      messages: Array(3)
        .fill([{ role: 'assistant', content: null, tool_calls }, ...results])
        .flat(),
    }
    const startedMs = cpuMs()
    const { turns } = doAll(decodeChat(body, CONTEXT))
    expect(cpuMs() - startedMs).toBeLessThan(1_000)
    const calls = turns.slice(1, 5).map((turn) => turn.role === 'tool' && turn.call_id)
    expect(calls).toEqual(['call_1', 'call_0', 'call_3', 'call_2'])
  })

  test.each([0, 999, 1_000, 1_001, 4_321])('is refused with the path of its first invalid message: %i', (bad) => {
    const good = { role: 'user', content: 'Hi' }
    const messages = Array.from({ length: 5_000 }, (_, index) => (index < bad ? good : { role: 'user', content: 1 }))
    const error = expect.objectContaining({ param: `messages[${bad}].content` })
    expect(() => doAll(decodeChat({ model: 'm1', messages }, CONTEXT))).toThrow(error)
    expect(() => doAll(decodeMessages({ model: 'm1', max_tokens: 1, messages }, CONTEXT))).toThrow(error)
  })

  test('of 2,500 messages is decoded like 2,500 bodies of one message each', () => {
    const messages = Array.from({ length: 2_500 }, (_, index) => ({ role: 'user', content: `${index}`, x: 1 }))
    const { turns } = doAll(decodeChat({ model: 'm1', messages }, CONTEXT))
    const few = messages.flatMap((message) => doAll(decodeChat({ model: 'm1', messages: [message] }, CONTEXT)).turns)
    expect(turns).toEqual(few)
  })

  test('of 100,000 messages never blocks the event loop for 1 s', async () => {
    await using stack = await startStack()
    const messages = Array.from({ length: 100_000 }, (_, index) => ({
      role: index % 2 ? 'assistant' : 'user',
      content: `${index}`,
    }))
    let status = 0
    const body = { model: 'echo-1', messages: [...messages, { role: 'user', content: 'done' }].slice(1) }
    const holdMs = await longestHold(async () => {
      status = (await stack.post('/v1/chat/completions', body)).status
    })
    expect(status).toBe(200)
    expect(holdMs).toBeLessThan(1_000)
  })
})
