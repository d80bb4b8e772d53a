import fc from 'fast-check'
import { describe, expect, test } from 'vitest'
import type { TranscriptSegment, Word } from '#schemas/kinds/transcription.ts'
import { SpeakerLabels } from '#services/transcription/speakers.ts'
import type { Turn } from '#shared/engines/engine.ts'
import { NO_FIGURES } from '#shared/engines/openai/transcript/decode.ts'

/** Returns a segment that begins at `start`. Each of its words takes one second. */
function say(text: string, start = 0): TranscriptSegment {
  const words = text.split(' ').map((word, at): Word => ({ word, start: start + at, end: start + at + 1 }))
  return { ...NO_FIGURES, start, end: start + words.length, text: ` ${text}`, words }
}

function turn(speaker: string, start: number, end: number): Turn {
  return { speaker, start, end }
}

/** Formats each piece as `speaker:text`, for comparison. */
function shown(pieces: readonly TranscriptSegment[]): string[] {
  return pieces.map(({ speaker, text }) => `${speaker}:${text}`)
}

describe('a segment with several speakers', () => {
  test('is divided where the speaker changes, each part with its own words, times and number', () => {
    const labels = new SpeakerLabels([turn('x', 0, 2.1), turn('y', 2.1, 4)], [])
    const [first, second] = labels.split({ ...say('How are you? Fine'), tokens: [1, 2] })
    expect([first, second]).toMatchObject([
      { id: 0, speaker: 'A', text: ' How are ', start: 0, end: 2, tokens: [] },
      { id: 1, speaker: 'B', text: 'you? Fine', start: 2, end: 4, tokens: [] },
    ])
    expect(second?.words?.map(({ word }) => word)).toEqual(['you?', 'Fine'])
  })

  test('is not divided for a single word at the boundary between two speakers', () => {
    const short = say('one two three')
    const words = short.words?.map((word, at) => (at === 1 ? { ...word, start: 1.2, end: 1.5 } : word))
    const labels = new SpeakerLabels([turn('x', 0, 1.1), turn('y', 1.1, 1.6), turn('x', 1.6, 3)], [])
    expect(shown(labels.split({ ...short, ...(words && { words }) }))).toEqual(['A: one two three'])
  })

  test('assigns each word to the speaker with the longest overlap, or to the nearest speaker', () => {
    const labels = new SpeakerLabels([turn('x', 0, 0.4), turn('y', 0.4, 1.2), turn('z', 9, 10)], [])
    expect(shown(labels.split(say('mine yours theirs')))).toEqual(['A: mine yours theirs'])
    expect(shown(labels.split(say('far', 8)))).toEqual(['B: far'])
  })
})

describe('a segment without word times', () => {
  test.each([
    ['one of two speakers', [turn('x', 0, 1), turn('y', 1, 4)], 'y'],
    ['the speaker with several turns in total', [turn('x', 0, 1), turn('y', 1, 2.5), turn('x', 2.5, 4)], 'x'],
    ['the nearest speaker if no turn overlaps', [turn('x', 6, 7), turn('y', 5, 6)], 'y'],
  ])('is assigned by duration to the right speaker: %s', (_, turns, speaker) => {
    const { words: _words, ...segment } = say('one two three four')
    const labels = new SpeakerLabels(turns, ['x', 'y'])
    expect(labels.split(segment)).toMatchObject([{ speaker, text: segment.text, end: 4 }])
  })

  test('is assigned to speaker A if no speaker turns are known', () => {
    expect(shown(new SpeakerLabels([], []).split(say('hello')))).toEqual(['A: hello'])
  })
})

describe('speaker names', () => {
  test('of known speakers are unchanged, and other speakers get letters in order of appearance', () => {
    const turns = [turn('B', 0, 1), turn('agent', 1, 2), turn('A', 2, 3), turn('B', 3, 4)]
    const labels = new SpeakerLabels(turns, ['agent'])
    const pieces = [say('one', 0), say('two', 1), say('three', 2), say('four', 3)].flatMap((each) => labels.split(each))
    expect(pieces.map(({ speaker }) => speaker)).toEqual(['A', 'agent', 'B', 'A'])
  })

  test('do not use a letter that is the name of a known speaker', () => {
    const labels = new SpeakerLabels([turn('x', 0, 1), turn('A', 1, 2)], ['A'])
    expect([say('one', 0), say('two', 1)].flatMap((each) => labels.split(each)).map(({ speaker }) => speaker)).toEqual([
      'B',
      'A',
    ])
  })

  test('continue with two letters after Z', () => {
    const turns = Array.from({ length: 28 }, (_, at) => turn(`s${at}`, at, at + 1))
    const labels = new SpeakerLabels(turns, [])
    const names = turns.flatMap((_, at) => labels.split(say('x', at))).map(({ speaker }) => speaker)
    expect(names.slice(24)).toEqual(['Y', 'Z', 'AA', 'AB'])
  })
})

describe('any segments divided by speakers', () => {
  const turns = fc.array(
    fc.record({
      start: fc.integer({ min: 0, max: 60 }),
      length: fc.integer({ min: 0, max: 20 }),
      speaker: fc.constantFrom('x', 'y', 'z'),
    }),
  )
  const texts = fc.array(fc.constantFrom('a', 'I', 'said:', 'no', 'no', 'été', '🎉', '—', 'is-not'), { maxLength: 30 })
  const labelled = fc.record({
    turns,
    texts,
    hasWords: fc.boolean(),
    lost: fc.nat(29),
    start: fc.integer({ min: 0, max: 60 }),
  })

  test('have the complete text in order, and one speaker per part', () => {
    fc.assert(
      fc.property(labelled, ({ turns, texts, hasWords, lost, start }) => {
        const segment = say(texts.join(' '), start)
        // An engine may spell a word differently in its list of words than in the text. The word at `lost` simulates this.
        const words = segment.words
          ?.map((word, at) => (at === lost ? { ...word, word: '?' } : word))
          .filter(({ word }) => word !== '')
        const given = { ...segment, ...(hasWords && words ? { words } : { words: [] }) }
        const list = turns.map(({ start, length, speaker }) => turn(speaker, start, start + length))
        const pieces = new SpeakerLabels(list, []).split(given)
        expect(pieces.map(({ text }) => text).join('')).toBe(segment.text)
        expect(pieces.flatMap((piece) => piece.words ?? [])).toEqual(given.words)
        expect(pieces.map(({ id }) => id)).toEqual(pieces.map((_, at) => at))
        expect([pieces[0]?.start, pieces.at(-1)?.end]).toEqual([segment.start, segment.end])
        for (const [at, piece] of pieces.entries()) {
          expect(piece.start).toBeLessThanOrEqual(piece.end)
          expect(piece.speaker).toMatch(/^[A-C]$/)
          if (at > 0) expect(piece.speaker).not.toBe(pieces[at - 1]?.speaker)
        }
      }),
    )
  })
})
