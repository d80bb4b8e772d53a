import { describe, expect, test } from 'vitest'
import type { TranscriptSegment, Word } from '#schemas/kinds/transcription.ts'
import { NO_FIGURES } from '#shared/engines/openai/transcript/decode.ts'
import { columnsOf } from '#shared/kinds/transcribe/cue-text.ts'
import { encodeSrt, encodeVtt } from '#shared/kinds/transcribe/cues.ts'
import { longestHold } from '../../../support/loop-hold.ts'

/** Returns a segment of a transcript, whose words are split at blanks and evenly spaced in time. */
function segment(text: string, start = 0, secondsPerWord = 0.3): TranscriptSegment {
  const words = text.split(' ').map((word, index): Word => {
    const begins = start + index * secondsPerWord
    return { word, start: begins, end: begins + secondsPerWord }
  })
  return { ...NO_FIGURES, start, end: words.at(-1)?.end ?? start, text, words }
}

function withoutWords(text: string, start: number, end: number): TranscriptSegment {
  return { ...NO_FIGURES, start, end, text }
}

interface Cue {
  readonly start: number
  readonly end: number
  readonly lines: string[]
}

async function cuesOf(segments: readonly TranscriptSegment[], language = 'en'): Promise<Cue[]> {
  const blocks = (await encodeSrt(segments, language)).split('\n\n').filter(Boolean)
  return blocks.map((block) => {
    const [, times = '', ...lines] = block.split('\n')
    const [start = 0, end = 0] = times.split(' --> ').map(secondsOf)
    return { start, end, lines }
  })
}

function secondsOf(time: string): number {
  const [hours = 0, minutes = 0, seconds = 0] = time.replace(',', '.').split(':').map(Number)
  return hours * 3600 + minutes * 60 + seconds
}

const LONG =
  'It was the best of times, it was the worst of times, it was the age of wisdom, it was the age of foolishness, ' +
  'it was the epoch of belief and it was the epoch of incredulity because we had everything before us.'

describe('the subtitles of a transcript', () => {
  test('have at most two lines of 42 columns, and contain every word', async () => {
    const cues = await cuesOf([segment(LONG)])
    expect(cues.length).toBeGreaterThan(2)
    for (const { lines } of cues) {
      expect(lines.length).toBeLessThanOrEqual(2)
      for (const line of lines) expect(columnsOf(line)).toBeLessThanOrEqual(42)
    }
    expect(cues.flatMap(({ lines }) => lines).join(' ')).toBe(LONG)
  })

  test('end at phrase boundaries', async () => {
    for (const { lines } of await cuesOf([segment(LONG)])) expect(lines.at(-1)).toMatch(/([,.]|belief|incredulity)$/)
  })

  test('begin and end at the times of the spoken words, and last at most seven seconds', async () => {
    const cues = await cuesOf([segment(LONG, 10, 0.9)])
    const words = LONG.split(' ')
    let said = 0
    for (const { start, end, lines } of cues) {
      expect(start).toBeCloseTo(10 + said * 0.9, 2)
      expect(end - start).toBeLessThanOrEqual(7)
      said += lines.join(' ').split(' ').length
    }
    expect(said).toBe(words.length)
  })

  test('are visible long enough for reading, unless another subtitle follows', async () => {
    const [short, fast, next] = await cuesOf([
      segment('No.', 0, 0.2),
      segment('This was spoken in one breath, and quickly.', 5, 0.1),
      segment('Then more.', 5.9, 0.2),
    ])
    expect(short?.end).toBe(0.8)
    expect(fast?.end).toBeCloseTo(next?.start ?? 0, 2)
  })

  test('are split before a conjunction, and never inside a number or after an article', async () => {
    const text =
      'The company reported a total profit of some 12 500 000 euros in the last quarter of the year and its shares rose by 5 % within the first 3 hours'
    const edges = (await cuesOf([segment(text)])).flatMap(({ lines }) => lines)
    expect(edges.length).toBeGreaterThan(3)
    for (const line of edges.slice(0, -1)) {
      expect(line).not.toMatch(/ (a|the|its|of|by|first)$/)
      expect(line).not.toMatch(/\d$/)
    }
  })

  test('are not split after an article of their language', async () => {
    const text =
      'Wir haben gestern im Garten unter dem alten Baum einen kleinen Hund gefunden der sehr laut gebellt hat und die Nachbarn kamen'
    for (const line of (await cuesOf([segment(text)], 'de')).flatMap(({ lines }) => lines)) {
      expect(line).not.toMatch(/ (dem|einen|der|die|im)$/)
    }
  })

  test('are split at a long silence', async () => {
    const before = segment('Wait for it.', 0)
    const after = segment('Now it comes.', 9)
    const joined = { ...before, end: after.end, text: `${before.text} ${after.text}` }
    const cues = await cuesOf([{ ...joined, words: [...(before.words ?? []), ...(after.words ?? [])] }])
    expect(cues.map(({ start, lines }) => [start, lines.join(' ')])).toEqual([
      [0, 'Wait for it.'],
      [9, 'Now it comes.'],
    ])
  })

  test('are split in proportion to the text if the segment has no word times', async () => {
    const cues = await cuesOf([withoutWords(LONG, 0, 20)])
    for (const { lines } of cues) for (const line of lines) expect(line.length).toBeLessThanOrEqual(42)
    expect(cues[0]?.start).toBe(0)
    expect(cues.at(-1)?.end).toBe(20)
    const shares = cues.map(({ start, end, lines }) => (end - start) / lines.join(' ').length)
    for (const share of shares) expect(share).toBeCloseTo(20 / LONG.length, 1)
  })

  test('count two columns per character of Chinese and Japanese text', async () => {
    const text =
      '今天的天气非常好，我们决定一起去公园散步，顺便买一些水果和面包，然后回家做晚饭。明天我们还要去学校参加一个重要的会议，会议的内容是关于新的课程。'
    const cues = await cuesOf([withoutWords(text, 0, 15)], 'zh')
    const lines = cues.flatMap(({ lines }) => lines)
    expect(lines.join('')).toBe(text)
    for (const line of lines) expect(columnsOf(line)).toBeLessThanOrEqual(42)
    for (const line of lines) expect(line).not.toMatch(/^[，。]/)
    expect(cues.length).toBeGreaterThan(1)
  })

  test('split a word that is longer than a line', async () => {
    const [cue] = await cuesOf([withoutWords('x'.repeat(60), 0, 3)])
    expect(cue?.lines).toEqual(['x'.repeat(42), 'x'.repeat(18)])
  })

  test('contain the text of a segment if its words differ from the text', async () => {
    const odd = { ...segment('one two three'), text: '1, 2, three and four' }
    expect((await cuesOf([odd])).map(({ lines }) => lines.join(' '))).toEqual([odd.text])
    expect(await encodeVtt([{ ...odd, words: [] }])).toContain(odd.text)
  })

  test('show a segment without word times as one subtitle, even if the segment lasts more than an hour', async () => {
    expect(await cuesOf([withoutWords(LONG.repeat(400), 0, 5_000)])).toHaveLength(1)
  })

  test('never block the event loop for 50 ms during encoding, even for five hours of audio', async () => {
    const many = Array.from({ length: 2_000 }, (_, index) => segment(LONG.slice(0, 120), index * 6, 0.25))
    let text = ''
    const longestMs = await longestHold(async () => {
      text = await encodeSrt(many, 'en')
    })
    expect(text.split('\n\n').length).toBeGreaterThan(4_000)
    expect(longestMs).toBeLessThan(50)
  })
})
