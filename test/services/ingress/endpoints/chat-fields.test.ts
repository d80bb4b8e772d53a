/*
 * Tests of every field that the types of the `openai` package declare for chat completions. Each field passes from a caller to an upstream
 * of the same API, or back. The tests cover requests, whole responses and streams.
 */

import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { joinDelta } from '#shared/kinds/generate/chat/whole.ts'
import { type ScriptedUpstream, startUpstream } from '../../../support/processes/upstream.ts'
import { type Stack, startStack } from '../../../support/stack.ts'
import { ANSWERS, chunksOf, REQUESTS } from '../../../support/wire/chat-samples.ts'
import { declaredFields, fieldsIn } from '../../../support/wire/declared.ts'

type Json = Record<string, unknown>

/**
 * Fields that Sluice handles itself, so they need not reach the upstream (docs/reference/compatibility.md, Fields that do not arrive
 * unchanged).
 */
const EXCEPTIONS = new Set(['max_tokens', 'metadata', 'store', 'stream', 'obfuscation', 'include_obfuscation'])
/** Interfaces of the package that these tests leave out: those of other endpoints, and of helpers that run in the client. */
const OTHER = /^(Completions|ChatCompletionDeleted|ChatCompletionStoreMessage|ChatCompletionListParams|Parsed.*)(\.|$)/
/** Response fields that Sluice sets itself, so they differ from those of the upstream. */
const OWN = { id: expect.any(String), created: expect.any(Number), model: 'm1' }

let stack: Stack
let upstream: ScriptedUpstream
let answer: Json = {}
beforeAll(async () => {
  upstream = await startUpstream((call, to) => {
    if (call.body.stream !== true) return to.json(answer)
    to.open()
    for (const chunk of chunksOf(answer)) to.frame(chunk)
    to.frame('[DONE]')
    to.end()
  })
  // The URL on openai.com makes the model count as served by OpenAI. This URL receives no call, because its weight is so small that it is
  // used only while the first URL is busy.
  const engine = {
    type: 'openai',
    base_urls: [`${upstream.url}/v1`, { url: 'https://sluice-test.openai.com/v1', weight: 0.01 }],
  }
  const capabilities = { images: true, audio: true, files: true, reasoning: true, logprobs: true }
  stack = await startStack({ models: [{ id: 'm1', engine, capabilities, limits: { choices: 8 } }] })
})
afterAll(async () => {
  await stack?.[Symbol.asyncDispose]()
  await upstream?.[Symbol.asyncDispose]()
})

async function ask(body: Json): Promise<Response> {
  const response = await stack.post('/v1/chat/completions', {
    model: 'm1',
    messages: [{ role: 'user', content: 'Hi' }],
    ...body,
  })
  expect([response.status, response.ok ? '' : await response.text()]).toEqual([200, ''])
  return response
}

async function askStream(body: Json): Promise<Json[]> {
  const text = await (await ask({ ...body, stream: true, stream_options: { include_usage: true } })).text()
  const lines = text.split('\n\n').filter((line) => line.startsWith('data: ') && line !== 'data: [DONE]')
  return lines.map((line) => JSON.parse(line.slice('data: '.length)) as Json)
}

describe('the fields of the chat types in the OpenAI SDK', () => {
  test('each occur in a sample of this test', () => {
    const files = ['chat/completions/completions.d.ts', 'completions.d.ts']
    const [chat, completions] = files.map((file) => declaredFields(`node_modules/openai/resources/${file}`))
    const ofUsage = [...(completions ?? [])].filter(([name]) => name.startsWith('CompletionUsage'))
    const sampled = fieldsIn([REQUESTS, ANSWERS, ANSWERS.map(({ answer: given }) => chunksOf(given))])
    for (const name of ['stream_options', 'include_usage', 'delta']) sampled.add(name)
    const declared = [...(chat ?? []), ...ofUsage].filter(([name]) => !OTHER.test(name))
    expect(declared.length).toBeGreaterThan(60)
    const missing = declared.flatMap(([name, fields]) =>
      fields.filter((field) => !sampled.has(field) && !EXCEPTIONS.has(field)).map((field) => `${name}.${field}`),
    )
    expect(missing).toEqual([])
  })
})

describe('chat requests to an upstream of chat completions', () => {
  beforeAll(() => {
    answer = ANSWERS[0]?.answer ?? {}
  })

  test.each(REQUESTS.map((request, index) => [index, request] as const))(
    'arrive unchanged: request %i',
    async (_, request) => {
      const { n = 1 } = request
      const [choice] = (answer.choices ?? []) as Json[]
      const first = answer
      answer = { ...answer, choices: Array.from({ length: Number(n) }, (_, index) => ({ ...choice, index })) }
      await ask(request)
      answer = first
      expect(upstream.calls.at(-1)?.body).toEqual({ ...request, model: 'm1', stream: false })
    },
  )

  test("arrive with the caller's stream options and a request for usage", async () => {
    await (await ask({ stream: true, stream_options: { include_obfuscation: false, include_usage: false } })).text()
    expect(upstream.calls.at(-1)?.body.stream_options).toEqual({ include_obfuscation: false, include_usage: true })
  })

  test('arrive with unknown fields at every level', async () => {
    const request = {
      odd: 1,
      messages: [
        {
          role: 'user',
          odd: 2,
          content: [{ type: 'image_url', odd: 3, image_url: { url: 'data:image/png;base64,iVBORw0KGgo=', odd: 4 } }],
        },
        {
          role: 'assistant',
          content: null,
          tool_calls: [{ id: 'a', type: 'function', odd: 5, function: { name: 'f', arguments: '{}', odd: 6 } }],
        },
        { role: 'tool', name: 'f', tool_call_id: 'a', odd: 7, content: [{ type: 'text', odd: 8, text: 'x' }] },
      ],
      tools: [
        { type: 'function', odd: 9, function: { name: 'f', parameters: { type: 'object' }, odd: 10 } },
        { type: 'odd', odd: 11 },
      ],
    }
    await ask(request)
    expect(upstream.calls.at(-1)?.body).toEqual({ ...request, model: 'm1', stream: false })
  })
})

describe.each(ANSWERS.map((given, index) => [index, given] as const))(
  'chat response %i of an upstream',
  (_, { asked, answer: given }) => {
    const [choice] = given.choices as Json[]

    test('is returned unchanged without streaming', async () => {
      answer = given
      const got = (await (await ask(asked as Json)).json()) as Json
      const choices = [{ ...choice, content_filter_results: expect.anything() }]
      expect(got).toEqual({ ...given, ...OWN, choices })
    })

    test('is returned unchanged with streaming', async () => {
      answer = given
      const chunks = await askStream(asked as Json)
      expect(joined(chunks)).toEqual(joined(chunksOf(given)))
      expect(chunks.at(-1)?.usage).toEqual(given.usage)
    })

    test('has a message that the next request accepts as input', async () => {
      answer = given
      const got = (await (await ask(asked as Json)).json()) as { choices: { message: Json }[] }
      const message = got.choices[0]?.message ?? {}
      const results = ((message.tool_calls ?? []) as Json[]).map(({ id }) => ({
        role: 'tool',
        tool_call_id: id,
        content: 'ok',
      }))
      const called = message.function_call as Json | undefined
      const more = called ? [{ role: 'function', name: called.name, content: 'ok' }] : results
      await ask({ ...asked, messages: [{ role: 'user', content: 'Hi' }, message, ...more] })
    })
  },
)

/** Merges the chunks of a stream into one response, and leaves out the fields that differ between chunks. */
function joined(chunks: readonly Json[]): Json {
  const answered: Json = {}
  const choice: Json = {}
  for (const {
    choices,
    usage: _usage,
    id: _id,
    created: _created,
    model: _model,
    obfuscation: _padding,
    ...fields
  } of chunks) {
    Object.assign(answered, fields)
    for (const { content_filter_results: _results, index: _index, ...added } of choices as Json[])
      joinDelta(choice, added)
  }
  const { delta, ...rest } = choice
  return { ...answered, ...rest, delta: withoutEmpty(delta as Json) }
}

function withoutEmpty(delta: Json): Json {
  return Object.fromEntries(Object.entries(delta).filter(([, value]) => value !== null && value !== ''))
}
