import { createReadStream } from 'node:fs'
import { mkdtemp, rm, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import OpenAI, { toFile } from 'openai'
import OpenAI4 from 'openai-4'
import OpenAI6 from 'openai-6'
import { afterAll, beforeAll, describe, expect, inject, it } from 'vitest'
import { z } from 'zod'
import { failureOf } from '../support/sdk.ts'
import { SPEECH, sha256, startTranscriptions, type Transcriptions, wav } from '../support/speech/service.ts'
import { TEST_KEY, until } from '../support/stack.ts'

/**
 * Major versions of the `openai` package. The tests use only calls that have the same types in all versions.
 * The client of each version therefore has the type of the newest one.
 */
const SDKS = [
  { major: 7, Client: OpenAI },
  { major: 6, Client: OpenAI6 },
  { major: 4, Client: OpenAI4 },
] as unknown as { readonly major: number; readonly Client: typeof OpenAI }[]

const AUDIO = wav(2.71)
const TEXT = 'Hello world. How are you?'
const VOICE = `data:audio/wav;base64,${wav(3).toString('base64')}`

const DurationUsage = z.strictObject({ type: z.literal('duration'), seconds: z.number() })

/** Schemas of the result objects (docs/reference/compatibility.md, Transcripts): every field, and no further field. */
const SPEC = {
  json: z.strictObject({
    text: z.string(),
    logprobs: z.null(),
    usage: z.strictObject({
      input_tokens: z.int(),
      output_tokens: z.int(),
      total_tokens: z.int(),
      type: z.literal('duration'),
      input_token_details: z.strictObject({ audio_tokens: z.int(), text_tokens: z.int() }),
      seconds: z.number(),
    }),
    duration: z.number(),
    language: z.string(),
    segments: z.null(),
    words: z.null(),
  }),
  diarized: z.strictObject({
    task: z.literal('transcribe'),
    duration: z.number(),
    text: z.string(),
    segments: z
      .array(
        z.strictObject({
          type: z.literal('transcript.text.segment'),
          id: z.string(),
          start: z.number(),
          end: z.number(),
          text: z.string(),
          speaker: z.string(),
        }),
      )
      .length(2),
    usage: DurationUsage,
  }),
  verboseWords: z.strictObject({
    task: z.literal('transcribe'),
    language: z.literal('english'),
    duration: z.number(),
    text: z.string(),
    words: z.array(z.strictObject({ word: z.string(), start: z.number(), end: z.number() })).length(5),
    usage: DurationUsage,
  }),
}

for (const mode of ['embedded', 'Kafka']) {
  const kafka = mode === 'Kafka' ? (inject('kafka') ?? undefined) : undefined
  describe.skipIf(mode === 'Kafka' && !kafka)(`transcriptions of the openai package, ${mode}`, () => {
    let service: Transcriptions
    let path: string
    beforeAll(async () => {
      service = await startTranscriptions({ kafka })
      const directory = await mkdtemp(join(tmpdir(), 'sluice-audio-'))
      path = join(directory, 'speech.wav')
      await writeFile(path, AUDIO)
      return () => rm(directory, { recursive: true })
    })
    afterAll(() => service[Symbol.asyncDispose]())

    describe.each(SDKS)('version $major of the openai package', ({ Client }) => {
      const transcriptions = () =>
        new Client({ apiKey: TEST_KEY, baseURL: `${service.url}/v1`, maxRetries: 0 }).audio.transcriptions
      const file = () => createReadStream(path)

      it.each<[string, () => unknown]>([
        ['a readable stream of a file', () => createReadStream(path)],
        ['a File', () => new File([new Uint8Array(AUDIO)], 'speech.wav', { type: 'audio/wav' })],
        ['bytes without a name', () => toFile(AUDIO)],
      ])('returns the transcript of %s', async (_what, open) => {
        const answer = await transcriptions().create({ file: (await open()) as File, model: SPEECH })

        expect(SPEC.json.parse({ ...answer })).toMatchObject({ text: TEXT, usage: { seconds: 3, input_tokens: 28 } })
        expect(service.seen.at(-1)?.heard).toBe(sha256(AUDIO))
      })

      it('sends every parameter, whether before or after the file in the form', async () => {
        await transcriptions().create({
          model: SPEECH,
          language: 'de',
          file: file(),
          prompt: 'Grüße',
          temperature: 0.4,
          response_format: 'verbose_json',
          timestamp_granularities: ['word', 'segment'],
          chunking_strategy: { type: 'server_vad', threshold: 0.4, silence_duration_ms: 300 },
        })

        expect(service.seen.at(-1)).toMatchObject({
          language: 'de',
          prompt: 'Grüße',
          temperature: 0.4,
          words: true,
          vad: { threshold: 0.4, silence_duration_ms: 300, prefix_padding_ms: 300 },
        })
      })

      it.each<['text' | 'srt' | 'vtt', string]>([
        ['text', `${TEXT}\n`],
        ['srt', '1\n00:00:00,000 --> 00:00:01,300\nHello world.\n\n2\n00:00:01,300 --> 00:00:02,600\nHow are you?\n\n'],
        [
          'vtt',
          'WEBVTT\n\n00:00:00.000 --> 00:00:01.300\nHello world.\n\n00:00:01.300 --> 00:00:02.600\nHow are you?\n\n',
        ],
      ])('returns %s as a string', async (response_format, text) => {
        expect(await transcriptions().create({ file: file(), model: SPEECH, response_format })).toBe(text)
      })

      it('returns verbose_json with segments or with words, as in the API reference', async () => {
        const ask = { model: SPEECH, response_format: 'verbose_json' as const }

        const segments = await transcriptions().create({ ...ask, file: file() })
        const words = await transcriptions().create({ ...ask, file: file(), timestamp_granularities: ['word'] })

        expect(segments).toMatchObject({ text: TEXT, language: 'english', duration: 2.71 })
        expect(segments.segments?.map(({ text }) => text)).toEqual([' Hello world.', ' How are you?'])
        expect(SPEC.verboseWords.parse({ ...words }).words[1]).toEqual({ word: 'world.', start: 0.4, end: 0.7 })
      })

      it('returns diarized_json with the names of known speakers', async () => {
        const answer = await transcriptions().create({
          file: file(),
          model: SPEECH,
          response_format: 'diarized_json',
          chunking_strategy: 'auto',
          known_speaker_names: ['agent'],
          known_speaker_references: [VOICE],
        })

        const diarized = SPEC.diarized.parse({ ...answer })
        expect(diarized.segments.map(({ speaker }) => speaker)).toEqual(['agent', 'A'])
        expect(diarized.text).toBe('agent: Hello world.\nA: How are you?')
      })

      it('returns log probabilities of the tokens', async () => {
        const { logprobs } = await transcriptions().create({ file: file(), model: SPEECH, include: ['logprobs'] })

        expect(logprobs?.map(({ token }) => token).join('')).toBe(` ${TEXT}`)
      })

      it.each(['json', 'text', 'diarized_json'] as const)(
        'streams a transcript in the format %s',
        async (response_format) => {
          const stream = await transcriptions().create({ file: file(), model: SPEECH, response_format, stream: true })

          const events = []
          for await (const event of stream) events.push(event)

          const deltas = events.map((event) => (event.type === 'transcript.text.delta' ? event.delta : ''))
          expect(deltas.join('')).toBe(TEXT)
          expect(events.at(-1)).toMatchObject({ type: 'transcript.text.done', text: TEXT, usage: { total_tokens: 35 } })
          const segments = events.filter(({ type }) => type === 'transcript.text.segment')
          expect(segments).toHaveLength(response_format === 'diarized_json' ? 2 : 0)
        },
      )

      it('throws an error that names an unknown model or an unsupported file', async () => {
        const none = await failureOf(transcriptions().create({ file: file(), model: 'no-such' }))
        const text = await toFile(Buffer.from('This is no audio.'), 'a.wav')
        const noAudio = await failureOf(transcriptions().create({ file: text, model: SPEECH }))

        expect(none).toMatchObject({ status: 404, code: 'model_not_found', param: 'model' })
        expect(noAudio).toMatchObject({ status: 400, code: 'invalid_audio', param: 'file' })
        await until(async () => (await service.blobs()).length === 0)
      })

      it('throws an error for a file over the size limit, with and without Content-Length', async () => {
        await using small = await startTranscriptions({ kafka, settings: { AUDIO_BYTES_MAX: '50000' } })
        const client = new Client({ apiKey: TEST_KEY, baseURL: `${small.url}/v1`, maxRetries: 0 })
        const chunked = await failureOf(client.audio.transcriptions.create({ file: file(), model: SPEECH }))
        const large = await toFile(Buffer.concat([AUDIO, Buffer.alloc(30_000_000)]), 'a.wav')
        const whole = await failureOf(client.audio.transcriptions.create({ file: large, model: SPEECH }))

        expect([chunked.status, whole.status]).toEqual([413, 413])
      })
    })
  })
}
