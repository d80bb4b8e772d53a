import OpenAI from 'openai'
import { zodResponseFormat } from 'openai/helpers/zod'
import type { ChatCompletionChunk, ChatCompletionCreateParamsNonStreaming } from 'openai/resources/chat/completions'
import OpenAI4 from 'openai-4'
import OpenAI6 from 'openai-6'
import { zodResponseFormat as zodResponseFormat6 } from 'openai-6/helpers/zod'
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
import { TEST_KEY } from '../support/stack.ts'

/**
 * One major version of the `openai` package. The tests use only calls that have the same types in all versions.
 * The client of each version therefore has the type of the newest one.
 */
interface Sdk {
  readonly major: number
  readonly Client: typeof OpenAI
  /** A response format of `{ city: string, days: integer }`, created from a zod schema by the version's own function. */
  readonly forecast: ReturnType<typeof zodResponseFormat<z.ZodType<{ city: string; days: number }>>>
}

const Forecast = z.object({ city: z.string(), days: z.number().int() })

const PLAIN = { type: 'json_schema', json_schema: { name: 'forecast', strict: true, schema: WEATHER.schema } }

// `forecast` of version 4 is a plain schema: the zod function of that version needs zod 3, which is not installed.
const SDKS = [
  { major: 7, Client: OpenAI, forecast: zodResponseFormat(Forecast, 'forecast') },
  { major: 6, Client: OpenAI6, forecast: zodResponseFormat6(Forecast, 'forecast') },
  { major: 4, Client: OpenAI4, forecast: PLAIN },
] as unknown as Sdk[]

const TOOL = {
  type: 'function' as const,
  function: { name: WEATHER.name, description: WEATHER.description, parameters: WEATHER.schema },
}

/** Version 4 has its stream, parse and runTools helpers under `beta`. */
function helpersOf(client: OpenAI): OpenAI['chat']['completions'] {
  const { completions } = client.chat
  return 'runTools' in completions ? completions : (client as unknown as { beta: OpenAI }).beta.chat.completions
}

function say(content: string): Pick<ChatCompletionCreateParamsNonStreaming, 'model' | 'messages'> {
  return { model: 'echo-1', messages: [{ role: 'user', content }] }
}

async function collect(stream: AsyncIterable<ChatCompletionChunk>): Promise<ChatCompletionChunk[]> {
  const chunks = []
  for await (const chunk of stream) chunks.push(chunk)
  return chunks
}

const textOf = (chunks: readonly ChatCompletionChunk[]) =>
  chunks.map((chunk) => chunk.choices[0]?.delta.content ?? '').join('')

describeBothModes('the openai package', inject('kafka'), (stacks) => {
  it('the openai package retries automatically until a slot is free, in every major version', async () => {
    const answers = await callWhileFull(stacks.full, SDKS, ({ Client }) => {
      const client = new Client({ apiKey: TEST_KEY, baseURL: `${stacks.full.url}/v1` })
      return client.chat.completions.create(say('at last'))
    })
    expect(answers.map((answer) => answer.choices[0]?.message.content)).toEqual(SDKS.map(() => 'at last'))
  })

  describe.each(SDKS)('version $major of the openai package', ({ major, Client, forecast }) => {
    const open = (stack = stacks.free, options: object = {}) =>
      new Client({ apiKey: TEST_KEY, baseURL: `${stack.url}/v1`, maxRetries: 0, ...options })

    it('returns a response without streaming, with its usage and request id', async () => {
      const answer = await open().chat.completions.create(say(UNICODE))
      expect(answer).toMatchObject({ object: 'chat.completion', model: 'echo-1' })
      expect(answer.choices[0]).toMatchObject({ finish_reason: 'stop', message: { content: UNICODE, refusal: null } })
      const { prompt_tokens = 0, completion_tokens = 0, total_tokens } = answer.usage ?? {}
      expect(completion_tokens).toBeGreaterThan(0)
      expect(total_tokens).toBe(prompt_tokens + completion_tokens)
      expect(answer._request_id).toMatch(/^req_/)
    })

    it('streams deltas whose concatenation is the answer, with usage if requested', async () => {
      const stream_options = { include_usage: true }
      const chunks = await collect(
        await open().chat.completions.create({ ...say(UNICODE), stream: true, stream_options }),
      )
      expect(textOf(chunks)).toBe(UNICODE)
      expect(new Set(chunks.map((chunk) => chunk.id)).size).toBe(1)
      expect(chunks.at(-1)).toMatchObject({ choices: [], usage: { completion_tokens: expect.any(Number) } })
    })

    it('streams without usage by default', async () => {
      const chunks = await collect(await open().chat.completions.create({ ...say('one two'), stream: true }))
      expect(chunks.some((chunk) => 'usage' in chunk)).toBe(false)
      expect(chunks.at(-1)?.choices[0]?.finish_reason).toBe('stop')
    })

    it('assembles a stream into a completion with the stream helper of the package', async () => {
      const stream = helpersOf(open()).stream({ ...say(UNICODE), stream_options: { include_usage: true } })
      let text = ''
      stream.on('content', (delta) => {
        text += delta
      })
      const answer = await stream.finalChatCompletion()
      expect(text).toBe(UNICODE)
      expect(answer.choices[0]?.message).toMatchObject({ role: 'assistant', content: UNICODE })
      expect(await stream.totalUsage()).toMatchObject({ completion_tokens: expect.any(Number) })
    })

    for (const [how, content, tool_choice] of [
      ['forced', 'hello', { type: 'function', function: { name: WEATHER.name } }],
      ['required', 'hello', 'required'],
      ['auto', 'please get_weather', 'auto'],
    ] as const) {
      it(`returns a tool call if the tool choice is ${how}, with and without streaming`, async () => {
        const body = { ...say(content), tools: [TOOL], tool_choice }
        const whole = await open().chat.completions.create(body)
        const streamed = await helpersOf(open()).stream(body).finalChatCompletion()
        for (const [choice] of [whole.choices, streamed.choices]) {
          expect(choice).toMatchObject({ finish_reason: 'tool_calls', message: { content: null } })
          const [call, ...more] = choice?.message.tool_calls ?? []
          expect(more).toEqual([])
          expect(call).toMatchObject({ id: expect.stringMatching(/^call_/), type: 'function' })
          if (call?.type !== 'function') throw new Error('not a function')
          expect(call.function.name).toBe(WEATHER.name)
          expect(JSON.parse(call.function.arguments)).toEqual(WEATHER_ARGUMENTS)
        }
      })
    }

    it('returns no tool call if tool_choice is none', async () => {
      const body = { ...say('please get_weather'), tools: [TOOL], tool_choice: 'none' as const }
      const answer = await open().chat.completions.create(body)
      expect(answer.choices[0]).toMatchObject({ finish_reason: 'stop', message: { content: 'please get_weather' } })
      expect(answer.choices[0]?.message).not.toHaveProperty('tool_calls')
    })

    it('sends the result of each parallel tool call with the id of the call', async () => {
      const body = { ...say('!echo call=get_weather calls=2\nx'), tools: [TOOL] }
      const first = await open().chat.completions.create(body)
      const message = first.choices[0]?.message
      if (!message?.tool_calls) throw new Error('no calls')
      const results = message.tool_calls.map(({ id }, i) => ({
        role: 'tool' as const,
        tool_call_id: id,
        content: `sunny ${i}`,
      }))
      const messages = [{ role: 'user' as const, content: 'please get_weather' }, message, ...results]
      const second = await open().chat.completions.create({ ...body, messages })
      expect(second.choices[0]?.message.content).toBe('sunny 1')
    })

    for (const stream of [false, true]) {
      it(`runs tools automatically until the final answer, ${stream ? 'with' : 'without'} streaming`, async () => {
        const seen: unknown[] = []
        const run = (given: string) => {
          seen.push(JSON.parse(given))
          return 'it will be sunny'
        }
        const tools = [{ type: 'function' as const, function: { ...TOOL.function, function: run } }]
        const body = { ...say('please get_weather'), tools }
        const helpers = helpersOf(open())
        const runner = stream ? helpers.runTools({ ...body, stream }) : helpers.runTools(body)
        expect(await runner.finalContent()).toBe('it will be sunny')
        expect(seen).toEqual([WEATHER_ARGUMENTS])
      })
    }

    it('parses structured output, with and without streaming', async () => {
      const body = { ...say('a forecast please'), response_format: forecast }
      const whole = await helpersOf(open()).parse(body)
      const streamed = await helpersOf(open()).stream(body).finalChatCompletion()
      expect(whole.choices[0]?.message.parsed).toEqual({ city: 'city', days: expect.any(Number) })
      const { parsed, content } = streamed.choices[0]?.message ?? {}
      // In version 4, only the call without streaming parses the answer by a plain schema, so the test parses the streamed text itself.
      expect(major > 4 ? parsed : JSON.parse(content ?? '')).toEqual(whole.choices[0]?.message.parsed)
    })

    it('returns JSON for the response formats json_schema and json_object', async () => {
      const json_schema = { name: 'forecast', strict: true, schema: WEATHER.schema }
      const bySchema = await open().chat.completions.create({
        ...say('x'),
        response_format: { type: 'json_schema', json_schema },
      })
      expect(JSON.parse(bySchema.choices[0]?.message.content ?? '')).toEqual(WEATHER_ARGUMENTS)
      const any = await open().chat.completions.create({ ...say('x'), response_format: { type: 'json_object' } })
      expect(JSON.parse(any.choices[0]?.message.content ?? '')).toEqual({ echo: 'x' })
    })

    it('returns several choices with log probabilities, with and without streaming', async () => {
      const body = { ...say('one two'), n: 2, logprobs: true, top_logprobs: 1 }
      const whole = await open().chat.completions.create(body)
      const streamed = await helpersOf(open()).stream(body).finalChatCompletion()
      for (const { choices } of [whole, streamed]) {
        expect(choices.map((choice) => [choice.index, choice.message.content])).toEqual([
          [0, 'one two'],
          [1, 'one two'],
        ])
        for (const { logprobs } of choices)
          expect(logprobs?.content?.map((each) => each.token).join('')).toBe('one two')
      }
    })

    it('sends images, files and audio together with text', async () => {
      const answer = await open().chat.completions.create({
        model: 'echo-1',
        messages: [
          {
            role: 'user',
            content: [
              { type: 'text', text: 'look' },
              { type: 'image_url', image_url: { url: 'data:image/png;base64,iVBORw0KGgo=' } },
              { type: 'input_audio', input_audio: { data: 'UklGRg==', format: 'wav' } },
              { type: 'file', file: { filename: 'a.pdf', file_data: 'data:application/pdf;base64,JVBERg==' } },
            ],
          },
        ],
      })
      expect(answer.choices[0]?.message.content).toContain('look')
    })

    it('throws AuthenticationError for a wrong key', async () => {
      const error = await failureOf(open(stacks.free, { apiKey: 'sk-wrong-0000000000' }).models.list())
      expect(error).toBeInstanceOf(Client.AuthenticationError)
      expect(error).toMatchObject({ status: 401, code: 'invalid_api_key' })
      expect(String(error.message)).not.toContain('wrong-000')
    })

    for (const stream of [false, true]) {
      it(`throws NotFoundError for an unknown model, ${stream ? 'with' : 'without'} streaming`, async () => {
        const error = await failureOf(open().chat.completions.create({ ...say('x'), model: 'none', stream }))
        expect(error).toBeInstanceOf(Client.NotFoundError)
        expect(error).toMatchObject({ status: 404, code: 'model_not_found', param: 'model' })
        expect(error.requestID ?? error.request_id).toMatch(/^req_/)
      })
    }

    it('throws BadRequestError that names the parameter', async () => {
      const error = await failureOf(open().chat.completions.create({ ...say('x'), temperature: 5 }))
      expect(error).toBeInstanceOf(Client.BadRequestError)
      expect(error).toMatchObject({ param: 'temperature', code: 'decimal_above_max_value' })
      expect(error.type).toBe('invalid_request_error')
    })

    it('throws RateLimitError when the key is over its request limit', async () => {
      await useUp(stacks.limited)
      const error = await failureOf(open(stacks.limited).chat.completions.create(say('x')))
      expect(error).toBeInstanceOf(Client.RateLimitError)
      expect(error).toMatchObject({ status: 429, code: 'rate_limit_exceeded' })
    })

    it('throws InternalServerError when the service is full', async () => {
      await using _occupant = await occupy(stacks.full)
      const error = await failureOf(open(stacks.full).chat.completions.create(say('x')))
      expect(error).toBeInstanceOf(Client.InternalServerError)
      expect(error).toMatchObject({ status: 503, code: 'overloaded' })
    })

    it('does not retry errors whose x-should-retry header is false', async () => {
      const timeouts = await countAnswers(stacks.free, 504)
      const call = open(stacks.free, { maxRetries: 2 }).chat.completions.create(say('!echo fail=timeout'))
      expect(await failureOf(call)).toBeInstanceOf(Client.InternalServerError)
      await expect.poll(timeouts, { timeout: 10_000 }).toBe(1)
    })

    it('throws APIError if a stream fails after its first deltas', async () => {
      const script = say('!echo fail=upstream_error after=2\none two three four')
      const stream = await open().chat.completions.create({ ...script, stream: true })
      const chunks: ChatCompletionChunk[] = []
      const error = await failureOf(
        (async () => {
          for await (const chunk of stream) chunks.push(chunk)
        })(),
      )
      expect(textOf(chunks)).toBe('one two')
      expect(error).toBeInstanceOf(Client.APIError)
      expect(error).toMatchObject({ code: 'upstream_error' })
    })

    it('cancels the upstream work if the caller leaves the loop of a stream', async () => {
      const stream = await open().chat.completions.create({ ...say(ENDLESS), stream: true })
      for await (const _chunk of stream) {
        await untilRunning(stacks.free, 1)
        break
      }
      await untilRunning(stacks.free, 0)
    })

    for (const stream of [false, true]) {
      it(`cancels the upstream work if a signal aborts the call, ${stream ? 'with' : 'without'} streaming`, async () => {
        const leave = new AbortController()
        const call = open().chat.completions.create({ ...say(ENDLESS), stream }, { signal: leave.signal })
        const failure = stream ? call : failureOf(call)
        await untilRunning(stacks.free, 1)
        if (stream) await call
        leave.abort()
        if (!stream) expect(await failure).toBeInstanceOf(Client.APIUserAbortError)
        await untilRunning(stacks.free, 0)
      })
    }

    it('cancels the upstream work if the timeout of the client expires', async () => {
      const error = await failureOf(open().chat.completions.create(say(ENDLESS), { timeout: 200 }))
      expect(error).toBeInstanceOf(Client.APIConnectionTimeoutError)
      await untilRunning(stacks.free, 0)
    })

    it('lists the models, and retrieves a model whose id contains a slash', async () => {
      const ids = []
      for await (const model of open().models.list()) ids.push(model.id)
      expect(ids).toEqual(['echo-1', SLASHED])
      expect(await open().models.retrieve(SLASHED)).toMatchObject({ id: SLASHED, object: 'model' })
      expect(await failureOf(open().models.retrieve('no/such'))).toBeInstanceOf(Client.NotFoundError)
    })

    it('makes concurrent calls, and each returns its own response', async () => {
      const client = open()
      const words = Array.from({ length: 24 }, (_, i) => `word ${i}`)
      const answers = await Promise.all(
        words.map(async (word, i) => {
          if (i % 2 === 0) return (await client.chat.completions.create(say(word))).choices[0]?.message.content
          return textOf(await collect(await client.chat.completions.create({ ...say(word), stream: true })))
        }),
      )
      expect(answers).toEqual(words)
    })

    it('can send its key in the x-api-key header', async () => {
      const defaultHeaders = { authorization: null, 'x-api-key': TEST_KEY }
      const client = open(stacks.free, { apiKey: 'sk-not-sent-000', defaultHeaders })
      expect((await client.models.list()).data).toHaveLength(2)
    })
  })
})
