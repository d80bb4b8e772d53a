import { englishDataset } from 'obscenity'
import { describe, expect, it } from 'vitest'
import { openWordList } from '#shared/content-filter/word-list.ts'

const list = openWordList()
const signal = new AbortController().signal
const judge = async (text: string) => {
  const [result] = await list.moderate([text], { signal })
  return Object.entries(result?.categories ?? {}).flatMap(([name, isFound]) => (isFound ? [name] : []))
}

describe('the moderation word list', () => {
  it.each([
    ['you b1tch', ['harassment']],
    ['kike', ['hate']],
    ['P0RN', ['sexual']],
    ['a bastard with a dildo', ['harassment', 'sexual']],
    ['we assess the class of Scunthorpe', []],
    ['', []],
  ])('returns the categories of the words in %j', async (text, categories) => {
    expect((await judge(text)).sort()).toEqual(categories)
  })

  it('finds a listed word at any position of a long text, and none in 600 harmless phrases', async () => {
    const rest = 'classic assessment, '.repeat(600)
    expect(await judge(rest)).toEqual([])
    for (const at of [0, 1_900, 2_040, 2_048, 2_060, 6_000, rest.length]) {
      const place = rest.lastIndexOf(' ', at) + 1
      expect(
        await judge(`${rest.slice(0, place)}fuck ${rest.slice(place)}`),
        `categories for a word at position ${at}`,
      ).toEqual(['harassment'])
    }
  })

  it('stops its search when the signal of the search is aborted', async () => {
    const text = 'word '.repeat(200_000)
    await expect(list.moderate([text], { signal: AbortSignal.abort(new Error('disconnected')) })).rejects.toThrow(
      'disconnected',
    )
  })

  it('has the category harassment or hate for each word of the dataset', async () => {
    const { blacklistedTerms } = englishDataset.build()
    const match = (termId: number) => ({ termId, matchLength: 0, startIndex: 0, endIndex: 0 })
    const known = new Set(
      blacklistedTerms.map(
        ({ id }) => englishDataset.getPayloadWithPhraseMetadata(match(id)).phraseMetadata?.originalWord,
      ),
    )
    const found = await Promise.all([...known].map((word) => judge(word ?? '')))
    const harassment = [...known].filter((_, at) => found[at]?.includes('harassment'))
    const hate = [...known].filter((_, at) => found[at]?.includes('hate'))
    expect([harassment.length, hate.length]).toEqual([16, 15])
  })
})
