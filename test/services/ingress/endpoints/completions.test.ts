/* Tests of POST /v1/completions from the caller's point of view (docs/reference/compatibility.md, Completions). */

import OpenAI from 'openai'
import type { Completion } from 'openai/resources/completions'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { type Script, type ScriptedUpstream, startUpstream } from '../../../support/processes/upstream.ts'
import { UNICODE } from '../../../support/sdk.ts'
import { ECHO_MODEL, type Stack, startStack, TEST_KEY } from '../../../support/stack.ts'

let stack: Stack
let upstream: ScriptedUpstream
let client: OpenAI
beforeAll(async () => {
  upstream = await startUpstream((_call, answer) => answer.json({}, 500))
  const engine = { type: 'openai', base_url: `${upstream.url}/v1` }
  stack = await startStack({
    models: [
      ECHO_MODEL,
      { id: 'raw', engine },
      { id: 'chat-only', engine: { ...engine, completions: false } },
      { id: 'claude', engine: { type: 'anthropic', base_url: upstream.url } },
    ],
  })
  client = new OpenAI({ apiKey: TEST_KEY, baseURL: `${stack.url}/v1`, maxRetries: 0 })
})
afterAll(async () => {
  await stack[Symbol.asyncDispose]()
  await upstream[Symbol.asyncDispose]()
})

type Body = Omit<OpenAI.CompletionCreateParamsNonStreaming, 'model'> & { model?: string }
const complete = (body: Body) => client.completions.create({ model: 'echo-1', max_tokens: 100, ...body })

async function stream(body: Body): Promise<Completion[]> {
  const chunks = []
  const asked = { model: 'echo-1', max_tokens: 100, ...body, stream: true as const }
  for await (const chunk of await client.completions.create(asked)) chunks.push(chunk)
  return chunks
}

/** Joins the chunks of a stream. Returns the whole text of each choice, by its index. */
function textsOf(chunks: readonly Completion[]): string[] {
  const texts: string[] = []
  for (const { index, text } of chunks.flatMap(({ choices }) => choices)) texts[index] = (texts[index] ?? '') + text
  return texts
}

async function refusal(body: object): Promise<{ status: number; param: string | null; code: string | null }> {
  const response = await stack.post('/v1/completions', { model: 'echo-1', prompt: 'hi', ...body })
  const { error } = (await response.json()) as { error: { param: string | null; code: string | null } }
  return { status: response.status, param: error.param, code: error.code }
}

describe('a raw completion', () => {
  test('has the text of one choice and its usage, with and without streaming', async () => {
    const whole = await complete({ prompt: UNICODE })
    expect(whole).toMatchObject({
      ...{ object: 'text_completion', model: 'echo-1' },
      choices: [{ index: 0, text: UNICODE, finish_reason: 'stop', logprobs: null }],
    })
    expect(whole.id).toMatch(/^cmpl-/)
    expect(whole.usage?.total_tokens).toBe((whole.usage?.prompt_tokens ?? 0) + (whole.usage?.completion_tokens ?? 0))
    const chunks = await stream({ prompt: UNICODE, stream_options: { include_usage: true } })
    expect(textsOf(chunks)).toEqual([UNICODE])
    expect(chunks.at(-1)).toMatchObject({ choices: [], usage: whole.usage })
    expect(chunks.at(-2)?.choices[0]?.finish_reason).toBe('stop')
    expect(new Set(chunks.map(({ id }) => id)).size).toBe(1)
    expect((await stream({ prompt: 'a b' })).every((chunk) => !('usage' in chunk))).toBe(true)
  })

  test('ends after 16 tokens by default, and at stop strings', async () => {
    const long = 'word '.repeat(40).trim()
    const { choices, usage } = await client.completions.create({ model: 'echo-1', prompt: long })
    expect([choices[0]?.finish_reason, usage?.completion_tokens]).toEqual(['length', 16])
    expect((await complete({ prompt: 'one two three', stop: [' three'] })).choices[0]?.text).toBe('one two')
  })

  test('has n choices of each prompt in order, with an echo of the prompt if requested', async () => {
    const body = { prompt: ['one', 'two'], n: 2 }
    const whole = await complete({ ...body, echo: true })
    expect(whole.choices.map(({ index, text }) => [index, text])).toEqual([
      [0, 'oneone'],
      [1, 'oneone'],
      [2, 'twotwo'],
      [3, 'twotwo'],
    ])
    expect(whole.usage).toMatchObject({ prompt_tokens: 2, completion_tokens: 4 })
    expect(textsOf(await stream(body))).toEqual(['one', 'one', 'two', 'two'])
    expect((await complete({ prompt: 'only this', echo: true, max_tokens: 0 })).choices[0]?.text).toBe('only this')
  })

  test('has log probabilities in the legacy format, with and without streaming', async () => {
    const body = { prompt: 'one 🎉 two', logprobs: 2 }
    const { logprobs } = (await complete(body)).choices[0] ?? {}
    expect(logprobs?.tokens?.join('')).toBe(body.prompt)
    expect(logprobs?.text_offset).toEqual([0, 3, 5])
    expect(logprobs?.token_logprobs?.every((logprob) => logprob <= 0)).toBe(true)
    expect(Object.keys(logprobs?.top_logprobs?.[0] ?? {})).toHaveLength(2)
    const streamed = (await stream(body)).flatMap(({ choices }) => choices[0]?.logprobs?.text_offset ?? [])
    expect(streamed).toEqual(logprobs?.text_offset)
  })

  test('can be submitted as a durable job', async () => {
    const prefer = { headers: { prefer: 'respond-async, wait=20' } }
    const body = { model: 'echo-1', prompt: 'later', metadata: { a: 'b' } }
    const response = await stack.post('/v1/completions', body, prefer)
    expect(await response.json()).toMatchObject({ object: 'text_completion', choices: [{ text: 'later' }] })
  })

  test.each([
    [{ prompt: undefined }, 400, 'prompt', 'missing_required_parameter'],
    [{ prompt: [] }, 400, 'prompt', 'empty_array'],
    [{ prompt: ['a', 3] }, 400, 'prompt[1]', 'invalid_type'],
    [{ prompt: [[1], [-1]] }, 400, 'prompt[1][0]', 'integer_below_min_value'],
    [{ prompt: [1, 2] }, 400, 'prompt', 'unsupported_value'],
    [{ prompt: Array.from({ length: 2_000 }, () => 'a'), n: 2 }, 400, 'prompt', 'invalid_value'],
    [{ suffix: 'end' }, 400, 'suffix', 'unsupported_parameter'],
    [{ best_of: 2 }, 400, 'best_of', 'unsupported_value'],
    [{ n: 3, best_of: 2 }, 400, 'best_of', 'invalid_value'],
    [{ max_tokens: 0 }, 400, 'max_tokens', 'integer_below_min_value'],
    [{ logprobs: 21 }, 400, 'logprobs', 'integer_above_max_value'],
    [{ echo: true, logprobs: 1 }, 400, 'logprobs', 'unsupported_value'],
    [{ stream_options: { include_usage: true } }, 400, 'stream_options', 'invalid_value'],
    [{ model: 'claude', max_tokens: 0, echo: true }, 400, 'max_tokens', 'unsupported_value'],
    [{ model: 'nobody' }, 404, 'model', 'model_not_found'],
  ])('is refused with the name of the parameter for %j', async (body, status, param, code) => {
    expect(await refusal(body)).toEqual({ status, param, code })
  })

  test('is refused if best_of is combined with streaming', async () => {
    const body = { model: 'raw', stream: true, n: 1, best_of: 2 }
    expect(await refusal(body)).toEqual({ status: 400, param: 'best_of', code: 'invalid_value' })
  })
})

describe('an upstream with raw completions', () => {
  const choice = (index: number, text: string, more: object = {}) => ({ index, text, finish_reason: 'stop', ...more })

  test('receives all requested fields, and the prompts unchanged', async () => {
    upstream.script((_call, answer) => answer.json({ choices: [choice(1, 'b'), choice(0, 'a')], usage: USAGE }))
    const body = {
      model: 'raw',
      prompt: [[1, 2], [3]],
      suffix: ' end',
      best_of: 3,
      echo: true,
      top_k: 4,
      max_tokens: 0,
    }
    const whole = await complete(body as Body)
    expect(whole.choices.map(({ text }) => text)).toEqual(['a', 'b'])
    expect(whole.usage).toMatchObject({ prompt_tokens: 3, completion_tokens: 2 })
    const { path, body: sent } = upstream.calls.at(-1) ?? {}
    expect([path, sent]).toEqual(['/v1/completions', { ...body, stream: false }])
  })

  test('streams the log probabilities of a prompt, the first of which is null', async () => {
    const logprobs = { tokens: ['a', ' b'], token_logprobs: [null, -1], top_logprobs: [null, { ' b': -1 }] }
    const script: Script = (_call, answer) => {
      answer.open()
      answer.frame({ choices: [choice(0, 'a b', { logprobs, finish_reason: null })] })
      answer.frame({ choices: [choice(0, ' c', { finish_reason: 'length' })] })
      answer.frame({ choices: [], usage: USAGE })
      answer.frame('[DONE]')
      answer.end()
    }
    upstream.script(script)
    const chunks = await stream({ model: 'raw', prompt: 'a b', echo: true, logprobs: 1 })
    expect(textsOf(chunks)).toEqual(['a b c'])
    expect(chunks[0]?.choices[0]?.logprobs).toEqual({ ...logprobs, text_offset: [0, 1] })
    expect(chunks.at(-1)?.choices[0]?.finish_reason).toBe('length')
    expect(upstream.calls.at(-1)?.body).toMatchObject({
      prompt: 'a b',
      logprobs: 1,
      stream_options: { include_usage: true },
    })
  })

  test('fails the call with 502 if it returns fewer choices than prompts', async () => {
    upstream.script((_call, answer) => answer.json({ choices: [choice(0, 'a')] }))
    expect((await refusal({ model: 'raw', prompt: ['a', 'b'] })).status).toBe(502)
  })
})

describe('a model without raw completions', () => {
  test.each([
    ['chat-only', { choices: [{ index: 0, message: { content: 'yes' }, finish_reason: 'stop' }] }],
    [
      'claude',
      { type: 'message', role: 'assistant', content: [{ type: 'text', text: 'yes' }], stop_reason: 'end_turn' },
    ],
  ])('receives each prompt as a user message: %s', async (model, answered) => {
    upstream.script((_call, answer) => answer.json(answered))
    const before = upstream.calls.length
    const whole = await complete({ model, prompt: ['one', 'two'], echo: true })
    expect(whole.choices.map(({ text }) => text)).toEqual(['oneyes', 'twoyes'])
    const turns = upstream.calls.slice(before).map(({ body }) => body.messages)
    expect(turns).toMatchObject([[{ role: 'user' }], [{ role: 'user' }]])
    expect(JSON.stringify(turns[1])).toContain('two')
  })
})

const USAGE = { prompt_tokens: 3, completion_tokens: 2, total_tokens: 5 }
