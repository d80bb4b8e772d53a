import { HumanMessage, ToolMessage } from '@langchain/core/messages'
import { tool } from '@langchain/core/tools'
import { ChatOpenAI } from '@langchain/openai'
import { expect, inject, it } from 'vitest'
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
} from '../support/sdk.ts'
import { type Stack, TEST_KEY } from '../support/stack.ts'

const Forecast = z.object({ city: z.string(), days: z.number().int() })
const FORECAST = { city: 'city', days: expect.any(Number) }

const getWeather = tool((input: z.infer<typeof Forecast>) => `sunny in ${input.city}`, {
  name: WEATHER.name,
  description: WEATHER.description,
  schema: Forecast,
})

describeBothModes('ChatOpenAI of LangChain', inject('kafka'), (stacks) => {
  const open = (stack: Stack = stacks.free, options: object = {}) =>
    new ChatOpenAI({
      model: 'echo-1',
      apiKey: TEST_KEY,
      maxRetries: 0,
      configuration: { baseURL: `${stack.url}/v1` },
      ...options,
    })

  it('ChatOpenAI returns a response without streaming, with its usage', async () => {
    const answer = await open().invoke(UNICODE)
    expect(answer.content).toBe(UNICODE)
    const { input_tokens = 0, output_tokens = 0, total_tokens } = answer.usage_metadata ?? {}
    expect(output_tokens).toBeGreaterThan(0)
    expect(total_tokens).toBe(input_tokens + output_tokens)
    expect(answer.response_metadata).toMatchObject({ finish_reason: 'stop', model_name: 'echo-1' })
  })

  it('ChatOpenAI streams deltas whose concatenation is the answer, with usage', async () => {
    let answer: Awaited<ReturnType<ChatOpenAI['invoke']>> | undefined
    for await (const chunk of await open(stacks.free, { model: SLASHED }).stream(UNICODE))
      answer = answer === undefined ? chunk : answer.concat(chunk)
    expect(answer?.content).toBe(UNICODE)
    expect(answer?.usage_metadata?.output_tokens).toBeGreaterThan(0)
    expect(answer?.response_metadata.finish_reason).toBe('stop')
  })

  for (const [how, prompt, tool_choice] of [
    ['forced', 'hello', WEATHER.name],
    ['required', 'hello', 'required'],
    ['auto', 'please get_weather', 'auto'],
  ] as const) {
    it(`ChatOpenAI returns a tool call if the tool choice is ${how}, with and without streaming`, async () => {
      const model = open().bindTools([getWeather], { tool_choice })
      const whole = await model.invoke(prompt)
      const chunks = []
      for await (const chunk of await model.stream(prompt)) chunks.push(chunk)
      const streamed = chunks.reduce((joined, chunk) => joined.concat(chunk))
      for (const { tool_calls } of [whole, streamed])
        expect(tool_calls).toMatchObject([{ name: WEATHER.name, args: FORECAST, id: expect.any(String) }])
    })
  }

  it('ChatOpenAI continues the conversation with the result of a tool', async () => {
    const model = open().bindTools([getWeather])
    const question = new HumanMessage('please get_weather')
    const answer = await model.invoke([question])
    const [call] = answer.tool_calls ?? []
    if (!call) throw new Error('no call')
    const result = await getWeather.invoke({ ...call, type: 'tool_call' })
    expect(result).toBeInstanceOf(ToolMessage)
    expect((await model.invoke([question, answer, result])).content).toBe('sunny in city')
  })

  for (const method of ['jsonSchema', 'functionCalling'] as const) {
    it(`ChatOpenAI returns structured output by the method ${method}`, async () => {
      const model = open().withStructuredOutput(Forecast, { name: 'forecast', method })
      expect(await model.invoke('a forecast')).toEqual(FORECAST)
    })
  }

  for (const [what, status, options, prompt] of [
    ['a wrong key', 401, { apiKey: 'sk-wrong-0000000000' }, 'x'],
    ['an unknown model', 404, { model: 'none' }, 'x'],
    ['a bad parameter', 400, { temperature: 5 }, 'x'],
    ['a timeout of the service', 504, {}, '!echo fail=timeout'],
  ] as const) {
    it(`ChatOpenAI throws an error with the status for ${what}`, async () => {
      expect(await failureOf(open(stacks.free, options).invoke(prompt))).toMatchObject({ status })
    })
  }

  it('ChatOpenAI throws an error with status 429 if a rate limit is reached, and 503 if the service is full', async () => {
    await useUp(stacks.limited)
    expect(await failureOf(open(stacks.limited).invoke('x'))).toMatchObject({ status: 429 })
    await using _occupants = await occupy(stacks.full)
    expect(await failureOf(open(stacks.full).invoke('x'))).toMatchObject({ status: 503 })
  })

  it('ChatOpenAI does not retry a response with the status 400', async () => {
    const refusals = await countAnswers(stacks.free, 400)
    await failureOf(open(stacks.free, { temperature: 5, maxRetries: 6 }).invoke('x'))
    await expect.poll(refusals, { timeout: 10_000 }).toBe(1)
  })

  it('ChatOpenAI retries automatically until a slot is free', async () => {
    const client = open(stacks.full, { maxRetries: 6 })
    const [answer] = await callWhileFull(stacks.full, [client], (client) => client.invoke('at last'))
    expect(answer?.content).toBe('at last')
  })

  it('ChatOpenAI throws an error if a stream fails after its first deltas', async () => {
    let text = ''
    const read = async () => {
      for await (const chunk of await open().stream('!echo fail=upstream_error after=2\none two three four'))
        text += chunk.text
    }
    expect(await failureOf(read())).toMatchObject({ code: 'upstream_error' })
    expect(text).toBe('one two')
  })

  it('ChatOpenAI cancels the upstream work if the caller leaves the loop of a stream', async () => {
    for await (const chunk of await open().stream(ENDLESS)) {
      if (chunk.text === '') continue
      await untilRunning(stacks.free, 1)
      break
    }
    await untilRunning(stacks.free, 0)
  })

  it('ChatOpenAI cancels the upstream work if a signal aborts the call', async () => {
    const leave = new AbortController()
    const failure = failureOf(open().invoke(ENDLESS, { signal: leave.signal }))
    await untilRunning(stacks.free, 1)
    leave.abort()
    await failure
    await untilRunning(stacks.free, 0)
  })

  it('ChatOpenAI makes concurrent calls, and each returns its own response', async () => {
    const words = Array.from({ length: 16 }, (_, i) => `word ${i}`)
    const answers = await open().batch(words)
    expect(answers.map(({ content }) => content)).toEqual(words)
  })
})
