import { createAnthropic } from '@ai-sdk/anthropic'
import { createOpenAICompatible } from '@ai-sdk/openai-compatible'
import * as ai7 from 'ai'
import * as ai6 from 'ai-6'
import { createAnthropic as createAnthropic3 } from 'ai-sdk-anthropic-3'
import { createOpenAICompatible as createOpenAICompatible2 } from 'ai-sdk-openai-compatible-2'
import { afterAll, beforeAll, describe, expect, inject, it } from 'vitest'
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

type Ai = typeof ai7
type Model = Parameters<Ai['generateText']>[0]['model']

/** One generation of the Vercel AI SDK with one of its provider packages. All are typed as the newest one. */
interface Sdk {
  readonly name: string
  readonly ai: Ai
  /** HTTP status that means overload in the provider's protocol. */
  readonly overloaded: number
  model(stack: Stack, id?: string, key?: string): Model
}

const SDKS: Sdk[] = [
  { name: 'ai 7 with openai-compatible 3', ai: ai7, overloaded: 503, model: compatible(createOpenAICompatible) },
  { name: 'ai 7 with anthropic 4', ai: ai7, overloaded: 529, model: anthropic(createAnthropic) },
  {
    name: 'ai 6 with openai-compatible 2',
    ai: ai6 as unknown as Ai,
    overloaded: 503,
    model: compatible(createOpenAICompatible2 as unknown as typeof createOpenAICompatible),
  },
  {
    name: 'ai 6 with anthropic 3',
    ai: ai6 as unknown as Ai,
    overloaded: 529,
    model: anthropic(createAnthropic3 as unknown as typeof createAnthropic),
  },
]

function compatible(create: typeof createOpenAICompatible): Sdk['model'] {
  return (stack, id = 'echo-1', apiKey = TEST_KEY) => {
    const options = { includeUsage: true, supportsStructuredOutputs: true }
    return create({ name: 'sluice', baseURL: `${stack.url}/v1`, apiKey, ...options })(id)
  }
}

function anthropic(create: typeof createAnthropic): Sdk['model'] {
  return (stack, id = 'echo-1', apiKey = TEST_KEY) => create({ baseURL: `${stack.url}/v1`, apiKey })(id)
}

const Forecast = z.object({ city: z.string(), days: z.number().int() })

/** The SDK wraps the errors of all tries in one error. Returns the error of the last try. */
function causeOf(ai: Ai, error: unknown): Record<string, unknown> {
  const last = ai.RetryError.isInstance(error) ? error.lastError : error
  expect(ai.APICallError.isInstance(last)).toBe(true)
  return last as Record<string, unknown>
}

beforeAll(() => {
  // Switches off the warnings that the SDK logs about unknown model names.
  Object.assign(globalThis, { AI_SDK_LOG_WARNINGS: false })
})
afterAll(() => {
  Reflect.deleteProperty(globalThis, 'AI_SDK_LOG_WARNINGS')
})

describeBothModes('the Vercel AI SDK', inject('kafka'), (stacks) => {
  it('the Vercel AI SDK retries automatically until a slot is free, in every version', async () => {
    const answers = await callWhileFull(stacks.full, SDKS, ({ ai, model }) =>
      ai.generateText({ model: model(stacks.full), prompt: 'at last' }),
    )
    expect(answers.map(({ text }) => text)).toEqual(SDKS.map(() => 'at last'))
  })

  describe.each(SDKS)('the Vercel AI SDK as $name', ({ ai, model, overloaded }) => {
    const ask = (prompt: string, stack = stacks.free) => ({ model: model(stack), prompt, maxRetries: 0 })
    /** Starts a stream. `onError` does nothing, so that the SDK does not log failures, which the tests check themselves. */
    const stream = (prompt: string, more: object = {}) =>
      ai.streamText({ ...ask(prompt), onError: () => {}, ...more } as Parameters<Ai['streamText']>[0])
    const toolsWith = (seen: unknown[]) => ({
      [WEATHER.name]: ai.tool({
        description: WEATHER.description,
        inputSchema: Forecast,
        execute: async (input) => {
          seen.push(input)
          return `it will be sunny in ${input.city}`
        },
      }),
    })

    it('returns a response without streaming, with its usage', async () => {
      const { text, finishReason, usage, response } = await ai.generateText(ask(UNICODE))
      expect({ text, finishReason }).toEqual({ text: UNICODE, finishReason: 'stop' })
      expect(usage.outputTokens).toBeGreaterThan(0)
      expect(usage.inputTokens).toBeGreaterThan(0)
      expect(response.modelId).toBe('echo-1')
      expect(response.headers?.['x-request-id']).toMatch(/^req_/)
    })

    it('streams deltas whose concatenation is the answer, with usage', async () => {
      const { textStream, finishReason, usage } = stream(UNICODE)
      let text = ''
      for await (const delta of textStream) text += delta
      expect(text).toBe(UNICODE)
      expect(await finishReason).toBe('stop')
      expect((await usage).outputTokens).toBeGreaterThan(0)
    })

    it('calls a model whose id contains a slash', async () => {
      const { response } = await ai.generateText({ ...ask('x'), model: model(stacks.free, SLASHED) })
      expect(response.modelId).toBe(SLASHED)
    })

    it('streams the reasoning separately from the answer', async () => {
      const { reasoningText, text } = stream('!echo reasoning="let me see"\nthe answer')
      expect([await reasoningText, await text]).toEqual(['let me see', 'the answer'])
    })

    it('runs a tool and continues with its result, with and without streaming', async () => {
      const seen: unknown[] = []
      const more = { tools: toolsWith(seen), stopWhen: ai.stepCountIs(3) }
      const whole = await ai.generateText({ ...ask('please get_weather'), ...more })
      const streamed = stream('please get_weather', more)
      for (const [text, steps] of [
        [whole.text, whole.steps],
        [await streamed.text, await streamed.steps],
      ] as const) {
        expect(text).toContain('it will be sunny in city')
        expect(steps.map((step) => step.finishReason)).toEqual(['tool-calls', 'stop'])
      }
      expect(seen).toEqual([1, 2].map(() => ({ city: 'city', days: expect.any(Number) })))
    })

    it('forces a tool call, with and without streaming', async () => {
      const toolChoice = { type: 'tool' as const, toolName: WEATHER.name }
      const more = { tools: toolsWith([]), toolChoice }
      const whole = await ai.generateText({ ...ask('hello'), ...more })
      const streamed = stream('hello', more)
      for (const calls of [whole.toolCalls, await streamed.toolCalls])
        expect(calls).toMatchObject([{ toolName: WEATHER.name, input: { city: 'city' } }])
    })

    it('returns structured output that matches its schema, with and without streaming', async () => {
      const output = ai.Output.object({ schema: Forecast })
      const whole = await ai.generateText({ ...ask('a forecast'), output })
      expect(Forecast.parse(whole.output)).toEqual({ city: 'city', days: expect.any(Number) })
      const streamed = stream('a forecast', { output })
      expect(await streamed.output).toEqual(whole.output)
    })

    it('sends an image together with text', async () => {
      const image = Buffer.from('89504e470d0a1a0a', 'hex')
      const content = [
        { type: 'text' as const, text: 'look' },
        { type: 'image' as const, image, mediaType: 'image/png' },
      ]
      const messages = [{ role: 'user' as const, content }]
      const { text } = await ai.generateText({ model: model(stacks.free), messages, maxRetries: 0 })
      expect(text).toContain('look')
    })

    for (const [what, id, key, prompt, expected] of [
      ['a wrong key', 'echo-1', 'sk-wrong-0000000000', 'x', { statusCode: 401, isRetryable: false }],
      ['an unknown model', 'none', TEST_KEY, 'x', { statusCode: 404, isRetryable: false }],
      ['a failure of the upstream', 'echo-1', TEST_KEY, '!echo fail=upstream_refused', { statusCode: 502 }],
    ] as const) {
      it(`throws APICallError for ${what}, with and without streaming`, async () => {
        const options = { ...ask(prompt), model: model(stacks.free, id, key) }
        const error = causeOf(ai, await failureOf(ai.generateText(options)))
        expect(error).toMatchObject(expected)
        expect(error.message).toBeTypeOf('string')
        const errors: unknown[] = []
        const streamed = ai.streamText({ ...options, onError: ({ error }) => void errors.push(error) })
        await streamed.consumeStream()
        expect(errors).toMatchObject([expected])
      })
    }

    it('throws APICallError for an invalid parameter', async () => {
      const error = causeOf(ai, await failureOf(ai.generateText({ ...ask('x'), topP: 5 })))
      expect(error).toMatchObject({ statusCode: 400, message: expect.stringContaining('top_p') })
    })

    it('throws a retryable APICallError if the rate limit is exceeded', async () => {
      await useUp(stacks.limited)
      const error = causeOf(ai, await failureOf(ai.generateText(ask('x', stacks.limited))))
      expect(error).toMatchObject({ statusCode: 429, isRetryable: true })
    })

    it('throws a retryable APICallError if the service is full', async () => {
      await using _occupants = await occupy(stacks.full)
      const error = causeOf(ai, await failureOf(ai.generateText(ask('x', stacks.full))))
      expect(error).toMatchObject({ statusCode: overloaded, isRetryable: true })
    })

    it('does not retry a response with the status 400', async () => {
      const refusals = await countAnswers(stacks.free, 400)
      await failureOf(ai.generateText({ ...ask('x'), topP: 5, maxRetries: 2 }))
      await expect.poll(refusals, { timeout: 10_000 }).toBe(1)
    })

    it('ends a failed stream with an error part', async () => {
      const parts: { type: string }[] = []
      const { fullStream } = stream('!echo fail=upstream_error after=2\none two three four')
      let text = ''
      for await (const part of fullStream) {
        parts.push(part)
        if (part.type === 'text-delta') text += part.text
      }
      expect(text).toBe('one two')
      expect(parts).toContainEqual(expect.objectContaining({ type: 'error' }))
    })

    it('cancels the upstream work if a signal aborts a call without streaming', async () => {
      const leave = new AbortController()
      const failure = failureOf(ai.generateText({ ...ask(ENDLESS), abortSignal: leave.signal }))
      await untilRunning(stacks.free, 1)
      leave.abort()
      await failure
      await untilRunning(stacks.free, 0)
    })

    it('cancels the upstream work if a signal aborts a call with streaming', async () => {
      const leave = new AbortController()
      const { fullStream } = stream(ENDLESS, { abortSignal: leave.signal })
      const types = new Set<string>()
      for await (const { type } of fullStream) {
        types.add(type)
        if (type !== 'text-delta' || leave.signal.aborted) continue
        await untilRunning(stacks.free, 1)
        leave.abort()
      }
      expect(types).toContain('abort')
      await untilRunning(stacks.free, 0)
    })

    it('makes concurrent calls, and each returns its own response', async () => {
      const words = Array.from({ length: 16 }, (_, i) => `word ${i}`)
      const answers = await Promise.all(
        words.map(async (word, i) => (i % 2 === 0 ? (await ai.generateText(ask(word))).text : await stream(word).text)),
      )
      expect(answers).toEqual(words)
    })
  })
})
