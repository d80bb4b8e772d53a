import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { objectIn } from '#shared/json/object.ts'
import { type Stack, startStack } from '../../support/stack.ts'
import { askFor, modelsOf, serveCases, WAYS } from '../../support/wire/ask.ts'
import { type Expected, SEEN, type Way, type WireCase } from '../../support/wire/case.ts'
import { CONNECTIONS } from '../../support/wire/connections.ts'
import { FAILURES } from '../../support/wire/failures.ts'
import type { Got } from '../../support/wire/read.ts'
import { SERVERS } from '../../support/wire/servers.ts'

/*
 * Responses of upstream servers. Each is requested through chat completions, messages and responses, with and without streaming. If a new server
 * sends responses that Sluice misunderstands, then add a case to test/support/wire.
 */

const CASES: readonly WireCase[] = [...SEEN, ...SERVERS, ...CONNECTIONS, ...FAILURES]
/** Number of concurrent calls. The calls run concurrently, because some cases take three seconds. */
const AT_ONCE = 48

let upstream: Awaited<ReturnType<typeof serveCases>>
let stack: Stack
const answers = new Map<string, Got | Error>()

beforeAll(async () => {
  upstream = await serveCases(CASES)
  stack = await startStack({ models: modelsOf(CASES, upstream.url) })
  const asked = CASES.flatMap(({ name }) => WAYS.map((way) => ({ name, way })))
  const next = async () => {
    for (let one = asked.pop(); one; one = asked.pop()) {
      const { name, way } = one
      answers.set(`${name} ${way}`, await askFor(stack, name, way).catch((error: Error) => error))
    }
  }
  await Promise.all(Array.from({ length: AT_ONCE }, next))
}, 180_000)
afterAll(async () => {
  await stack?.[Symbol.asyncDispose]()
  await upstream?.[Symbol.asyncDispose]()
})

describe.each(CASES)('the $upstream response $name', ({ name, expect: expected }) => {
  test.each(WAYS)('becomes a valid response or error for a call of %s', async (way) => {
    const got = answers.get(`${name} ${way}`)
    if (!got || got instanceof Error) throw got ?? new Error('not asked')
    check(got, expected, way)
    if (got.error === undefined && !way.endsWith('stream')) await checkAcceptedBack(name, way, got)
  })
})

test('the recorded upstream responses have unique names', () => {
  expect(new Set(CASES.map(({ name }) => name)).size).toBe(CASES.length)
})

function check(got: Got, expected: Expected, way: Way): void {
  if (expected.either) {
    const isFailure = got.error !== undefined
    const fitting = expected.either.filter(({ status }) => (status !== undefined) === isFailure)
    expect(fitting, `matching expectations for ${got.body}`).not.toEqual([])
    for (const one of fitting) check(got, one, way)
    return
  }
  if (expected.status !== undefined) return checkFailure(got, expected, way)
  expect(got.error, `unexpected error in ${got.body}`).toBeUndefined()
  expect(got.status).toBe(200)
  if (expected.calls) checkCalls(got, expected.calls)
  const { text, reasoning, finish, usage } = expected
  const wanted = { text, reasoning, finish, usage: usage && [usage[0], usage[1], usage[2] ?? 0] }
  for (const [field, value] of Object.entries(wanted))
    if (value !== undefined) expect(got[field as keyof Got], `${field} of ${got.body}`).toEqual(value)
  if (expected.callsParse && got.finish !== 'length')
    for (const call of got.calls) expect(objectIn(call.arguments), `arguments of a call in ${got.body}`).toBeDefined()
  for (const part of expected.contains?.[way] ?? []) expect(got.body).toContain(part)
}

function checkCalls({ calls, body }: Got, expected: NonNullable<Expected['calls']>): void {
  expect(
    calls.map((call) => [call.name, objectIn(call.arguments)]),
    `tool calls in ${body}`,
  ).toEqual(expected)
  const ids = calls.map(({ id }) => id)
  expect(new Set(ids).size, `distinct call ids in ${body}`).toBe(ids.length)
  expect(ids).not.toContain('')
}

function checkFailure({ status, headers, error, param, body }: Got, expected: Expected, way: Way): void {
  expect(error, `error in ${body}`).toBeDefined()
  const isMessages = way.startsWith('messages')
  const wanted = isMessages && expected.status === 503 ? 529 : expected.status
  // A stream that has started has status 200, even if the call fails later. A stream may therefore have this status instead of the expected one.
  if (!way.endsWith('stream') || status !== 200) expect(status, `status of ${body}`).toBe(wanted)
  if (expected.words !== undefined) expect(error).toContain(expected.words)
  if (expected.hides !== undefined) expect(body).not.toContain(expected.hides)
  if (expected.param !== undefined && !isMessages) expect(param).toBe(expected.param)
  if (expected.isFinal && status !== 200)
    expect([headers.get('retry-after'), headers.get('x-should-retry')]).toEqual([null, 'false'])
}

/** Sends a response back as part of the next request, with a result for each tool call. The service must accept this request. */
async function checkAcceptedBack(name: string, way: Way, { body }: Got): Promise<void> {
  const again = await askFor(stack, name, way, NEXT_TURNS[way as keyof typeof NEXT_TURNS](JSON.parse(body)))
  expect([again.status, again.error], `status of the next call after ${body}`).toEqual([200, undefined])
}

type Json = Record<string, unknown>
const user = (content: unknown) => ({ role: 'user', content })

const NEXT_TURNS = {
  chat: ({ choices }: Json) => {
    const [{ message }] = choices as [{ message: { tool_calls?: Json[] } }]
    const results = (message.tool_calls ?? []).map(({ id }) => ({ role: 'tool', tool_call_id: id, content: 'done' }))
    return { messages: [user('hi'), message, ...results, user('go on')] }
  },
  messages: ({ content }: Json) => {
    const uses = (content as Json[]).filter(({ type }) => type === 'tool_use')
    const results = uses.map(({ id }) => ({ type: 'tool_result', tool_use_id: id, content: 'done' }))
    return {
      messages: [user('hi'), { role: 'assistant', content }, user([...results, { type: 'text', text: 'go on' }])],
    }
  },
  responses: ({ output }: Json) => {
    const calls = (output as Json[]).filter(({ type }) => /^(function_call|custom_tool_call)$/.test(String(type)))
    const results = calls.map(({ type, call_id }) => ({ type: `${type}_output`, call_id, output: 'done' }))
    return { input: [user('hi'), ...(output as Json[]), ...results, user('go on')] }
  },
}
