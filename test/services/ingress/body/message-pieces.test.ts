/* Tests of messages with many parts, which are validated and decoded in pieces, so that the event loop can run in between. */

import { describe, expect, it } from 'vitest'
import { ModelConfig } from '#schemas/models.ts'
import { decodeChat } from '#services/ingress/endpoints/chat/decode.ts'
import { decodeMessages } from '#services/ingress/endpoints/messages/decode.ts'
import { ServiceError } from '#shared/lib/error.ts'

const model = (type: string) => ModelConfig.parse({ id: 'm', engine: { type, base_url: 'http://127.0.0.1:9/v1' } })
const context = (type: string) => ({ getModel: () => model(type), strictTurns: false, remoteImages: false })
const texts = (count: number) => Array.from({ length: count }, (_, nth) => ({ type: 'text', text: `p${nth}` }))
const CALL = { id: 'a', type: 'function', function: { name: 'f', arguments: '{}' } }

const user = { role: 'user', content: 'hi' }
const BODIES: readonly [string, (parts: unknown[]) => object[]][] = [
  ['chat user', (content) => [{ role: 'user', content }]],
  ['chat assistant', (content) => [user, { role: 'assistant', content, tool_calls: [CALL] }, toolMessage('x')]],
  ['chat tool', (content) => [user, { role: 'assistant', tool_calls: [CALL] }, toolMessage(content)]],
  ['messages user', (content) => [{ role: 'user', content }]],
  [
    'messages tool_result',
    (content) => [user, toolUse(), { role: 'user', content: [{ type: 'text', text: 'before' }, result(content)] }],
  ],
]

/** Index of the message that has many parts, for each case of BODIES except `messages tool_result`. */
const AT: Readonly<Record<string, number>> = { 'chat user': 0, 'chat assistant': 1, 'chat tool': 2, 'messages user': 0 }

function toolMessage(content: unknown): object {
  return { role: 'tool', tool_call_id: 'a', content }
}

function toolUse(): object {
  return { role: 'assistant', content: [{ type: 'tool_use', id: 'a', name: 'f', input: {} }] }
}

function result(content: unknown): object {
  return { type: 'tool_result', tool_use_id: 'a', content }
}

function decoded(name: string, messages: object[]) {
  const isChat = name.startsWith('chat')
  const body = { model: 'm', max_tokens: 5, messages }
  const work = isChat ? decodeChat(body, context('openai')) : decodeMessages(body, context('anthropic') as never)
  let steps = 0
  for (let step = work.next(); ; step = work.next(), steps++) if (step.done) return { turns: step.value.turns, steps }
}

describe.each(BODIES)('a message with many parts (%s)', (name, messagesOf) => {
  it('is decoded like a message with few parts', () => {
    const { turns, steps } = decoded(name, messagesOf(texts(5_500)))
    const few = decoded(name, messagesOf(texts(2)))
    const said = turns.find(({ parts }) => parts.length >= 5_500)
    expect(said?.parts.map((part) => 'text' in part && part.text).slice(0, 5_500)).toEqual(
      texts(5_500).map(({ text }) => text),
    )
    expect(turns.map(({ role }) => role)).toEqual(few.turns.map(({ role }) => role))
    expect(turns.flatMap(({ parts }) => parts).filter(({ type }) => type === 'tool_call')).toHaveLength(
      few.turns.flatMap(({ parts }) => parts).filter(({ type }) => type === 'tool_call').length,
    )
    expect(steps).toBeGreaterThan(10)
  })

  it('is refused with the path of its invalid part', () => {
    const parts: unknown[] = texts(5_500)
    parts[4_321] = { type: 'text', text: 7 }
    const messages = messagesOf(parts)
    const inside = name === 'messages tool_result' ? 'messages[2].content[1]' : `messages[${AT[name]}]`
    const failure = () => decoded(name, messages)
    expect(failure).toThrow(ServiceError)
    expect(failure).toThrow(expect.objectContaining({ param: `${inside}.content[4321].text` }))
  })

  it('is accepted with 190,000 parts', () => {
    const { turns } = decoded(name, messagesOf(Array.from({ length: 190_000 }, () => ({ type: 'text', text: '' }))))
    expect(turns.some(({ parts }) => parts.length >= 190_000)).toBe(true)
  })
})
