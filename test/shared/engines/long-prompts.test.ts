/* Tests prompts that are far longer than the context of a model. Such prompts are counted in pieces, or refused without being counted. */
import { existsSync, readFileSync } from 'node:fs'
import { homedir } from 'node:os'
import { join } from 'node:path'
import fc from 'fast-check'
import { afterAll, beforeAll, describe, expect, it } from 'vitest'
import { ModelConfig } from '#schemas/models.ts'
import { countPrompt, splitTokens } from '#shared/engines/echo/echo.ts'
import { openLlamaEngine } from '#shared/engines/llama/llama.ts'
import {
  closeRuntime,
  type LlamaRuntime,
  leastTokens,
  openRuntime,
  tokenizePrompt,
} from '#shared/engines/llama/runtime.ts'
import { cutAfter } from '#shared/engines/token-cuts.ts'
import { runToEnd } from '#shared/lib/yielding.ts'
import { ask, failure, options } from '../../support/engine-calls.ts'

const weights = join(
  process.env.XDG_CACHE_HOME || join(homedir(), '.cache'),
  'sluice/models/smollm2-135m-instruct.gguf',
)
const asking = (text: string, model = 'llama-1') =>
  ask({ model, turns: [{ role: 'user', parts: [{ type: 'text', text }] }] })
const source = (path: string) => readFileSync(new URL(path, import.meta.url), 'utf8')

describe('the splitting of long texts', () => {
  it('yields non-empty pieces that join to the text, and never splits a character', () => {
    const text = fc.string({ unit: fc.constantFrom('a', ' ', '\n', '。', '日', '😀'), maxLength: 200 })
    fc.assert(
      fc.property(text, fc.integer({ min: 2, max: 9 }), fc.integer({ min: 9, max: 20 }), (whole, chars, most) => {
        const pieces: string[] = []
        for (let at = 0; at < whole.length; at += pieces.at(-1)?.length ?? 0) {
          pieces.push(whole.slice(at, cutAfter(whole, at, chars, most)))
        }
        expect(pieces.join('')).toBe(whole)
        for (const piece of pieces) expect(piece.isWellFormed() && piece.length > 0).toBe(true)
      }),
    )
  })
})

describe('the echo engine', () => {
  it('counts as many tokens as the echo engine generates for the same text', () => {
    const unit = fc.constantFrom(
      'a',
      'é',
      '_',
      ' ',
      '\n',
      '!',
      '😀',
      '日',
      '\u0301',
      'x'.repeat(9_000),
      ' '.repeat(9_000),
    )
    fc.assert(
      fc.property(fc.string({ unit, maxLength: 30 }), (text) => {
        expect(runToEnd(countPrompt(asking(text)))).toBe([...splitTokens(text)].length)
      }),
    )
  })
})

describe.skipIf(!existsSync(weights))('the token count of a llama model', { timeout: 120_000 }, () => {
  const config = ModelConfig.parse({ id: 'llama-1', engine: { type: 'llama', file: weights, context_tokens: 512 } })
  const engine = openLlamaEngine(config, { weightsDir: '/nowhere' })
  let runtime: LlamaRuntime
  beforeAll(async () => {
    runtime = await openRuntime(weights, { contextTokens: 512, parallel: 1 })
  }, 120_000)
  afterAll(async () => {
    await engine.close()
    if (runtime) await closeRuntime(runtime)
  })

  it.each([
    ['Markdown', source('../../../docs/guides/jobs.md')],
    ['code', source('../../../shared/jobs/attached/attached.ts')],
    ['JSON', source('../../../package-lock.json').slice(0, 60_000)],
    ['Japanese', '日本語の文章。'.repeat(3_000)],
    ['whitespace of all kinds', 'a  b\n\n\tc '.repeat(3_000)],
    ['one word', 'a'.repeat(8_000)],
    ['emoji', 'so 😀😀 '.repeat(3_000)],
    ['an empty text', ''],
  ])('is equal for a whole prompt and for the prompt in pieces, with %s', async (_, text) => {
    const messages = [
      { role: 'system', content: 'x' },
      { role: 'user', content: text },
      { role: 'assistant', content: `ok${text}` },
      { role: 'user', content: `${text}${text}` },
    ] as const
    const prompt = await runtime.format.write({ messages, tools: [], prefill: '' }, new AbortController().signal)
    const { model } = runtime
    const whole = prompt.flatMap((piece) => (typeof piece === 'string' ? model.tokenize(piece) : [piece]))
    expect(runToEnd(tokenizePrompt(model, prompt))).toEqual(whole)
    // The estimated minimum of tokens must not exceed the exact count. Otherwise the engine would refuse prompts that fit.
    expect(leastTokens(prompt, runtime.tokenBytesMax)).toBeLessThanOrEqual(whole.length)
  })

  it('is only estimated for a prompt that is clearly too large for the context window', async () => {
    const refused = await failure(engine, asking('hello '.repeat(3_000_000)))
    expect(refused).toMatchObject({
      code: 'context_length_exceeded',
      param: 'messages',
      message: expect.stringMatching(/maximum context length is 512 tokens.* resulted in over \d{5,} tokens/),
    })
  })

  it('is exact in the error message for a prompt slightly above the context window', async () => {
    const refused = await failure(engine, asking('hello '.repeat(600)))
    expect(refused).toMatchObject({
      code: 'context_length_exceeded',
      message: expect.stringMatching(/resulted in 6\d\d tokens/),
    })
  })

  it('is exact for a prompt of 50,000 words', async () => {
    const request = (words: number) => asking('hello '.repeat(words))
    const marks = ((await engine.countTokens?.(request(10), options())) ?? 0) - 10
    expect(await engine.countTokens?.(request(50_000), options())).toBe(50_000 + marks)
    const counting = engine.countTokens?.(request(3_000_000), options(AbortSignal.timeout(50)))
    await expect(counting).rejects.toThrow('aborted due to timeout')
  })
})
