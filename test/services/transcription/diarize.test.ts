import { describe, expect, test } from 'vitest'
import type { TranscribeEvent } from '#schemas/kinds/transcription.ts'
import { withSpeakers } from '#services/transcription/diarize.ts'
import { reportProgress } from '#services/transcription/transcribe.ts'
import type { Turn } from '#shared/engines/engine.ts'
import { NO_FIGURES } from '#shared/engines/openai/transcript/decode.ts'
import type { Progress } from '#shared/kinds/kind.ts'
import { TRANSCRIPT_BYTES_MAX } from '#shared/kinds/transcribe/transcribe.ts'
import { sizeOf } from '#shared/lib/buffers.ts'

const START: TranscribeEvent = { type: 'start', language: 'en', duration: 2, input_tokens: 20 }
const END: TranscribeEvent[] = [{ type: 'usage', usage: { input_tokens: 20, output_tokens: 2 } }, { type: 'finish' }]
const TURNS: Turn[] = [{ start: 0, end: 2, speaker: 'agent' }]

function say(text: string, start: number): TranscribeEvent[] {
  const words = [{ word: text, start, end: start + 1 }]
  return [
    { type: 'text', text },
    { type: 'segment', segment: { ...NO_FIGURES, start, end: start + 1, text, words } },
  ]
}

async function* transcript(...events: TranscribeEvent[]) {
  yield* events
}

/**
 * Adds speaker labels to the events of a transcript. `passed` lists the events that were forwarded so far; the simulated `diarize` function
 * may read it.
 */
async function run(diarize: (passed: string[]) => Promise<Turn[]>, events: TranscribeEvent[], more: object = {}) {
  const passed: string[] = []
  const progress: Progress[] = []
  const options = {
    request: { speakers: [{ name: 'agent', reference: '' }], words: false },
    signal: new AbortController().signal,
    isTogether: false,
    onProgress: (each: Progress) => void progress.push(each),
    ...more,
  }
  const labelled = withSpeakers(
    () => transcript(...events),
    () => diarize(passed),
    options,
  )
  for await (const event of labelled) {
    passed.push(
      event.type === 'segment' ? `${event.segment.speaker}${event.segment.words ? ' words' : ''}` : event.type,
    )
  }
  return { passed, progress }
}

describe('the diarization of a transcript', () => {
  test('delays the segments, but not the text and the progress', async () => {
    const known = async (passed: string[]) => {
      while (passed.length < 3) await new Promise(setImmediate)
      return TURNS
    }
    const { passed, progress } = await run(known, [START, ...say('one', 0), ...say('two', 1), ...END])
    expect(passed).toEqual(['start', 'text', 'text', 'agent', 'agent', 'usage', 'finish'])
    expect(progress.map(({ phase, percent }) => [phase, percent])).toEqual([['diarizing', null]])
  })

  test('starts at the first text if the transcription runs on the same machine, and otherwise at once', async () => {
    let before: string[] | undefined
    const diarize = async (passed: string[]) => {
      before = [...passed]
      return TURNS
    }
    await run(diarize, [START, ...say('one', 0), ...END])
    expect(before).toEqual(['start'])
    await run(diarize, [START, ...say('one', 0), ...END], { isTogether: true })
    expect(before).toEqual([])
  })

  test('does not run if there is no speech', async () => {
    const diarize = () => Promise.reject(new Error('unexpected diarization'))
    const { passed } = await run(diarize, [START, ...END])
    expect(passed).toEqual(['start', 'usage', 'finish'])
  })

  test('keeps the words of the segments if the request asks for words', async () => {
    const request = { speakers: [], words: true }
    const { passed } = await run(() => Promise.resolve(TURNS), [START, ...say('one', 0), ...END], { request })
    expect(passed).toContain('A words')
  })
})

describe('the progress of a transcription', () => {
  test.each([
    [30, 60, 50, '30 of 60 seconds'],
    [60, 60, 99, '60 of 60 seconds'],
    [30.7, undefined, null, '30 seconds'],
  ])('after %d s of %s s is %s percent', (seconds, duration, percent, message) => {
    const told: Progress[] = []
    reportProgress((each) => void told.push(each), duration)(seconds)
    expect(told).toEqual([{ phase: 'transcribing', percent, message }])
  })
})

test('a transcript of four hours with words and log probabilities is below the maximum size', () => {
  const [seconds, wordsASecond, tokensAWord] = [4 * 3_600, 3, 1.4]
  const word = { word: 'something', start: 12_345.67, end: 12_345.99 }
  const logprob = { token: ' something', logprob: -0.123_456_789, bytes: [...Buffer.from(' something')] }
  const segment = { ...NO_FIGURES, start: 1, end: 7, text: 'something '.repeat(18), tokens: Array(26).fill(12_345) }
  const words = seconds * wordsASecond
  const bytes =
    (seconds / 6) * sizeOf({ type: 'segment', segment }) +
    words * (sizeOf(word) + 'something '.length) +
    words * tokensAWord * sizeOf(logprob)
  expect(bytes).toBeLessThan(TRANSCRIPT_BYTES_MAX)
})
