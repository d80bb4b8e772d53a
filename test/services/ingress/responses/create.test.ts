/* Tests of POST /v1/responses from the caller's point of view (docs/guides/responses.md). */

import OpenAI from 'openai'
import { zodTextFormat } from 'openai/helpers/zod'
import type { ResponseInputItem, ResponseStreamEvent } from 'openai/resources/responses/responses'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { z } from 'zod'
import { failureOf, UNICODE, WEATHER, WEATHER_ARGUMENTS } from '../../../support/sdk.ts'
import { type Stack, startStack, TEST_KEY } from '../../../support/stack.ts'

let stack: Stack
let client: OpenAI
beforeAll(async () => {
  stack = await startStack()
  client = new OpenAI({ apiKey: TEST_KEY, baseURL: `${stack.url}/v1`, maxRetries: 0 })
})
afterAll(() => stack[Symbol.asyncDispose]())

const TOOL = {
  type: 'function' as const,
  name: WEATHER.name,
  description: WEATHER.description,
  parameters: WEATHER.schema,
  strict: true,
}
const PIXEL = 'data:image/png;base64,iVBORw0KGgo='

/** Request options. Each test runs twice: the response is stored in the first run and not stored in the second run. */
const KEEPING = [{ store: true }, { store: false }]

async function collect(stream: AsyncIterable<ResponseStreamEvent>): Promise<ResponseStreamEvent[]> {
  const events = []
  for await (const event of stream) events.push(event)
  return events
}

async function refusal(body: object): Promise<{ param: string; code: string | null; message: string }> {
  const response = await stack.post('/v1/responses', { model: 'echo-1', input: 'hi', ...body })
  const { error } = (await response.json()) as { error: { param: string; code: string | null; message: string } }
  expect(response.status, `status of the response with the error ${error.message}`).toBe(400)
  return error
}

describe.each(KEEPING)('a response with %j', (kept) => {
  const create = (body: Omit<OpenAI.Responses.ResponseCreateParamsNonStreaming, 'model'>) =>
    client.responses.create({ model: 'echo-1', ...kept, ...body })

  test('returns text and the parameters of the request', async () => {
    const response = await create({ input: UNICODE, instructions: 'Be brief.', metadata: { a: 'b' }, temperature: 0.5 })
    expect(response).toMatchObject({
      ...{ object: 'response', status: 'completed', error: null, incomplete_details: null, model: 'echo-1' },
      ...{ instructions: 'Be brief.', metadata: { a: 'b' }, temperature: 0.5, tools: [], tool_choice: 'auto', ...kept },
      ...{ output_text: UNICODE, text: { format: { type: 'text' } }, previous_response_id: null },
      output: [{ type: 'message', role: 'assistant', status: 'completed', content: [{ type: 'output_text' }] }],
    })
    expect(response.id).toMatch(/^resp_/)
    expect(response.usage?.total_tokens).toBe(
      (response.usage?.input_tokens ?? 0) + (response.usage?.output_tokens ?? 0),
    )
  })

  test('calls a function and accepts the output of the function', async () => {
    const input: ResponseInputItem[] = [{ role: 'user', content: `Ask ${WEATHER.name}.` }]
    const called = await create({ input, tools: [TOOL] })
    const call = called.output.find((item) => item.type === 'function_call')
    expect(JSON.parse(call?.arguments ?? '')).toEqual(WEATHER_ARGUMENTS)
    expect(called.tools).toMatchObject([TOOL])
    const result = { type: 'function_call_output' as const, call_id: call?.call_id ?? '', output: 'sunny' }
    const answered = await create({
      input: [...input, ...(called.output as ResponseInputItem[]), result],
      tools: [TOOL],
    })
    expect(answered.output_text).toBe('sunny')
  })

  test('returns JSON that matches a schema', async () => {
    const Forecast = z.object({ city: z.string(), days: z.number().int() })
    const parsed = await client.responses.parse({
      ...{ model: 'echo-1', input: 'A forecast.', ...kept },
      text: { format: zodTextFormat(Forecast, 'forecast') },
    })
    expect(Forecast.parse(parsed.output_parsed)).toEqual(parsed.output_parsed)
    expect(parsed.text?.format).toMatchObject({ type: 'json_schema', name: 'forecast' })
  })

  test('returns the reasoning before the answer: the original text, or a summary if requested', async () => {
    const input = '!echo reasoning=hmm text=done'
    const { output: plain } = await create({ input })
    expect(plain).toMatchObject([{ type: 'reasoning', summary: [], content: [{ text: 'hmm' }] }, { type: 'message' }])
    const { output: summed } = await create({ input, reasoning: { summary: 'auto' } })
    expect(summed).toMatchObject([{ type: 'reasoning', summary: [{ text: 'hmm' }] }, { type: 'message' }])
    const again = await create({ input: [...(plain as ResponseInputItem[]), { role: 'user', content: 'and now?' }] })
    expect(again.output_text).toBe('and now?')
  })

  test('is incomplete if it reached a token limit, and contains a refusal as a refusal item', async () => {
    const cut = await create({ input: '!echo tokens=50', max_output_tokens: 3 })
    expect(cut).toMatchObject({ status: 'incomplete', incomplete_details: { reason: 'max_output_tokens' } })
    expect(cut.output).toMatchObject([{ status: 'incomplete' }])
    const refused = await create({ input: '!echo refusal=no' })
    expect(refused.output).toMatchObject([{ content: [{ type: 'refusal', refusal: 'no' }] }])
  })

  test('accepts images and files, and returns log probabilities', async () => {
    const content = [
      { type: 'input_text' as const, text: 'What is this?' },
      { type: 'input_image' as const, image_url: PIXEL, detail: 'low' as const },
      { type: 'input_file' as const, file_data: 'data:application/pdf;base64,JVBERi0=', filename: 'a.pdf' },
    ]
    const response = await create({
      input: [{ role: 'user', content }],
      include: ['message.output_text.logprobs'],
      top_logprobs: 2,
    })
    expect(response.output_text).toContain('What is this?')
    const [message] = response.output
    const part = message?.type === 'message' ? message.content[0] : undefined
    expect(part?.type === 'output_text' ? part.logprobs?.[0]?.top_logprobs : undefined).toHaveLength(2)
  })

  test('streams typed events that add up to the response', async () => {
    const stream = client.responses.stream({
      ...{ model: 'echo-1', ...kept, tools: [TOOL], reasoning: { summary: 'auto' } },
      input: `!echo reasoning=hmm call=${WEATHER.name} args={}`,
    })
    const events = await collect(stream)
    const types = new Set(events.map(({ type }) => type))
    expect([...types]).toEqual(
      expect.arrayContaining([
        ...['response.created', 'response.in_progress', 'response.output_item.added', 'response.output_item.done'],
        ...['response.reasoning_summary_part.added', 'response.reasoning_summary_text.delta'],
        ...['response.function_call_arguments.delta', 'response.function_call_arguments.done', 'response.completed'],
      ]),
    )
    const numbers = events.map(({ sequence_number }) => sequence_number)
    expect(numbers).toEqual([...new Set(numbers)].sort((a, b) => a - b))
    const last = events.at(-1)
    const done = events.flatMap((event) => (event.type === 'response.output_item.done' ? [event.item] : []))
    expect(done).toHaveLength(2)
    expect(last?.type === 'response.completed' && last.response.output).toEqual(done)
    expect((await stream.finalResponse()).output).toMatchObject(done)
  })

  test('fails with an HTTP error before any output, and with the event response.failed after output', async () => {
    const early = await failureOf(create({ input: '!echo fail=context_length_exceeded' }))
    expect(early).toMatchObject({ status: 400, code: 'context_length_exceeded' })
    const input = '!echo tokens=20 after=5 fail=context_length_exceeded'
    const events = await collect(await client.responses.create({ model: 'echo-1', ...kept, input, stream: true }))
    expect(events.at(-1)).toMatchObject({
      type: 'response.failed',
      response: { status: 'failed', error: { code: 'invalid_prompt', type: 'context_length_exceeded' } },
    })
  })
})

describe('an unsupported responses request', () => {
  test.each([
    [{ conversation: {} }, 'conversation.id'],
    [{ prompt: { id: 'pmpt_1' } }, 'prompt'],
    [{ truncation: 'sometimes' }, 'truncation'],
    [{ background: true, store: false }, 'background'],
    [{ tools: [{ type: 'function', name: 'a\nb' }] }, 'tools[0].name'],
    [{ tools: [{ type: 'custom' }] }, 'tools[0].name'],
    [{ tools: [{ type: 'namespace', name: 'x' }] }, 'tools[0].tools'],
    [{ input: [] }, 'input'],
    [{ input: null }, 'input'],
    [{ input: [{ type: 'custom_tool_call', call_id: 'call_1' }] }, 'input[0].name'],
    [{ input: [{ role: 'user' }] }, 'input[0].content'],
    [{ input: ['text'] }, 'input[0]'],
    [
      { input: [{ role: 'user', content: [{ type: 'input_image', file_id: 'file_1' }] }] },
      'input[0].content[0].file_id',
    ],
    [{ input: [{ type: 'item_reference', id: 'msg_123' }] }, 'input[0].id'],
    [{ input: [{ type: 'function_call_output', call_id: 'call_1', output: 'x' }] }, 'input[0].call_id'],
    [{ input: [{ type: 'function_call', call_id: 'call_1', name: 'f', arguments: '{}' }] }, 'input'],
    [{ previous_response_id: 'resp_123' }, 'previous_response_id'],
    [{ max_output_tokens: 0 }, 'max_output_tokens'],
  ])('is refused with the name of the field: %j', async (body, param) => {
    expect((await refusal(body)).param).toBe(param)
  })

  test('gets an error that names the type of model that supports the requested tool', async () => {
    expect((await refusal({ tools: [{ type: 'web_search' }] })).message).toContain('need a research model')
    expect((await stack.post('/v1/responses', { model: 'gpt-9', input: 'hi' })).status).toBe(404)
  })
})

test('the input token count of a response includes the instructions', async () => {
  const counted = await client.responses.inputTokens.count({
    model: 'echo-1',
    input: 'one two three',
    instructions: 'four',
  })
  expect(counted).toEqual({ object: 'response.input_tokens', input_tokens: expect.any(Number) })
  expect(counted.input_tokens).toBeGreaterThanOrEqual(4)
})
