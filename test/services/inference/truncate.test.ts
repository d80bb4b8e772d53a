/* Tests of the truncation of prompts that exceed the context window (docs/guides/responses.md, Truncation). */

import { expect, test } from 'vitest'
import { GenerateRequest, type Turn } from '#schemas/kinds/generate.ts'
import { fitPrompt } from '#services/inference/fallback.ts'
import { ECHO_MODEL, startStack } from '../../support/stack.ts'

type Role = 'system' | 'user' | 'assistant'

const turn = (role: Role, text: string): Turn => ({ role, parts: [{ type: 'text', text }] })
const called: Turn = { role: 'assistant', parts: [{ type: 'tool_call', id: 'a', name: 'look', arguments: '{}' }] }
const output: Turn = { role: 'tool', call_id: 'a', parts: [{ type: 'text', text: 'seen' }] }

/** Truncates a conversation to `context_tokens` and returns the remaining messages. In these tests, each message counts as one token. */
async function leftOf(turns: Turn[], context_tokens: number | undefined, more: object = {}): Promise<Turn[]> {
  const request = GenerateRequest.parse({
    ...{ dialect: 'openai', model: 'm', turns, stream: false, truncates: true, ...more },
  })
  const limits = { choices: 1, ...(context_tokens !== undefined && { context_tokens }) }
  return (await fitPrompt(request, { limits }, async (each) => each.turns.length)).turns
}

const long = [
  turn('system', 'Be brief.'),
  ...['1', '2', '3', '4'].flatMap((said) => [turn('user', said), turn('assistant', said)]),
  turn('user', 'last'),
]

test('truncation leaves a prompt unchanged if it fits, if truncation is off, or if the model has no limit', async () => {
  expect(await leftOf(long, 20)).toEqual(long)
  expect(await leftOf(long, undefined)).toEqual(long)
  expect(await leftOf(long, 4, { truncates: undefined })).toEqual(long)
})

test('truncation drops as few of the oldest messages as possible, and never the instructions', async () => {
  expect(await leftOf(long, 8)).toEqual([long[0], ...long.slice(5)])
  expect(await leftOf(long, 4)).toEqual([long[0], ...long.slice(7 + 2)])
  expect(await leftOf(long, 8, { max_tokens: 1 })).toEqual([long[0], ...long.slice(5)])
  expect(await leftOf(long.slice(1), 9, { max_tokens: 1 })).toEqual(long.slice(3))
})

test('truncation drops the output of a tool together with its call', async () => {
  const turns = [turn('user', 'a'), called, output, turn('assistant', 'b'), turn('user', 'c'), called, output]
  expect(await leftOf(turns, 6)).toEqual(turns.slice(4))
})

test('truncation keeps the last user message even if this message exceeds the context window', async () => {
  expect(await leftOf(long, 1)).toEqual([long[0], long.at(-1)])
  expect(await leftOf([turn('user', 'a'), called, output], 2)).toHaveLength(3)
})

test('a conversation longer than the context window is truncated if allowed, and refused otherwise', async () => {
  const limits = { context_tokens: 40, default_output_tokens: 10 }
  await using stack = await startStack({ models: [{ ...ECHO_MODEL, limits }] })
  const say = async (body: object) => {
    const answer = await stack.post('/v1/responses', { model: 'echo-1', input: 'one two three four', ...body })
    return { status: answer.status, ...((await answer.json()) as Said) }
  }
  let last = await say({})
  for (let turns = 0; turns < 10; turns++) {
    last = await say({ previous_response_id: last.id, truncation: 'auto' })
    expect(last).toMatchObject({
      status: 'completed',
      truncation: 'auto',
      output: [{ content: [{ text: 'one two three four' }] }],
    })
  }
  expect(last.usage.input_tokens).toBeLessThanOrEqual(30)
  expect(await say({ previous_response_id: last.id })).toMatchObject({
    ...{ status: 400, error: { code: 'context_length_exceeded' } },
  })
})

interface Said {
  readonly id: string
  readonly usage: { readonly input_tokens: number }
}
