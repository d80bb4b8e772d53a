import Anthropic from '@anthropic-ai/sdk'
import { betaZodTool } from '@anthropic-ai/sdk/helpers/beta/zod'
import { zodOutputFormat } from '@anthropic-ai/sdk/helpers/zod'
import type { MessageCreateParamsNonStreaming, MessageParam, RawMessageStreamEvent } from '@anthropic-ai/sdk/resources'
import Anthropic0 from 'anthropic-sdk-0'
import { describe, expect, inject, it } from 'vitest'
import { z } from 'zod'
import {
  callWhileFull,
  countAnswers,
  describeBothModes,
  ENDLESS,
  failureOf,
  occupy,
  SLASHED,
  UNICODE,
  untilRunning,
  useUp,
  WEATHER,
  WEATHER_ARGUMENTS,
} from '../support/sdk.ts'
import { type Stack, TEST_KEY } from '../support/stack.ts'

/** The tests use only calls that have the same types in both major versions, so both clients have the type of the newer version. */
const SDKS = [
  { major: 1, Client: Anthropic },
  { major: 0, Client: Anthropic0 as unknown as typeof Anthropic },
]

const TOOL = { name: WEATHER.name, description: WEATHER.description, input_schema: WEATHER.schema }

function say(content: string): Omit<MessageCreateParamsNonStreaming, 'stream'> {
  return { model: 'echo-1', max_tokens: 1_000, messages: [{ role: 'user', content }] }
}

function textOf(events: readonly RawMessageStreamEvent[]): string {
  const deltas = events.filter((event) => event.type === 'content_block_delta')
  return deltas.map(({ delta }) => (delta.type === 'text_delta' ? delta.text : '')).join('')
}

async function collect(stream: AsyncIterable<RawMessageStreamEvent>): Promise<RawMessageStreamEvent[]> {
  const events = []
  for await (const event of stream) events.push(event)
  return events
}

describeBothModes('the @anthropic-ai/sdk package', inject('kafka'), (stacks) => {
  it('the Anthropic SDK retries automatically until a slot is free, in every major version', async () => {
    const answers = await callWhileFull(stacks.full, SDKS, ({ Client }) => {
      const client = new Client({ apiKey: TEST_KEY, baseURL: stacks.full.url })
      return client.messages.create(say('at last'))
    })
    expect(answers.map((answer) => answer.content)).toMatchObject(SDKS.map(() => [{ type: 'text', text: 'at last' }]))
  })

  describe.each(SDKS)('version $major of the Anthropic SDK', ({ major, Client }) => {
    const open = (stack: Stack = stacks.free, options: object = {}) =>
      new Client({ apiKey: TEST_KEY, baseURL: stack.url, maxRetries: 0, ...options })

    it('returns a message without streaming, with its usage and request id', async () => {
      const answer = await open().messages.create(say(UNICODE))
      expect(answer).toMatchObject({ type: 'message', role: 'assistant', model: 'echo-1', stop_reason: 'end_turn' })
      expect(answer.content).toMatchObject([{ type: 'text', text: UNICODE }])
      expect(answer.usage).toMatchObject({ input_tokens: expect.any(Number), output_tokens: expect.any(Number) })
      expect(answer._request_id).toMatch(/^req_/)
    })

    it('streams deltas whose concatenation is the text of the message', async () => {
      const events = await collect(await open().messages.create({ ...say(UNICODE), stream: true }))
      expect(textOf(events)).toBe(UNICODE)
      expect(events[0]).toMatchObject({ type: 'message_start', message: { role: 'assistant', content: [] } })
      expect(events.at(-1)).toEqual({ type: 'message_stop' })
    })

    it('assembles a stream into the message that a call without streaming returns', async () => {
      const stream = open().messages.stream(say(UNICODE))
      let text = ''
      stream.on('text', (delta) => {
        text += delta
      })
      const { id: _, ...streamed } = await stream.finalMessage()
      const { id: __, _request_id, ...whole } = await open().messages.create(say(UNICODE))
      expect(text).toBe(UNICODE)
      expect(streamed).toMatchObject(whole)
      expect(stream.request_id).toMatch(/^req_/)
    })

    for (const [how, content, tool_choice] of [
      ['forced', 'hello', { type: 'tool', name: WEATHER.name }],
      ['any', 'hello', { type: 'any' }],
      ['auto', 'please get_weather', { type: 'auto' }],
    ] as const) {
      it(`returns a tool call if the tool choice is ${how}, with and without streaming`, async () => {
        const body = { ...say(content), tools: [TOOL], tool_choice }
        const whole = await open().messages.create(body)
        const streamed = await open().messages.stream(body).finalMessage()
        const call = {
          type: 'tool_use',
          id: expect.stringMatching(/^toolu_/),
          name: WEATHER.name,
          input: WEATHER_ARGUMENTS,
        }
        for (const answer of [whole, streamed])
          expect(answer).toMatchObject({ stop_reason: 'tool_use', content: [call] })
      })
    }

    it('sends the result of a tool to the model', async () => {
      const messages: MessageParam[] = [{ role: 'user', content: 'please get_weather' }]
      const body = { ...say(''), tools: [TOOL], messages }
      const { content } = await open().messages.create(body)
      const call = content.find((block) => block.type === 'tool_use')
      const result = { type: 'tool_result' as const, tool_use_id: call?.id ?? '', content: 'sunny' }
      messages.push({ role: 'assistant', content }, { role: 'user', content: [result] })
      expect((await open().messages.create(body)).content).toMatchObject([{ type: 'text', text: 'sunny' }])
    })

    it('streams the reasoning before the answer', async () => {
      const body = { ...say('!echo reasoning="let me see"\nthe answer'), max_tokens: 2_000 }
      const thinking = { type: 'enabled' as const, budget_tokens: 1_024 }
      const answer = await open()
        .messages.stream({ ...body, thinking })
        .finalMessage()
      expect(answer.content).toMatchObject([
        { type: 'thinking', thinking: 'let me see' },
        { type: 'text', text: 'the answer' },
      ])
    })

    it('reports the stop sequence that ended the answer', async () => {
      const answer = await open().messages.create({ ...say('one two STOP three'), stop_sequences: ['STOP'] })
      expect(answer).toMatchObject({ stop_reason: 'stop_sequence', stop_sequence: 'STOP' })
      expect(answer.content).toMatchObject([{ text: 'one two ' }])
    })

    it('counts the same number of input tokens as the response reports', async () => {
      const { model, messages } = say('one two three')
      const counted = await open().messages.countTokens({ model, messages, system: 'be brief' })
      const answer = await open().messages.create({ ...say('one two three'), system: 'be brief' })
      expect(counted.input_tokens).toBe(answer.usage.input_tokens)
    })

    it('sends images and documents together with text', async () => {
      const source = { type: 'base64' as const, media_type: 'image/png' as const, data: 'iVBORw0KGgo=' }
      const document = { type: 'text' as const, media_type: 'text/plain' as const, data: 'the document' }
      const content = [
        { type: 'image' as const, source },
        { type: 'document' as const, source: document },
        { type: 'text' as const, text: 'look' },
      ]
      const answer = await open().messages.create({ ...say(''), messages: [{ role: 'user', content }] })
      expect(answer.content[0]).toMatchObject({ type: 'text', text: expect.stringContaining('look') })
    })

    it('throws AuthenticationError for a wrong key', async () => {
      const error = await failureOf(open(stacks.free, { apiKey: 'sk-wrong-0000000000' }).messages.create(say('x')))
      expect(error).toBeInstanceOf(Client.AuthenticationError)
      expect(error.error).toMatchObject({ type: 'error', error: { type: 'authentication_error' } })
    })

    for (const stream of [false, true]) {
      it(`throws NotFoundError for an unknown model, ${stream ? 'with' : 'without'} streaming`, async () => {
        const error = await failureOf(open().messages.create({ ...say('x'), model: 'none', stream }))
        expect(error).toBeInstanceOf(Client.NotFoundError)
        expect(error.error).toMatchObject({ error: { type: 'not_found_error' }, request_id: error.requestID })
        expect(error.requestID).toMatch(/^req_/)
      })
    }

    it('throws BadRequestError whose message starts with the path of the field', async () => {
      const body = { ...say('x'), temperature: 5 }
      const error = await failureOf(open().messages.create(body))
      expect(error).toBeInstanceOf(Client.BadRequestError)
      expect(error.error).toMatchObject({
        error: { type: 'invalid_request_error', message: expect.stringMatching(/^temperature: /) },
      })
    })

    it('throws RateLimitError when the key is over its request limit', async () => {
      await useUp(stacks.limited)
      const error = await failureOf(open(stacks.limited).messages.create(say('x')))
      expect(error).toBeInstanceOf(Client.RateLimitError)
      expect(error.error).toMatchObject({ error: { type: 'rate_limit_error' } })
      expect(Number((error.headers as Headers).get('retry-after'))).toBeGreaterThan(0)
    })

    it('throws OverloadedError, or InternalServerError in version 0, if the service is full', async () => {
      await using _occupants = await occupy(stacks.full)
      const error = await failureOf(open(stacks.full).messages.create(say('x')))
      expect(error).toBeInstanceOf(major > 0 ? Anthropic.OverloadedError : Client.InternalServerError)
      expect(error).toMatchObject({ status: 529, error: { error: { type: 'overloaded_error' } } })
    })

    it('does not retry errors whose x-should-retry header is false', async () => {
      const timeouts = await countAnswers(stacks.free, 504)
      const error = await failureOf(open(stacks.free, { maxRetries: 2 }).messages.create(say('!echo fail=timeout')))
      expect(error).toBeInstanceOf(major > 0 ? Anthropic.GatewayTimeoutError : Client.InternalServerError)
      await expect.poll(timeouts, { timeout: 10_000 }).toBe(1)
    })

    it('throws APIError if a stream fails after its first deltas', async () => {
      const script = say('!echo fail=upstream_error after=2\none two three four')
      const events: RawMessageStreamEvent[] = []
      const read = async () => {
        for await (const event of await open().messages.create({ ...script, stream: true })) events.push(event)
      }
      const error = await failureOf(read())
      expect(textOf(events)).toBe('one two')
      expect(error).toBeInstanceOf(Client.APIError)
      expect(error.error).toMatchObject({ error: { type: 'api_error' } })
      expect(await failureOf(open().messages.stream(script).finalMessage())).toBeInstanceOf(Client.APIError)
    })

    it('cancels the upstream work if the caller leaves the loop of a stream', async () => {
      for await (const event of await open().messages.create({ ...say(ENDLESS), stream: true })) {
        if (event.type !== 'content_block_delta') continue
        await untilRunning(stacks.free, 1)
        break
      }
      await untilRunning(stacks.free, 0)
    })

    it('cancels the upstream work if the caller aborts the stream helper', async () => {
      const stream = open().messages.stream(say(ENDLESS))
      stream.once('text', () => stream.abort())
      expect(await failureOf(stream.finalMessage())).toBeInstanceOf(Client.APIUserAbortError)
      await untilRunning(stacks.free, 0)
    })

    it('cancels the upstream work if a signal aborts the call', async () => {
      const leave = new AbortController()
      const failure = failureOf(open().messages.create(say(ENDLESS), { signal: leave.signal }))
      await untilRunning(stacks.free, 1)
      leave.abort()
      expect(await failure).toBeInstanceOf(Client.APIUserAbortError)
      await untilRunning(stacks.free, 0)
    })

    it('cancels the upstream work if the timeout of the client expires', async () => {
      const error = await failureOf(open().messages.create(say(ENDLESS), { timeout: 200 }))
      expect(error).toBeInstanceOf(Client.APIConnectionTimeoutError)
      await untilRunning(stacks.free, 0)
    })

    it('lists the models, and retrieves a model whose id contains a slash', async () => {
      const ids = []
      for await (const model of open().models.list()) ids.push(model.id)
      expect(ids).toEqual(['echo-1', SLASHED])
      expect(await open().models.retrieve(SLASHED)).toMatchObject({ id: SLASHED })
      expect(await failureOf(open().models.retrieve('no/such'))).toBeInstanceOf(Client.NotFoundError)
    })

    it('makes concurrent calls, and each returns its own response', async () => {
      const client = open()
      const words = Array.from({ length: 24 }, (_, i) => `word ${i}`)
      const answers = await Promise.all(
        words.map(async (word, i) => {
          if (i % 2 === 0) return (await client.messages.create(say(word))).content[0]
          return { type: 'text', text: await client.messages.stream(say(word)).finalText() }
        }),
      )
      expect(answers).toMatchObject(words.map((text) => ({ type: 'text', text })))
    })

    for (const [header, options] of [
      ['Authorization', { apiKey: null, authToken: TEST_KEY }],
      ['x-api-key', { apiKey: 'sk-not-sent-000', defaultHeaders: { authorization: null, 'x-api-key': TEST_KEY } }],
    ] as const) {
      it(`can send its key in the header ${header}`, async () => {
        const answer = await open(stacks.free, options).messages.create(say('let me in'))
        expect(answer.content).toMatchObject([{ text: 'let me in' }])
      })
    }
  })

  describe('version 1 of the Anthropic SDK', () => {
    const open = () => new Anthropic({ apiKey: TEST_KEY, baseURL: stacks.free.url, maxRetries: 0 })
    const Forecast = z.object({ city: z.string(), days: z.number().int() })

    it('parses structured output by a zod schema, with and without streaming', async () => {
      const body = { ...say('a forecast'), output_config: { format: zodOutputFormat(Forecast) } }
      const whole = await open().messages.parse(body)
      const streamed = await open().messages.stream(body).finalMessage()
      for (const { parsed_output } of [whole, streamed])
        expect(parsed_output).toEqual({ city: 'city', days: expect.any(Number) })
    })

    it('throws BadRequestError for the threads API, which the service does not have', async () => {
      const thread = open().beta.messages.thread({ model: 'echo-1', max_tokens: 100 })
      const error = await failureOf(thread.send({ role: 'user', content: 'hello' }))
      expect(error).toBeInstanceOf(Anthropic.BadRequestError)
      expect(error.errorCode).toBe('thread_unsupported_request')
    })

    for (const stream of [false, true]) {
      it(`runs tools automatically until the final answer, ${stream ? 'with' : 'without'} streaming`, async () => {
        const seen: unknown[] = []
        const run = (input: unknown) => {
          seen.push(input)
          return 'it will be sunny'
        }
        const tool = betaZodTool({ name: WEATHER.name, description: 'x', inputSchema: Forecast, run })
        const runner = open().beta.messages.toolRunner({ ...say('please get_weather'), tools: [tool], stream })
        expect((await runner.runUntilDone()).content).toMatchObject([{ type: 'text', text: 'it will be sunny' }])
        expect(seen).toEqual([{ city: 'city', days: expect.any(Number) }])
      })
    }
  })
})
