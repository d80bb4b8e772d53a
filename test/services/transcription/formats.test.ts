import fc from 'fast-check'
import { afterAll, beforeAll, describe, expect, it } from 'vitest'
import type { EncodeContext } from '#schemas/job.ts'
import type {
  TranscribeEvent,
  TranscriptForm,
  TranscriptFormat,
  TranscriptSegment,
} from '#schemas/kinds/transcription.ts'
import { AudioSniffer } from '#services/ingress/endpoints/transcription/upload.ts'
import { findLanguage, languageName } from '#shared/kinds/transcribe/cue-text.ts'
import { encodeTranscript, mergeTranscribeEvents, TranscriptStream } from '#shared/kinds/transcribe/transcribe.ts'
import { EventBuffer } from '#shared/lib/buffers.ts'
import { ServiceError } from '#shared/lib/error.ts'
import { partsOf, SPEECH, speak, startTranscriptions, type Transcriptions, wav } from '../../support/speech/service.ts'
import { sseStream } from '../../support/sse.ts'

const WORDS = ['timestamp_granularities[]', 'word'] as const
const USAGE = {
  input_tokens: 28,
  output_tokens: 7,
  total_tokens: 35,
  input_token_details: { audio_tokens: 28, text_tokens: 0 },
}
const DURATION = { type: 'duration', seconds: 3 }
const SEGMENT = {
  id: 0,
  seek: 0,
  start: 0,
  end: 1.3,
  text: ' Hello world.',
  tokens: [50_364, 2_425],
  temperature: 0,
  avg_logprob: -0.2,
  compression_ratio: 1.1,
  no_speech_prob: 0.01,
}
const DIARIZED = [
  { type: 'transcript.text.segment', id: 'seg_001', start: 0, end: 1.3, text: 'Hello world.', speaker: 'A' },
  { type: 'transcript.text.segment', id: 'seg_002', start: 1.3, end: 2.6, text: 'How are you?', speaker: 'B' },
]

describe('a transcription response', () => {
  let service: Transcriptions
  beforeAll(async () => {
    service = await startTranscriptions()
  })
  afterAll(() => service[Symbol.asyncDispose]())

  const ask = (fields: Record<string, string | string[]>) =>
    service.uploadParts(partsOf({ model: SPEECH, ...fields }, wav(1)))
  const askJson = async (fields: Record<string, string | string[]>) => {
    const response = await ask(fields)
    expect(response.headers.get('content-type')).toBe('application/json')
    return await response.json()
  }

  it('is json by default, with every field of the API reference', async () => {
    expect(await askJson({})).toEqual({
      text: 'Hello world. How are you?',
      logprobs: null,
      usage: { ...DURATION, ...USAGE },
      duration: 2.71,
      language: '',
      segments: null,
      words: null,
    })
  })

  it('has log probabilities in json if requested', async () => {
    const { logprobs } = (await askJson({ 'include[]': 'logprobs' })) as { logprobs: object[] }

    expect(logprobs).toHaveLength(5)
    expect(logprobs[0]).toEqual({ token: ' Hello', logprob: -0.25, bytes: [32, 72, 101, 108, 108, 111] })
  })

  it('has segments with all ten documented fields in verbose_json', async () => {
    expect(await askJson({ response_format: 'verbose_json', language: 'pt' })).toEqual({
      task: 'transcribe',
      language: 'portuguese',
      duration: 2.71,
      text: 'Hello world. How are you?',
      segments: [SEGMENT, { ...SEGMENT, id: 1, start: 1.3, end: 2.6, text: ' How are you?' }],
      usage: DURATION,
    })
  })

  it('has words, or segments and words, in verbose_json if requested', async () => {
    const verbose = { response_format: 'verbose_json' }
    const words = (await askJson({ ...verbose, [WORDS[0]]: 'word' })) as Record<string, unknown>
    const both = (await askJson({ ...verbose, [WORDS[0]]: ['word', 'segment'] })) as Record<string, unknown>

    expect(Object.keys(words)).toEqual(['task', 'language', 'duration', 'text', 'words', 'usage'])
    expect((words.words as object[])[1]).toEqual({ word: 'world.', start: 0.4, end: 0.7 })
    expect(both).toMatchObject({ words: words.words, segments: [SEGMENT, {}] })
  })

  it('has speaker labels in the text of diarized_json', async () => {
    expect(await askJson({ response_format: 'diarized_json' })).toEqual({
      task: 'transcribe',
      duration: 2.71,
      text: 'A: Hello world.\nB: How are you?',
      segments: DIARIZED,
      usage: DURATION,
    })
  })

  it('has the names of known speakers in diarized_json', async () => {
    const answer = await askJson({
      response_format: 'diarized_json',
      'known_speaker_names[]': 'agent',
      'known_speaker_references[]': `data:audio/wav;base64,${wav(2).toString('base64')}`,
    })

    expect(answer).toMatchObject({ text: 'agent: Hello world.\nA: How are you?', segments: [{ speaker: 'agent' }, {}] })
  })

  it.each([
    ['text', 'Hello world. How are you?\n'],
    ['srt', '1\n00:00:00,000 --> 00:00:01,300\nHello world.\n\n2\n00:00:01,300 --> 00:00:02,600\nHow are you?\n\n'],
    ['vtt', 'WEBVTT\n\n00:00:00.000 --> 00:00:01.300\nHello world.\n\n00:00:01.300 --> 00:00:02.600\nHow are you?\n\n'],
  ])('is plain text in the format %s', async (format, text) => {
    const response = await ask({ response_format: format })

    expect(response.headers.get('content-type')).toBe('text/plain; charset=utf-8')
    expect(await response.text()).toBe(text)
  })

  it.each(['json', 'text'])('is a stream of deltas and one done event in the format %s', async (format) => {
    const response = await ask({ response_format: format, stream: 'true' })
    const events = eventsOf(await response.text())

    expect(response.headers.get('content-type')).toBe('text/event-stream; charset=utf-8')
    expect(new Set(events.slice(0, -1).map(({ type }) => type))).toEqual(new Set(['transcript.text.delta']))
    expect(events.map(({ delta }) => delta ?? '').join('')).toBe('Hello world. How are you?')
    expect(events.at(-1)).toEqual({
      type: 'transcript.text.done',
      text: 'Hello world. How are you?',
      usage: { type: 'tokens', ...USAGE },
    })
  })

  it('is a stream of deltas and segments in diarized_json, and each delta has a segment id', async () => {
    const events = eventsOf(await (await ask({ response_format: 'diarized_json', stream: 'true' })).text())

    expect(events.filter(({ type }) => type === 'transcript.text.segment')).toEqual(DIARIZED)
    expect(events.find(({ delta }) => delta?.startsWith('Hello'))).toMatchObject({ segment_id: 'seg_001' })
    expect(events.findLast(({ delta }) => delta !== undefined)).toMatchObject({ segment_id: 'seg_002' })
    expect(events.at(-1)).toMatchObject({ text: 'Hello world. How are you?' })
  })

  it('has equal log probabilities with and without streaming', async () => {
    const events = eventsOf(await (await ask({ 'include[]': 'logprobs', stream: 'true' })).text())
    const whole = (await askJson({ 'include[]': 'logprobs' })) as { logprobs: object[] }

    expect(events.slice(0, -1).flatMap(({ logprobs }) => logprobs ?? [])).toEqual(whole.logprobs)
    expect(events.at(-1)?.logprobs).toEqual(whole.logprobs)
  })
})

describe('a failed transcription', () => {
  const failing = (text?: string) =>
    startTranscriptions({
      async *script() {
        yield { type: 'start', language: 'en', duration: 9, input_tokens: 90 }
        if (text !== undefined) yield { type: 'text', text }
        throw new ServiceError('invalid_audio', 'The file cannot be decoded.', { param: 'file' })
      },
    })

  it.each(['false', 'true'])('returns an HTTP error if no text was sent before, with stream %s', async (stream) => {
    await using service = await failing()

    const response = await service.uploadParts(partsOf({ model: SPEECH, stream }))

    expect(response.status).toBe(400)
    expect(await response.json()).toEqual({
      error: {
        message: 'The file cannot be decoded.',
        type: 'invalid_request_error',
        param: 'file',
        code: 'invalid_audio',
      },
    })
  })

  it('ends its stream with an error frame if text was sent before', async () => {
    await using service = await failing('Some words')

    const text = await (await service.uploadParts(partsOf({ model: SPEECH, stream: 'true' }))).text()

    expect(eventsOf(text)).toEqual([
      { type: 'transcript.text.delta', delta: 'Some words' },
      {
        error: {
          message: 'The file cannot be decoded.',
          type: 'invalid_request_error',
          param: 'file',
          code: 'invalid_audio',
        },
      },
    ])
    expect(text).not.toContain('[DONE]')
  })

  it('ends its stream with an error if the engine stops before the end event', async () => {
    await using service = await startTranscriptions({
      async *script() {
        yield { type: 'start', language: 'en', duration: 9, input_tokens: 90 }
        yield { type: 'text', text: 'Half a sent' }
      },
    })

    const text = await (await service.uploadParts(partsOf({ model: SPEECH, stream: 'true' }))).text()

    expect(eventsOf(text).at(-1)).toMatchObject({ error: { code: 'upstream_error' } })
    expect(text).not.toContain('[DONE]')
  })
})

describe('a transcript without speech', () => {
  const silence: TranscribeEvent[] = [
    { type: 'start', language: '', duration: 4, input_tokens: 40 },
    { type: 'usage', usage: { input_tokens: 40, output_tokens: 0 } },
    { type: 'finish' },
  ]

  it.each<[TranscriptFormat, unknown]>([
    ['text', '\n'],
    ['srt', ''],
    ['vtt', 'WEBVTT\n\n'],
    ['verbose_json', expect.objectContaining({ text: '', segments: [], language: '', duration: 4 })],
    ['diarized_json', expect.objectContaining({ text: '', segments: [] })],
    ['json', expect.objectContaining({ text: '', duration: 4 })],
  ])('is empty in the format %s', (format, answer) => {
    expect(encodeTranscript(silence, contextOf({ format }))).toEqual(answer)
  })

  it('is streamed as one done event without deltas', () => {
    expect(eventsOf(streamOf(silence, contextOf({})))).toMatchObject([{ type: 'transcript.text.done', text: '' }])
  })
})

describe('the numbers of a transcript', () => {
  it('are finite, and times are rounded to milliseconds', () => {
    const segment = segmentOf({
      start: 0.1 + 0.2,
      end: Number.NaN,
      text: 'a',
      compression_ratio: Number.POSITIVE_INFINITY,
    })

    const answer = encodeTranscript(eventsFrom([segment]), contextOf({ format: 'verbose_json' }))

    expect(answer).toMatchObject({ segments: [{ start: 0.3, end: 0.3, compression_ratio: 0 }] })
  })
})

describe('a speaker label', () => {
  it('appears once before consecutive segments of one speaker', () => {
    const said = [
      ['A', ' One.'],
      ['A', ' Two. '],
      ['B', 'Three.'],
      ['B', ' '],
      ['A', 'Four.'],
    ].map(([speaker = '', text = ''], id) => segmentOf({ id, text, speaker }))

    const answer = encodeTranscript(eventsFrom(said), contextOf({ format: 'diarized_json' }))

    expect(answer).toMatchObject({ text: 'A: One. Two.\nB: Three.\nA: Four.' })
    expect((answer as { segments: { id: string }[] }).segments.map(({ id }) => id)).toEqual([
      'seg_001',
      'seg_002',
      'seg_003',
      'seg_005',
    ])
  })
})

describe('the languages of transcription', () => {
  it('have English names, even languages that the speech model does not detect', () => {
    expect(['en', 'jw', 'jv', 'nb', 'yue', 'ht', 'ga', '', 'english'].map(languageName)).toEqual([
      'english',
      'javanese',
      'javanese',
      'norwegian',
      'cantonese',
      'haitian creole',
      'irish',
      '',
      'english',
    ])
  })

  it('are the codes of ISO 639-1 in upper or lower case, and no others', () => {
    const known = 'aa af de en eo fr ga he iu ja jv ko lb mi nb nn no om pt qu rw sw ti uk vi wo xh yi za zh zu'.split(
      ' ',
    )

    expect(known.filter((code) => findLanguage(code) === undefined)).toEqual([])
    expect(['', 'xx', 'deu', 'en-US', 'toString', '__proto__'].map(findLanguage)).toEqual(Array(6).fill(undefined))
  })
})

describe('any transcript', () => {
  const text = fc.string({
    unit: fc.constantFrom('a', 'é', '日', '👩', ' ', '\n', '-', '>', '&', '<', '\r', '\u2028'),
    maxLength: 12,
  })
  const segments = fc
    .array(fc.tuple(fc.double({ min: 0, max: 50_000, noNaN: true }), fc.double({ min: 0, max: 90, noNaN: true }), text))
    .map((all) => all.map(([start, length, said], id) => segmentOf({ id, start, end: start + length, text: said })))

  it.each<[TranscriptFormat, string]>([
    ['srt', ','],
    ['vtt', '.'],
  ])('has subtitles in %s with the text and the times of its segments', async (format, point) => {
    await fc.assert(
      fc.asyncProperty(segments, async (given) => {
        const file = String(await encodeTranscript(eventsFrom(given), contextOf({ format })))

        const said = given.filter((segment) => segment.text.trim() !== '')
        const cues = parseCues(file, format)
        expect(cues).toEqual(
          said.map(({ start, text: spoken }) => ({
            times: [ms(start), expect.any(Number)],
            text: spoken
              .trim()
              .replace(/\s+/g, ' ')
              .replace(/-{2,}>/g, '->'),
            point,
          })),
        )
        for (const [index, { start, end }] of said.entries()) {
          const shown = cues[index]?.times[1] ?? 0
          const spoken = Math.max(ms(start), ms(end))
          // A cue that would be visible for less than 0.8 s is extended up to 0.8 s, so that it can be read.
          expect(shown).toBeGreaterThanOrEqual(spoken)
          expect(shown).toBeLessThanOrEqual(Math.max(spoken, ms(start) + 800))
        }
      }),
    )
  })

  /** Generates the texts of segments, each cut into pieces at any position, also within surrogate pairs. */
  const pieces = fc.array(
    fc.tuple(fc.array(fc.string({ unit: fc.constantFrom(' ', 'a', '\ud83d', '\ude00', '\n'), maxLength: 4 })), text),
  )

  it('has deltas that add up to the text of the done event, however the engine split the text', () => {
    fc.assert(
      fc.property(pieces, fc.boolean(), (given, isMerged) => {
        const events = eventsOfPieces(given.map(([cut]) => cut))
        const sent = isMerged ? mergedOf(events) : events
        const context = contextOf({ logprobs: true })

        const frames = eventsOf(streamOf(sent, context))
        const whole = encodeTranscript(events, context) as { text: string; logprobs: object[] }

        const done = frames.at(-1)
        expect(frames.map(({ delta }) => delta ?? '').join('')).toBe(whole.text)
        expect(done).toMatchObject({ type: 'transcript.text.done', text: whole.text, logprobs: whole.logprobs })
        expect(frames.slice(0, -1).flatMap(({ logprobs }) => logprobs ?? [])).toEqual(whole.logprobs)
        expect(whole.text.isWellFormed()).toBe(true)
      }),
    )
  })

  it.each<TranscriptFormat>(['json', 'text', 'srt', 'vtt', 'verbose_json', 'diarized_json'])(
    'has the same %s response if a worker merges its events',
    async (format) => {
      const request = { speakers: [], diarize: true, words: true, logprobs: true, temperature: 0 }
      const events = await Array.fromAsync(speak(request as unknown as Parameters<typeof speak>[0]))
      const context = contextOf({ format, words: true, segments: true, logprobs: true })

      expect(encodeTranscript(mergedOf(events), context)).toEqual(encodeTranscript(events, context))
      expect(mergedOf(events).length).toBeLessThan(events.length)
    },
  )
})

describe('the detection of an audio format', () => {
  it('does not depend on how the file was divided on arrival', () => {
    const tag = Buffer.concat([Buffer.from('ID3\x03\0\0\0\0\x01\x10'), Buffer.alloc(144, 0x55)])
    const file = Buffer.concat([tag, Buffer.from('fLaC'), Buffer.alloc(200)])
    fc.assert(
      fc.property(fc.array(fc.nat(file.length), { maxLength: 20 }), (cuts) => {
        const sniffer = new AudioSniffer('a.mp3')
        const ends = [...cuts.sort((a, b) => a - b), file.length]
        for (const [index, end] of ends.entries()) sniffer.push(file.subarray(ends[index - 1] ?? 0, end))

        expect(sniffer.end()).toBe('flac')
      }),
    )
  })

  it('fails for a file of 100 ID3 tags without audio', () => {
    const sniffer = new AudioSniffer('a.mp3')

    expect(() => {
      sniffer.push(Buffer.from('ID3\x03\0\0\0\0\0\0'.repeat(100), 'latin1'))
      sniffer.end()
    }).toThrow(/not audio/)
  })
})

interface WireEvent {
  readonly type?: string
  readonly delta?: string
  readonly logprobs?: object[]
}

/** Parses the JSON data of each event in a stream, and leaves out the end mark `[DONE]`. */
function eventsOf(stream: string): WireEvent[] {
  const lines = stream.split('\n').filter((line) => line.startsWith('data: {'))
  return lines.map((line) => JSON.parse(line.slice('data: '.length)))
}

function contextOf(form: Partial<TranscriptForm>): EncodeContext {
  const transcript = { format: 'json', words: false, segments: true, logprobs: false, ...form } as const
  return { request_id: '', call_id: '', created_at: 0, model: SPEECH, include_usage: false, version: '', transcript }
}

function segmentOf(more: Partial<TranscriptSegment>): TranscriptSegment {
  return { ...SEGMENT, ...more }
}

function eventsFrom(segments: readonly TranscriptSegment[]): TranscribeEvent[] {
  return [
    { type: 'start', language: 'en', duration: 9, input_tokens: 90 },
    ...segments.flatMap((segment): TranscribeEvent[] => [
      { type: 'text', text: segment.text, segment: segment.id },
      { type: 'segment', segment },
    ]),
    { type: 'finish' },
  ]
}

/** Returns the events of a transcript that has one segment per list of pieces, and one text event per piece. */
function eventsOfPieces(all: readonly (readonly string[])[]): TranscribeEvent[] {
  const texts = all.flatMap((pieces, segment) =>
    pieces.map((text): TranscribeEvent => {
      const logprobs = [{ token: text.toWellFormed(), logprob: -1, bytes: null }]
      return { type: 'text', text, segment, logprobs }
    }),
  )
  return [{ type: 'start', language: 'en', duration: 9, input_tokens: 90 }, ...texts, { type: 'finish' }]
}

function mergedOf(events: readonly TranscribeEvent[]): TranscribeEvent[] {
  const buffer = new EventBuffer(mergeTranscribeEvents)
  for (const event of events) buffer.push(event)
  return buffer.takeAll()
}

function streamOf(events: readonly TranscribeEvent[], context: EncodeContext): string {
  return sseStream(new TranscriptStream(context), events)
}

function ms(seconds: number): number {
  return Math.round(seconds * 1_000)
}

/** Parses a subtitle file strictly by the grammar of its format, and throws if the file is invalid. */
function parseCues(file: string, format: string): { times: number[]; text: string; point: string }[] {
  const blocks = file.split('\n\n')
  if (blocks.pop() !== '') throw new Error('no blank line at the end')
  if (format === 'vtt' && blocks.shift() !== 'WEBVTT') throw new Error('no header')
  return blocks.map((block, index) => {
    const lines = block.split('\n')
    if (format === 'srt' && lines.shift() !== String(index + 1)) throw new Error('no number')
    const [, ...parts] =
      /^(\d\d+):(\d\d):(\d\d)([,.])(\d{3}) --> (\d\d+):(\d\d):(\d\d)[,.](\d{3})$/.exec(lines[0] ?? '') ?? []
    const [h, m, s, point = '', milli, h2, m2, s2, milli2] = parts
    const total = (...[hours, minutes, seconds, rest]: unknown[]) =>
      ((Number(hours) * 60 + Number(minutes)) * 60 + Number(seconds)) * 1_000 + Number(rest)
    if (lines.length !== 2) throw new Error('not one line of text')
    return { times: [total(h, m, s, milli), total(h2, m2, s2, milli2)], text: lines[1] ?? '', point }
  })
}
