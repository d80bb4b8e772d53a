import fc from 'fast-check'
import { englishDataset, englishRecommendedTransformers, RegExpMatcher } from 'obscenity'
import { describe, expect, it } from 'vitest'
import { openProfanityFilter } from '#shared/content-filter/profanity.ts'
import { startStack } from '../../support/stack.ts'

const matcher = new RegExpMatcher({ ...englishDataset.build(), ...englishRecommendedTransformers })
const filter = openProfanityFilter()

describe('the profanity filter', () => {
  it.each(['what the fuck', 'you sh1t', 'FuuuuCK', 'a$$hole', 'ｆｕｃｋ'])('classifies %s as profanity', (text) => {
    expect(filter.classify(text).detected).toEqual(['profanity'])
  })

  it.each(['', 'Scunthorpe', 'we assess the class', 'The capital of France is Paris.'])(
    'classifies %j as harmless',
    (text) => {
      expect(filter.classify(text).detected).toEqual([])
    },
  )

  it('agrees with the regular expressions of the obscenity library for 5,000 random texts', () => {
    const letters = fc.constantFrom(...'fuckshitasdickniger $1@0!.-ＦＵ🅰')
    const words = fc.constantFrom('fuck', 'shit', 'ass', 'cock', 'dick', 'tit', 'class', 'hello', 'night')
    const text = fc.array(fc.oneof(letters, words), { maxLength: 12 }).map((parts) => parts.join(''))
    const same = (value: string) => {
      expect(filter.classify(value).detected.length > 0).toBe(matcher.hasMatch(value))
    }
    fc.assert(fc.property(text, same), { numRuns: 5_000 })
  })
})

it('the content filter reports profanity in a whole and a streamed response, without removing text', async () => {
  await using stack = await startStack()
  for (const stream of [false, true]) {
    const body = { model: 'echo-1', stream, messages: [{ role: 'user', content: 'oh shit here we go' }] }
    const text = await (await stack.post('/v1/chat/completions', body)).text()
    expect(text).toContain('"profanity":{"filtered":false,"detected":true}')
    expect(text).toContain('"hate":{"filtered":false}')
  }
})
