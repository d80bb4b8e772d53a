import fc from 'fast-check'
import * as cl100k from 'gpt-tokenizer/encoding/cl100k_base'
import * as o200k from 'gpt-tokenizer/encoding/o200k_base'
import { describe, expect, it } from 'vitest'
import { loadTokens } from '#shared/engines/batching/tokens.ts'

const ENCODINGS = [
  ['cl100k_base', cl100k],
  ['o200k_base', o200k],
] as const

const Words = fc.constantFrom(
  'hello',
  "don't",
  '日本語、',
  '東京都。',
  '12345',
  '  ',
  '\n\n ',
  'émigré',
  '👩‍👩‍👧',
  'f(x)',
  '<|endoftext|>',
  'A/B//\n',
)
const Text = fc.array(Words, { minLength: 1, maxLength: 3_000 }).map((words) => words.join(' '))
const PLAIN = { disallowedSpecial: new Set<string>() }

describe.each(ENCODINGS)('the token counter for %s', (name, reference) => {
  it('returns the count of the reference tokenizer, although it splits the text into pieces', async () => {
    const tokens = await loadTokens(name)
    await fc.assert(
      fc.asyncProperty(Text, async (text) => {
        expect(await tokens.count(text, Number.POSITIVE_INFINITY)).toBe(reference.countTokens(text, PLAIN))
      }),
      { numRuns: 30 },
    )
  })

  it('decodes tokens to the original text', async () => {
    const tokens = await loadTokens(name)
    await fc.assert(
      fc.asyncProperty(fc.string({ unit: 'grapheme' }), async (text) => {
        expect(tokens.decode(reference.encode(text, PLAIN), String)).toBe(text)
      }),
    )
  })

  it('counts 60,000 characters without a space in bounded time, with an error below 1 %', async () => {
    const tokens = await loadTokens(name)
    const text = '日本語'.repeat(20_000)
    const perWord = reference.countTokens('日本語'.repeat(100), PLAIN) / 100
    const count = await tokens.count(text, Number.POSITIVE_INFINITY)
    expect(Math.abs(count - perWord * 20_000)).toBeLessThan(count * 0.01)
  })

  it('yields to the event loop while it counts 400,000 tokens', async () => {
    const tokens = await loadTokens(name)
    let turns = 0
    const timer = setInterval(() => turns++, 1)
    await tokens.count('some words to count '.repeat(100_000), Number.POSITIVE_INFINITY)
    clearInterval(timer)
    expect(turns).toBeGreaterThan(3)
  })

  it('refuses a token id outside its vocabulary with its index, and decodes invalid bytes as U+FFFD', async () => {
    const tokens = await loadTokens(name)
    expect(() => tokens.decode([1, 999_999], (place) => `input[2][${place}]`)).toThrow(/input\[2\]\[1\]/)
    expect(tokens.decode([255], String)).toBe('\uFFFD')
  })
})
