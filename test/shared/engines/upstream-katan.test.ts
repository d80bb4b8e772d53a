import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { ask, collect, type Dialect, engineOn, failure, options, textOf } from '../../support/engine-calls.ts'
import { KATAN, KATAN_KEYS, type Katan, startKatan } from '../../support/processes/katan.ts'
import { findPythonEnv } from '../../support/processes/python.ts'

const bin = await findPythonEnv('katan', KATAN)
const TOOL = { name: 'weather', parameters: { type: 'object', properties: { city: { type: 'string' } } } }

// Tests engines with a server that others wrote. The other tests use a server of this project, whose assumptions about the two APIs may be wrong.
describe.skipIf(!bin)('the test server llm-katan', () => {
  let katan: Katan
  beforeAll(async () => {
    katan = await startKatan(bin ?? '')
  }, 90_000)
  afterAll(() => katan?.[Symbol.asyncDispose]())

  const dialects: Dialect[] = ['openai', 'anthropic']
  describe.each(dialects)('as an upstream of the %s API', (dialect) => {
    const engine = (key: string = KATAN_KEYS[dialect]) => engineOn(dialect, katan.url, {}, {}, key)

    test.each([
      ...dialects.map((from) => ({ from, stream: true })),
      ...dialects.map((from) => ({ from, stream: false })),
    ])('answers a request of the $from dialect, with stream $stream', async ({ from, stream }) => {
      await using opened = engine()
      const events = await collect(opened, ask({ dialect: from, stream, max_tokens: 64 }))
      expect(textOf(events)).toContain('Say hello.')
      expect(events[0]).toMatchObject({ type: 'start', model: 'm1' })
      expect(events.at(-2)).toEqual({ type: 'finish', choice: 0, reason: 'stop' })
      const usage = { input_tokens: expect.any(Number), output_tokens: expect.any(Number) }
      const native = dialect === 'anthropic' && from === dialect ? { native_usage: { dialect, value: usage } } : {}
      expect(events.at(-1)).toEqual({ type: 'usage', usage, ...native })
      const texts = events.filter((event) => event.type === 'text')
      expect(texts.length > 1).toBe(stream)
    })

    // Even for a stream, the OpenAI endpoint of this server answers with plain JSON if the request has tools.
    test.each([true, false])('calls a tool, with stream %s', async (stream) => {
      await using opened = engine()
      const events = await collect(opened, ask({ stream, tools: [TOOL] }))
      expect(events).toContainEqual({ type: 'tool_call', choice: 0, call: 0, id: expect.any(String), name: 'weather' })
      expect(JSON.parse(textOf(events, 'tool_arguments'))).toHaveProperty('city')
      expect(events.at(-2)).toMatchObject({ type: 'finish', reason: 'tool_calls' })
    })

    test('makes the call fail with upstream_refused for a wrong key, without the key in the message', async () => {
      await using opened = engine('wrong-key')
      const error = await failure(opened)
      expect(error).toMatchObject({ code: 'upstream_refused' })
      expect(error.message).not.toContain('wrong-key')
    })
  })

  test('returns no token count, because the server has no endpoint for token counts', async () => {
    await using opened = engineOn('anthropic', katan.url, {}, {}, KATAN_KEYS.anthropic)
    expect(await opened.countTokens?.(ask(), options())).toBeUndefined()
  })
})
