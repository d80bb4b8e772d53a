import { homedir } from 'node:os'
import { join } from 'node:path'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { z } from 'zod'
import type { GenerateEvent } from '#schemas/kinds/generate.ts'
import { ModelConfig } from '#schemas/models.ts'
import { openEchoEngine } from '#shared/engines/echo/echo.ts'
import type { ChatEngine } from '#shared/engines/engine.ts'
import { openLlamaEngine } from '#shared/engines/llama/llama.ts'
import { prepareWeights } from '#shared/prepare/weights.ts'
import { ask, collect, failure, options, textOf } from '../../support/engine-calls.ts'

/** An engine under test, with a context window of 512 tokens. */
interface Adapter {
  readonly name: string
  open(): ChatEngine
  /** Request whose response has hundreds of tokens. */
  readonly long: object
}

const CONTEXT_TOKENS = 512
/** Timeout of a test. On a shared core, a prompt of hundreds of tokens takes ten seconds. */
const TIMEOUT_MS = 90_000
const WEIGHTS = 'smollm2-135m-instruct'
const weightsDir = join(process.env.XDG_CACHE_HOME || join(homedir(), '.cache'), 'sluice', 'models')

const echo: Adapter = {
  name: 'echo',
  open: () => openEchoEngine(modelOf({ type: 'echo' })),
  long: { turns: say('!echo tokens=900 delay_ms=5') },
}
const llama: Adapter = {
  name: 'llama, SmolLM2-135M',
  open: () =>
    openLlamaEngine(modelOf({ type: 'llama', weights: WEIGHTS, context_tokens: CONTEXT_TOKENS }), { weightsDir }),
  long: { turns: say('Write a long story about a river.') },
}

describe.each((await hasWeights()) ? [echo, llama] : [echo])(
  'the chat engine $name',
  { timeout: TIMEOUT_MS },
  ({ open, long }) => {
    let engine: ChatEngine
    beforeAll(() => {
      engine = open()
    })
    afterAll(() => engine.close())

    test('yields start first, usage last, and one finish event per choice', async () => {
      const events = await collect(engine, quick({ n: 2 }))
      expect(events[0]).toMatchObject({ type: 'start', model: 'm1' })
      expect(events.at(-1)).toMatchObject({ type: 'usage' })
      expect(choicesOf(events, 'finish')).toEqual([0, 1])
      expect(events.filter((event) => event.type === 'start' || event.type === 'usage')).toHaveLength(2)
      for (const choice of [0, 1]) {
        const own = events.filter((event) => 'choice' in event && event.choice === choice)
        expect(own.findIndex((event) => event.type === 'finish')).toBe(own.length - 1)
      }
    })

    test('yields equal text for streamed and whole responses', async () => {
      const streamed = await collect(engine, quick({ stream: true }))
      const whole = await collect(engine, quick({ stream: false }))
      expect(textOf(streamed)).toBe(textOf(whole))
      expect(streamed.at(-1)).toEqual(whole.at(-1))
      expect(streamed.filter((event) => event.type === 'text').length).toBeGreaterThan(1)
    })

    test('never splits a character between two deltas', async () => {
      const schema = { enum: ['🎉👩‍🚀 日本語 naïve café 🎉🎉 — Ελλάδα'] }
      const events = await collect(engine, quick({ response_format: { type: 'json_schema', schema }, max_tokens: 100 }))
      expect(JSON.parse(textOf(events))).toBe(schema.enum[0])
      const deltas = events.flatMap((event) => (event.type === 'text' ? [event.text] : []))
      expect(deltas.length).toBeGreaterThan(8)
      for (const delta of deltas) expect([delta.isWellFormed(), delta.includes('\ufffd')]).toEqual([true, false])
    })

    test('counts as many prompt tokens as the usage of a response reports', async () => {
      const request = quick()
      const usage = usageOf(await collect(engine, request))
      expect(await engine.countTokens?.(request, options())).toBe(usage.input_tokens)
      expect(usage.output_tokens).toBeGreaterThan(0)
    })

    test('finishes with reason length after max_tokens tokens', async () => {
      const events = await collect(engine, quick({ max_tokens: 3 }))
      expect(events).toContainEqual({ type: 'finish', choice: 0, reason: 'length' })
      expect(usageOf(events).output_tokens).toBe(3)
    })

    test('returns the text before a stop string, wherever token boundaries split the stop string', async () => {
      const text = textOf(await collect(engine, quick()))
      for (const stop of [text.slice(3, 9), text.slice(-6), text.slice(1, 2)]) {
        const events = await collect(engine, quick({ stop: [stop, 'a string that does not occur'] }))
        expect(textOf(events)).toBe(text.slice(0, text.indexOf(stop)))
        expect(events).toContainEqual({ type: 'finish', choice: 0, reason: 'stop', stop_sequence: stop })
      }
    })

    test('returns text that only begins like a stop string', async () => {
      const whole = await collect(engine, quick())
      const text = textOf(whole)
      const events = await collect(engine, quick({ stop: [`${text.slice(-4)}x`, `${text.slice(0, 4)}\0`] }))
      expect(textOf(events)).toBe(text)
      // Only the finish events are compared, because the text of a small model depends on the processor.
      const endOf = (answer: GenerateEvent[]) => answer.filter(({ type }) => type === 'finish')
      expect(endOf(events)).toEqual(endOf(whole))
      expect(endOf(events)).toHaveLength(1)
    })

    test('continues the text of a prefill, and does not repeat that text', async () => {
      const prefill = 'The capital of France is'
      const turns = [...say(`${prefill} Paris.`), { role: 'assistant', parts: [{ type: 'text', text: prefill }] }]
      expect(textOf(await collect(engine, quick({ turns })))).toMatch(/^ Paris/)
    })

    test('yields a log probability for each token of the text', async () => {
      const events = await collect(engine, quick({ logprobs: true, top_logprobs: 2 }))
      const logprobs = events.flatMap((event) => (event.type === 'text' ? (event.logprobs ?? []) : []))
      expect(logprobs.map((logprob) => logprob.token).join('')).toBe(textOf(events))
      for (const { token, logprob, bytes, top_logprobs } of logprobs) {
        expect(logprob).toBeLessThanOrEqual(0)
        expect(Buffer.from(bytes ?? []).toString()).toBe(token)
        expect(top_logprobs).toHaveLength(2)
      }
    })

    test.each(SCHEMAS())('generates JSON that is valid against a schema with %s', async (_, schema) => {
      const response_format = { type: 'json_schema', name: 'answer', schema }
      const turns = say('Describe a person named Ada, 36 years old, as JSON.')
      const events = await collect(engine, ask({ turns, temperature: 0.7, seed: 5, response_format, max_tokens: 400 }))
      expect(events).toContainEqual({ type: 'finish', choice: 0, reason: 'stop' })
      expect(z.fromJSONSchema(schema).safeParse(JSON.parse(textOf(events)))).toMatchObject({ success: true })
    })

    test('generates a JSON object for response_format json_object', async () => {
      const turns = say('Give the name of the capital of France as JSON.')
      const response_format = { type: 'json_object' }
      const events = await collect(engine, ask({ turns, temperature: 0, response_format, max_tokens: 400 }))
      expect(JSON.parse(textOf(events))).toBeTypeOf('object')
    })

    test.each([
      ['named', { type: 'tool', name: 'send_email' }, 'send_email'],
      ['required', { type: 'required' }, 'get_weather'],
      ['auto', { type: 'auto' }, 'get_weather'],
    ])('calls a tool if tool_choice is %s', async (_, tool_choice, name) => {
      const turns = say('Use get_weather for the city Paris.')
      const events = await collect(engine, ask({ turns, tools: TOOLS, tool_choice, temperature: 0 }))
      const tool = TOOLS.find((one) => one.name === name)
      expect(events).toContainEqual(expect.objectContaining({ type: 'tool_call', choice: 0, call: 0, name }))
      expect(events).toContainEqual({ type: 'finish', choice: 0, reason: 'tool_calls' })
      const args = JSON.parse(textOf(events, 'tool_arguments'))
      expect(z.fromJSONSchema(tool?.parameters ?? {}).safeParse(args)).toMatchObject({ success: true })
      expect(textOf(events)).toBe('')
    })

    test.each([
      ['auto and no tool fits the prompt', { type: 'auto' }],
      ['none', { type: 'none' }],
    ])('answers with text if tool_choice is %s', async (_, tool_choice) => {
      const request = quick({ tools: TOOLS, tool_choice })
      const events = await collect(engine, request)
      expect(events.some((event) => event.type === 'tool_call')).toBe(false)
      expect(textOf(events)).toContain('Paris')
    })

    test('answers with text after a tool result', async () => {
      const call = { type: 'tool_call', id: 'call_1', name: 'get_weather', arguments: '{"city":"Paris"}' }
      const turns = [
        ...say('Use get_weather for the city Paris.'),
        { role: 'assistant', parts: [call] },
        { role: 'tool', call_id: 'call_1', parts: [{ type: 'text', text: '22 degrees and sunny' }] },
      ]
      expect(textOf(await collect(engine, quick({ turns, tools: TOOLS })))).toContain('sunny')
    })

    test('refuses a prompt larger than the context window, with both token counts in the message', async () => {
      const error = await failure(engine, quick({ turns: say('word '.repeat(2_000)) }))
      expect(error).toMatchObject({ code: 'context_length_exceeded', param: 'messages' })
      expect(error.message).toMatch(/\b51[12] tokens.*\b20\d\d tokens/)
    })

    test('finishes with context_full if the context window is full before max_tokens', async () => {
      const schema = { type: 'array', items: { type: 'integer' }, minItems: 200 }
      const turns = say('word '.repeat(400))
      const events = await collect(engine, ask({ turns, response_format: { type: 'json_schema', schema } }))
      expect(events).toContainEqual({ type: 'finish', choice: 0, reason: 'length', context_full: true })
      const usage = usageOf(events)
      expect(usage.input_tokens + usage.output_tokens).toBeGreaterThan(CONTEXT_TOKENS - 2)
    })

    test('ends a call when the signal of the call is aborted, and runs the next call', async () => {
      const stop = new AbortController()
      const events = engine.generate(ask(long), options(stop.signal))[Symbol.asyncIterator]()
      for (let i = 0; i < 4; i++) await events.next()
      stop.abort(new Error('cancelled'))
      await expect(drain(events)).rejects.toThrow('cancelled')
      expect(textOf(await collect(engine, quick()))).toContain('Paris')
    })

    test('does not start a call whose signal is already aborted', async () => {
      const reason = new Error('too late')
      expect(await failure(engine, quick(), AbortSignal.abort(reason))).toBe(reason)
    })

    test('runs the next call after five callers have abandoned their responses', async () => {
      for (let i = 0; i < 5; i++) {
        for await (const event of engine.generate(ask(long), options())) if (event.type === 'text') break
      }
      expect(textOf(await collect(engine, quick()))).toContain('Paris')
    })

    test('returns equal text for three concurrent calls as for one call alone', async () => {
      const alone = textOf(await collect(engine, quick()))
      const answers = await Promise.all([1, 2, 3].map(async () => textOf(await collect(engine, quick()))))
      expect(answers).toEqual([alone, alone, alone])
    })

    test('returns equal text for equal seeds', async () => {
      const request = quick({ temperature: 1, seed: 7, turns: say('Write one sentence about the sea.') })
      expect(textOf(await collect(engine, request))).toBe(textOf(await collect(engine, request)))
    })
  },
)

const TOOLS: { name: string; description: string; parameters: Record<string, unknown> }[] = [
  {
    name: 'get_weather',
    description: 'Get the current weather of a city',
    parameters: { type: 'object', properties: { city: { type: 'string' } }, required: ['city'] },
  },
  {
    name: 'send_email',
    description: 'Send an email',
    parameters: {
      type: 'object',
      properties: { to: { enum: ['ann@example.com', 'bob@example.com'] }, urgent: { type: 'boolean' } },
      required: ['to', 'urgent'],
    },
  },
]

/**
 * Schemas of different types, each with a description. SCHEMAS is a function, because describe.each runs before constants that are defined below
 * it.
 */
function SCHEMAS(): [string, Record<string, unknown>][] {
  const name = { type: 'string', minLength: 2, maxLength: 12 }
  const object = (properties: object, more: object = {}) => ({
    type: 'object',
    properties,
    required: Object.keys(properties),
    additionalProperties: false,
    ...more,
  })
  return [
    [
      'bounds and optional members',
      object({ name, age: { type: 'integer', minimum: 7, maximum: 120 }, nick: name }, { required: ['age'] }),
    ],
    [
      'enum, const and null',
      object({
        mood: { enum: ['happy', 'sad "quoted"', 3, null] },
        kind: { const: 'person' },
        boss: { type: ['string', 'null'], maxLength: 20 },
      }),
    ],
    [
      'arrays',
      object({
        scores: { type: 'array', items: { type: 'number', minimum: 0, maximum: 1 }, minItems: 2, maxItems: 3 },
      }),
    ],
    [
      'anyOf and nesting',
      object({
        contact: { anyOf: [object({ email: { const: 'a@b.c' } }), { type: 'null' }] },
        home: object({ city: name }),
      }),
    ],
    [
      'references with recursion',
      object(
        { tree: { $ref: '#/$defs/node' } },
        {
          $defs: {
            node: object({ name, child: { anyOf: [{ $ref: '#/$defs/leaf' }, { type: 'null' }] } }),
            leaf: object({ leaf: { type: 'boolean' } }),
          },
        },
      ),
    ],
    ['an enum at the top', { enum: ['yes', 'no'] }],
  ]
}

function modelOf(engine: object): ModelConfig {
  return ModelConfig.parse({ id: 'm1', engine, limits: { context_tokens: CONTEXT_TOKENS } })
}

/** A request with a short question that has one likely answer. */
function quick(fields: object = {}) {
  return ask({
    turns: say('What is the capital of France? It is Paris, is it not?'),
    temperature: 0,
    max_tokens: 40,
    ...fields,
  })
}

function say(text: string) {
  return [{ role: 'user', parts: [{ type: 'text', text }] }]
}

function usageOf(events: readonly GenerateEvent[]) {
  const event = events.find((one) => one.type === 'usage')
  if (event?.type !== 'usage') throw new Error('no usage')
  return event.usage
}

function choicesOf(events: readonly GenerateEvent[], type: 'finish') {
  return events.flatMap((event) => (event.type === type ? [event.choice] : []))
}

async function drain(events: AsyncIterator<GenerateEvent>): Promise<void> {
  while (!(await events.next()).done);
}

/** Downloads the weights once per machine. Without the weights, the tests of the embedded model are skipped, except in CI. */
async function hasWeights(): Promise<boolean> {
  try {
    await prepareWeights(WEIGHTS, weightsDir)
    return true
  } catch (error) {
    if (process.env.CI === 'true') throw error
    process.stderr.write(`skipped, no weights of ${WEIGHTS}: ${(error as Error).message}\n`)
    return false
  }
}
