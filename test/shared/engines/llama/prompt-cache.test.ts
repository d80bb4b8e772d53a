import { homedir } from 'node:os'
import { join } from 'node:path'
import type { LlamaContextSequence, Token } from 'node-llama-cpp'
import { describe, expect, test } from 'vitest'
import type { GenerateEvent } from '#schemas/kinds/generate.ts'
import type { ChatEngine } from '#shared/engines/engine.ts'
import { closeRuntime, openRuntime, SequencePool } from '#shared/engines/llama/runtime.ts'
import { readPrompt } from '#shared/engines/llama/sample.ts'
import { prepareWeights } from '#shared/prepare/weights.ts'
import { ask, llamaEngine, options, textOf } from '../../../support/engine-calls.ts'

const WEIGHTS = 'smollm2-135m-instruct'
const weightsDir = join(process.env.XDG_CACHE_HOME || join(homedir(), '.cache'), 'sluice', 'models')
// If the weights of the model are missing, then these tests are skipped. The reason is printed by test/shared/engines/chat-engine.test.ts, and that
// test fails in CI.
const file = await prepareWeights(WEIGHTS, weightsDir).catch(() => undefined)

const FACTS = Array.from({ length: 5 }, (_, i) => `Parcel ${i} weighs ${(i * 7) % 31} kilograms.`).join(' ')

describe.skipIf(!file)('the prompt cache of the llama engine', { timeout: 90_000 }, () => {
  test('evaluates only the new tokens of the next message, and does not change the text', async () => {
    await using engine = openLlama()
    const turns = [say(`${FACTS} What is the capital of France?`)]
    const first = await call(engine, 'a', { turns })
    expect(first.usage.cached_tokens).toBe(0)
    turns.push(say(first.text, 'assistant'), say('And of Italy?'))
    const second = await call(engine, 'a', { turns })
    expect(second.usage.cached_tokens).toBeGreaterThanOrEqual(first.usage.input_tokens)
    expect(second.usage.input_tokens - (second.usage.cached_tokens ?? 0)).toBeLessThan(20)
    const uncached = await call(engine, undefined, { turns })
    expect(uncached.usage.cached_tokens).toBe(0)
    expect(second.text).toBe(uncached.text)
  })

  test('reports no cached tokens for a prompt of another project', async () => {
    await using engine = openLlama()
    const request = { turns: [say(FACTS)], max_tokens: 4 }
    await call(engine, 'a', request)
    const other = await call(engine, 'b', request)
    expect(other.usage.cached_tokens).toBe(0)
    const own = await call(engine, 'a', request)
    expect(own.usage.cached_tokens).toBe(own.usage.input_tokens - 1)
    const third = await call(engine, 'c', request)
    expect([third.usage.cached_tokens, third.text]).toEqual([0, own.text])
  })

  test('does not change the results with choices, tools, schemas and log probabilities', async () => {
    await using engine = openLlama()
    const tools = [
      {
        name: 'weigh',
        parameters: { type: 'object', properties: { parcel: { type: 'integer' } }, required: ['parcel'] },
      },
    ]
    const schema = { type: 'object', properties: { city: { enum: ['Paris', 'Rome'] } }, required: ['city'] }
    const kinds: object[] = [
      { n: 2, temperature: 1, seed: 3 },
      { tools, tool_choice: { type: 'required' } },
      { response_format: { type: 'json_schema', schema } },
      { logprobs: true, top_logprobs: 2 },
      { stop: ['e'] },
      { completion: { echo: false } },
    ]
    for (const fields of kinds) {
      const request = { turns: [say('Which parcel is the heaviest? Weigh parcel 3.')], ...fields }
      const cold = await call(engine, undefined, request)
      await call(engine, 'a', request)
      const warm = await call(engine, 'a', request)
      expect(warm.usage.cached_tokens, `cached tokens with ${JSON.stringify(fields)}`).toBe(warm.usage.input_tokens - 1)
      const { usage: _, ...answer } = warm
      expect(answer).toEqual({ text: cold.text, args: cold.args, finishes: cold.finishes })
    }
  })

  test('reuses the evaluated tokens of a cancelled call', async () => {
    await using engine = openLlama()
    const request = { turns: [say(`${FACTS} Write a long story.`)] }
    const stop = new AbortController()
    const events = engine.generate(ask(request), { ...options(stop.signal), tenant: 'a' })[Symbol.asyncIterator]()
    for (let i = 0; i < 3; i++) await events.next()
    stop.abort(new Error('cancelled'))
    await expect(Array.fromAsync({ [Symbol.asyncIterator]: () => events })).rejects.toThrow('cancelled')
    const cold = await call(engine, undefined, request)
    const warm = await call(engine, 'a', request)
    expect(warm.usage.cached_tokens).toBe(warm.usage.input_tokens - 1)
    expect(warm.text).toBe(cold.text)
  })

  test('keeps two chats of a project in separate sequences if two sequences are free', async () => {
    await using engine = openLlama()
    const chats = [say(`One. ${FACTS}`), say(`Two. ${FACTS}`)]
    for (const turn of chats) await call(engine, 'a', { turns: [turn], max_tokens: 2 })
    for (const turn of chats) {
      const { usage } = await call(engine, 'a', { turns: [turn], max_tokens: 2 })
      expect(usage.cached_tokens).toBe(usage.input_tokens - 1)
    }
  })

  test('does not change the result for a prompt that fills the context window', async () => {
    await using engine = openLlama({ context_tokens: 256 })
    const turns = [say('word '.repeat(200))]
    const schema = { type: 'array', items: { type: 'integer' }, minItems: 100 }
    const request = { turns, response_format: { type: 'json_schema', schema }, max_tokens: 256 }
    const first = await call(engine, 'a', request)
    const second = await call(engine, 'a', request)
    expect(first.finishes).toMatchObject([{ reason: 'length', context_full: true }])
    expect({ ...second, usage: undefined }).toEqual({ ...first, usage: undefined })
  })

  test('reports as many evaluated tokens as the token meter of the library', async () => {
    const runtime = await openRuntime(file ?? '', { contextTokens: 512, parallel: 2 })
    const prompt = runtime.model.tokenize(FACTS) as Token[]
    const signal = new AbortController().signal
    const evaluatedBy = async (project: string) => {
      const owned = await runtime.sequences.take(project, prompt)
      const before = owned.sequence.tokenMeter.usedInputTokens
      await readPrompt(owned.sequence, prompt, signal)
      runtime.sequences.put(owned)
      return owned.sequence.tokenMeter.usedInputTokens - before
    }
    expect(await evaluatedBy('a')).toBe(prompt.length - 1)
    expect(await evaluatedBy('b')).toBe(prompt.length - 1)
    expect(await evaluatedBy('a')).toBe(0)
    expect(await evaluatedBy('c')).toBe(prompt.length - 1)
    await closeRuntime(runtime)
  })
})

describe('a sequence pool', () => {
  test('prefers the sequence of the project with the longest common prefix, then an unused sequence', async () => {
    const [one, two, three] = [sequence(), sequence(), sequence()]
    const pool = new SequencePool([one, two, three])
    const use = async (project: string | undefined, tokens: number[]) => {
      const owned = await pool.take(project, tokens as Token[])
      const had = [...(owned.sequence as unknown as Fake).tokens]
      ;(owned.sequence as unknown as Fake).tokens = tokens
      pool.put(owned)
      return [[one, two, three].indexOf(owned.sequence), had]
    }
    expect(await use('a', [1, 2, 3, 4])).toEqual([0, []])
    expect(await use('a', [9, 9, 9, 9])).toEqual([1, []])
    expect(await use('a', [1, 2, 3, 4, 5])).toEqual([0, [1, 2, 3, 4]])
    expect(await use('b', [1, 2, 3, 4])).toEqual([2, []])
    expect(await use('c', [9, 9, 9, 9])).toEqual([1, []])
    expect(await use(undefined, [1, 2, 3, 4])).toEqual([0, []])
    expect(await use(undefined, [1, 2, 3, 4])).toEqual([0, []])
  })

  test('clears a sequence whose call failed', async () => {
    const one = sequence()
    const pool = new SequencePool([one])
    const owned = await pool.take('a', [1, 2] as Token[])
    ;(one as unknown as Fake).tokens = [1, 2]
    owned.owner = undefined
    pool.put(owned)
    expect((await pool.take('a', [1, 2] as Token[])).sequence.nextTokenIndex).toBe(0)
  })
})

/** A replacement of a sequence of llama.cpp, with only the parts that the pool uses. */
interface Fake {
  tokens: number[]
}

function sequence(): LlamaContextSequence {
  const fake = {
    tokens: [] as number[],
    get nextTokenIndex() {
      return this.tokens.length
    },
    compareContextTokens(tokens: number[]) {
      const different = this.tokens.findIndex((token, i) => token !== tokens[i])
      return { firstDifferentIndex: different < 0 ? this.tokens.length : different }
    },
    async clearHistory() {
      this.tokens = []
    },
  }
  return fake as unknown as LlamaContextSequence
}

async function call(engine: ChatEngine, tenant: string | undefined, fields: object) {
  const request = ask({ temperature: 0, max_tokens: 12, ...fields })
  const events: GenerateEvent[] = await Array.fromAsync(engine.generate(request, { ...options(), tenant }))
  const last = events.at(-1)
  if (last?.type !== 'usage') throw new Error('no usage')
  const finishes = events.filter((event) => event.type === 'finish')
  return { text: textOf(events), args: textOf(events, 'tool_arguments'), finishes, usage: last.usage }
}

function say(text: string, role: 'user' | 'assistant' = 'user') {
  return { role, parts: [{ type: 'text', text }] }
}

function openLlama(engine: object = {}): ChatEngine & AsyncDisposable {
  return llamaEngine(WEIGHTS, weightsDir, { context_tokens: 512, ...engine })
}
