import { describe, expect, test } from 'vitest'
import { ModelConfig } from '#schemas/models.ts'
import { openOpenAiEmbeddings } from '#shared/engines/openai/embeddings.ts'
import { cutByWords } from '#shared/engines/openai/transcript/decode.ts'
import { objectIn } from '#shared/json/object.ts'
import { DEPTH_MAX } from '#shared/json/read.ts'
import { ask, collect, engineOn, failure, textOf } from '../../support/engine-calls.ts'
import { cpuMs, longestHold } from '../../support/loop-hold.ts'
import { startUpstream } from '../../support/processes/upstream.ts'

/**
 * Maximum time in ms for which a response may block the event loop: two to six times the measured values. If responses were parsed in one step,
 * then the loop would be blocked for 0.4 to 44 s.
 */
const HOLD_MS_MAX = 300

const CHOICE = '{"choices":[{"index":0,"finish_reason":"stop","message":{"role":"assistant",'
const MEBIBYTE = 1024 * 1024

const HOSTILE: readonly [string, string, RegExp][] = [
  ['20 MiB of brackets', `{"a":${'['.repeat(20 * MEBIBYTE)}`, /nested deeper than 128 levels/],
  [
    'an error of 100,000 levels',
    `{"error":${'['.repeat(100_000)}${']'.repeat(100_000)}}`,
    /nested deeper than 128 levels/,
  ],
  ['arguments of 1,000 levels', `${CHOICE}"tool_calls":${deep(1_000)}}}]}`, /nested deeper than 128 levels/],
  ['5,000,000 choices', `{"choices":[${'{},'.repeat(5_000_000)}{}]}`, /more than 600000 values/],
  ['300,000 keys', `{${Array.from({ length: 300_000 }, (_, i) => `"k${i}":1`).join()}}`, /more than 600000 values/],
  ['80,000 calls', `${CHOICE}"tool_calls":[${calls(80_000)}]}}]}`, /called tools more than 1024 times/],
  ['50 MiB of text', `${CHOICE}"content":"${'x'.repeat(50 * MEBIBYTE)}"}}]}`, /more than 25165824 bytes/],
]

const TOO_LONG = {
  code: 'upstream_error',
  status: 502,
  message: expect.stringContaining('field of more than 524288 bytes'),
}

function deep(levels: number): string {
  return `${'{"a":'.repeat(levels)}1${'}'.repeat(levels)}`
}

function calls(count: number): string {
  return Array.from({ length: count }, (_, i) => `{"index":${i},"id":"c${i}","function":{"name":"f"}}`).join()
}

describe('a response of an untrusted upstream', () => {
  test.each(HOSTILE)('is refused with upstream_error without blocking the event loop: %s', async (_, json, message) => {
    const bytes = Buffer.from(json)
    await using upstream = await startUpstream((_call, answer) => {
      answer.open('application/json')
      void answer.bytes(bytes)
      answer.end()
    })
    await using engine = engineOn('openai', upstream.url)
    let error: unknown
    const holdMs = await longestHold(async () => {
      error = await failure(engine)
    })
    expect(error).toMatchObject({ code: 'upstream_error', message: expect.stringMatching(message) })
    expect(holdMs).toBeLessThan(HOLD_MS_MAX)
  })

  test('is refused if a frame of the stream is nested deeper than 128 levels', async () => {
    await using upstream = await startUpstream(async (_call, answer) => {
      answer.open()
      await answer.bytes(`data: {"a":${'['.repeat(7 * MEBIBYTE)}\n\n`)
      answer.end()
    })
    await using engine = engineOn('openai', upstream.url)
    expect(await failure(engine)).toMatchObject({ message: expect.stringMatching(/nested deeper than 128 levels/) })
  })

  const LONG = 'x'.repeat(MEBIBYTE)
  const call = (id: string, name: string) => ({
    message: { tool_calls: [{ index: 0, id, function: { name, arguments: '{}' } }] },
    delta: { tool_calls: [{ index: 0, id, function: { name, arguments: '{}' } }] },
  })
  const token = { token: 'x'.repeat(20_000), logprob: -1 }
  const said = { message: { content: 'a' }, delta: { content: 'a' } }
  const LONG_FIELDS: readonly [string, object, object][] = [
    ['an id', call(LONG, 'f'), {}],
    ['a name', call('c', LONG), {}],
    ['a fingerprint', said, { system_fingerprint: LONG }],
    ['the token of a log probability', { ...said, logprobs: { content: [{ token: LONG, logprob: -1 }] } }, {}],
    ['the tokens of 64 log probabilities', { ...said, logprobs: { content: Array(64).fill(token) } }, {}],
  ]
  test.each(LONG_FIELDS)(
    'is refused with status 502 if %s exceeds the maximum record size',
    async (_, choice, more) => {
      const chunk = { choices: [{ index: 0, finish_reason: 'stop', ...choice }], ...more }
      await using upstream = await startUpstream(
        (_call, answer) => answer.json(chunk),
        (_call, answer) => {
          answer.open()
          answer.frame(chunk)
          answer.frame('[DONE]')
          answer.end()
        },
      )
      await using engine = engineOn('openai', upstream.url)
      for (const stream of [false, true]) expect(await failure(engine, ask({ stream }))).toMatchObject(TOO_LONG)
    },
  )

  test.each([
    ['an id', [{ type: 'tool_use', id: LONG, name: 'f', input: {} }], {}],
    ['a name', [{ type: 'tool_use', id: 'c', name: LONG, input: {} }], {}],
    ['a signature', [{ type: 'thinking', thinking: 'a', signature: LONG }], {}],
    ['a redacted thinking block', [{ type: 'redacted_thinking', data: LONG }], {}],
    ['a stop sequence', [{ type: 'text', text: 'a' }], { stop_sequence: LONG }],
    [
      'a detail of its usage',
      [{ type: 'text', text: 'a' }],
      { usage: { input_tokens: 1, output_tokens: 1, more: LONG } },
    ],
  ])(
    'of the Messages API is refused with status 502 if %s exceeds the maximum record size',
    async (_, content, more) => {
      const message = { type: 'message', role: 'assistant', content, stop_reason: 'end_turn', ...more }
      await using upstream = await startUpstream((_call, answer) => answer.json(message))
      await using engine = engineOn('anthropic', upstream.url)
      expect(await failure(engine, ask({ dialect: 'anthropic', stream: false }))).toMatchObject(TOO_LONG)
    },
  )

  test('is forwarded in order if its text has several MiB, whole and streamed', async () => {
    const long = 'déjà vu '.repeat(MEBIBYTE / 4)
    const chunk = (content: string, more = {}) => ({ choices: [{ index: 0, delta: { content }, ...more }] })
    await using upstream = await startUpstream(
      (_call, answer) => answer.json({ choices: [{ index: 0, finish_reason: 'stop', message: { content: long } }] }),
      (_call, answer) => {
        answer.open()
        for (const text of ['a', long, 'b', long, 'c']) answer.frame(chunk(text))
        answer.frame(chunk('', { finish_reason: 'stop' }))
        answer.frame('[DONE]')
        answer.end()
      },
    )
    await using engine = engineOn('openai', upstream.url)
    expect(textOf(await collect(engine)) === long).toBe(true)
    expect(textOf(await collect(engine)) === `a${long}b${long}c`).toBe(true)
  })

  test('of embeddings is refused before parsing if it has more vectors than the request has texts', async () => {
    const bytes = Buffer.from(`{"data":[${'{},'.repeat(500_000)}{}]}`)
    await using upstream = await startUpstream((_call, answer) => {
      answer.open('application/json')
      void answer.bytes(bytes)
      answer.end()
    })
    const engine = openOpenAiEmbeddings(
      ModelConfig.parse({
        id: 'm1',
        pool: 'embeddings',
        engine: { type: 'openai', base_url: `${upstream.url}/v1` },
      }),
      {},
    )
    const texts = Array.from({ length: 200 }, (_, i) => `${i}`)
    let error: unknown
    const holdMs = await longestHold(async () => {
      error = await engine.embed(texts, { signal: new AbortController().signal }).catch((thrown) => thrown)
    })
    await engine.close()
    expect(error).toMatchObject({
      code: 'upstream_error',
      message: expect.stringMatching(/one vector for each of 200/),
    })
    expect(holdMs).toBeLessThan(HOLD_MS_MAX)
  })

  test('of a transcription is split in linear time if none of 5,000 words occurs in the text', () => {
    const words = Array.from({ length: 5_000 }, (_, i) => ({ word: `y${i}`, start: i, end: i + 1 }))
    const startedMs = cpuMs()
    const text = 'x'.repeat(20 * MEBIBYTE)
    expect(cutByWords(text, words).map((segment) => segment.text)).toContain(text)
    expect(cpuMs() - startedMs).toBeLessThan(500)
  })
})

test.each(['openai', 'anthropic'] as const)(
  'the serialisation of a large prompt for the API %s yields to the event loop',
  async (dialect) => {
    const text = 'déjà\ud83d\ude00 vu '.repeat(MEBIBYTE)
    await using upstream = await startUpstream((_call, answer) => answer.text('no', 'text/plain', 501))
    await using engine = engineOn(dialect, upstream.url)
    let turns = 0
    const turn = () => {
      if (upstream.connections === 0) setImmediate(turn)
      turns++
    }
    setImmediate(turn)
    await failure(engine, ask({ turns: [{ role: 'user', parts: [{ type: 'text', text }] }] }))
    expect(turns).toBeGreaterThan(3)
    const [message] = (upstream.calls[0]?.body.messages ?? []) as { content: string | [{ text: string }] }[]
    const content = message?.content
    expect((typeof content === 'string' ? content : content?.[0].text) === text).toBe(true)
  },
)

test('the JSON parser for generated objects accepts the maximum nesting depth and returns undefined beyond it', () => {
  expect(objectIn(deep(DEPTH_MAX))).toHaveProperty('a.a.a')
  const blanks = ' '.repeat(1_024)
  expect(objectIn(`${blanks}${deep(DEPTH_MAX)}`)).toHaveProperty('a.a.a')
  expect(objectIn(`${blanks}${deep(DEPTH_MAX + 1)}`)).toBeUndefined()
  for (const text of ['', '[]', 'null', '1', '{"a":', '{}}']) expect(objectIn(text)).toBeUndefined()
})
