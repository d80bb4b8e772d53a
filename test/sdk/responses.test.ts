/* Tests clients that use the Responses API by default, instead of chat completions. */
import { createOpenAI } from '@ai-sdk/openai'
import { generateText, Output, stepCountIs, streamText, tool } from 'ai'
import { afterAll, beforeAll, describe, expect, it } from 'vitest'
import { z } from 'zod'
import { UNICODE, WEATHER, WEATHER_ARGUMENTS } from '../support/sdk.ts'
import { type Stack, startStack, TEST_KEY } from '../support/stack.ts'

let stack: Stack
beforeAll(async () => {
  stack = await startStack()
})
afterAll(() => stack[Symbol.asyncDispose]())

describe('the Vercel AI SDK with the Responses API', () => {
  const model = () => createOpenAI({ apiKey: TEST_KEY, baseURL: `${stack.url}/v1` })('echo-1')
  const tools = {
    [WEATHER.name]: tool({
      description: WEATHER.description,
      inputSchema: z.object({ city: z.string(), days: z.number().int().min(1) }),
      execute: async ({ city }) => `sunny in ${city}`,
    }),
  }

  it('returns answers, with and without streaming', async () => {
    expect((await generateText({ model: model(), prompt: UNICODE, maxRetries: 0 })).text).toBe(UNICODE)
    const { textStream, usage } = streamText({ model: model(), prompt: UNICODE, maxRetries: 0 })
    let text = ''
    for await (const delta of textStream) text += delta
    expect(text).toBe(UNICODE)
    expect((await usage).outputTokens).toBeGreaterThan(0)
  })

  it('runs tools over several steps, with and without streaming', async () => {
    const ask = { model: model(), prompt: `Ask ${WEATHER.name}.`, tools, stopWhen: stepCountIs(3), maxRetries: 0 }
    const whole = await generateText(ask)
    expect(whole.steps[0]?.toolCalls[0]?.input).toEqual(WEATHER_ARGUMENTS)
    expect(whole.text).toContain('sunny in city')
    expect(await streamText(ask).text).toContain('sunny in city')
  })

  it('returns objects that match a schema', async () => {
    const schema = z.object({ city: z.string(), days: z.number().int() })
    const output = Output.object({ schema })
    const answer = await generateText({ model: model(), prompt: 'A forecast.', output, maxRetries: 0 })
    expect(schema.parse(answer.output)).toEqual(answer.output)
  })
})
