import fc from 'fast-check'
import * as cl100k from 'gpt-tokenizer/encoding/cl100k_base'
import * as o200k from 'gpt-tokenizer/encoding/o200k_base'
import { describe, expect, it } from 'vitest'
import { countTokens, decodeTokens } from '#shared/engines/tokenizer/tokenizer.ts'

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
const SIGNAL = new AbortController().signal
const PLAIN = { disallowedSpecial: new Set<string>() }

describe.each(ENCODINGS)('the token counter for %s', (name, reference) => {
  it('returns the same count as the reference tokenizer', async () => {
    await fc.assert(
      fc.asyncProperty(Text, async (text) => {
        expect(await countTokens(name, text, SIGNAL)).toBe(reference.countTokens(text, PLAIN))
      }),
      { numRuns: 30 },
    )
  })

  it('decodes tokens to the original text', async () => {
    await fc.assert(
      fc.asyncProperty(fc.string({ unit: 'grapheme' }), async (text) => {
        expect(await decodeTokens(name, reference.encode(text, PLAIN), SIGNAL, String)).toBe(text)
      }),
    )
  })

  it('counts 60,000 characters without a space in bounded time, with an error below 1 %', async () => {
    const text = '日本語'.repeat(20_000)
    const perWord = reference.countTokens('日本語'.repeat(100), PLAIN) / 100
    const count = await countTokens(name, text, SIGNAL)
    expect(Math.abs(count - perWord * 20_000)).toBeLessThan(count * 0.01)
  })

  it('stops counting soon after the maximum that the caller sets, and stops if the caller disconnects', async () => {
    const text = 'some words to count '.repeat(100_000)
    expect(await countTokens(name, text, SIGNAL, 10)).toBeLessThan(20_000)
    const abort = new AbortController()
    const counting = countTokens(name, text, abort.signal)
    abort.abort(new Error('the caller left'))
    await expect(counting).rejects.toThrow('the caller left')
  })

  it('yields to the event loop while it counts 400,000 tokens', async () => {
    let turns = 0
    const timer = setInterval(() => turns++, 1)
    await countTokens(name, 'some words to count '.repeat(100_000), SIGNAL)
    clearInterval(timer)
    expect(turns).toBeGreaterThan(3)
  })

  it('refuses a token id outside the vocabulary, and names the index of the token id', async () => {
    const decoding = decodeTokens(name, [1, 999_999], SIGNAL, (place) => `input[2][${place}]`)
    await expect(decoding).rejects.toThrow(/input\[2\]\[1\]/)
    expect(await decodeTokens(name, [255], SIGNAL, String)).toBe('\uFFFD')
  })
})
