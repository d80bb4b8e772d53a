/*
 * Tests with recorded speech through the whole service: upload, queue, worker, the real local model server, and back. Uploads and response
 * formats are tested in intake.test.ts and formats.test.ts.
 */

import { mkdtemp, readFile, rm, symlink } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterAll, beforeAll, describe, expect, inject, test } from 'vitest'
import { speakerError, type Turn, wordErrors } from '../../support/speech/measure.ts'
import { findEnvironment, MODELS_DIR, openServer } from '../../support/speech/running.ts'
import { findSpeech } from '../../support/speech/speech.ts'
import { join as joined, RATE, samplesOf, silence, waveOf } from '../../support/speech/wave.ts'
import { framesOf } from '../../support/speech/worker.ts'
import { type Stack, startStack, TEST_KEY, until } from '../../support/stack.ts'

const MODEL = 'whisper-tiny.en'
const PATH = '/v1/audio/transcriptions'
const MODELS = [
  { id: MODEL, pool: 'transcription', engine: { type: 'local', model: MODEL }, transcription: { languages: ['en'] } },
]
/** Eight seconds of synthetic German: `espeak-ng -v de+f3 -s 140`, in Opus. */
const GERMAN = new URL('../../support/speech/german.ogg', import.meta.url)
const clips = (await findEnvironment()) && (await findSpeech())
const MODES = [
  ['embedded', undefined],
  ['through Kafka', inject('kafka')],
] as const

type Json = Record<string, unknown>

/**
 * True for the long test run, in which each test runs with the in-memory broker and with Kafka. In the short run, only tests of streams and
 * of durable jobs use both brokers.
 */
const isLong = Boolean(process.env.SLUICE_TEST_LONG)

for (const [mode, kafka] of MODES) {
  describe.skipIf(!clips || (mode !== 'embedded' && !kafka))(
    `the transcription of recorded speech, ${mode}`,
    { timeout: 120_000 },
    () => {
      let stack: Stack
      let dataDir: string
      beforeAll(async () => {
        dataDir = await mkdtemp(join(tmpdir(), 'sluice-speech-'))
        // The model files are prepared once per machine. The data directory links to them.
        await symlink(MODELS_DIR, join(dataDir, 'models'))
        stack = await startStack({ models: MODELS, settings: { DATA_DIR: dataDir }, kafka: kafka ?? undefined })
      }, 60_000)
      afterAll(async () => {
        await stack?.[Symbol.asyncDispose]()
        await rm(dataDir, { recursive: true, force: true })
      })

      const upload = (file: Buffer, fields: Record<string, string | string[]>, init: RequestInit = {}) => {
        const headers = { authorization: `Bearer ${TEST_KEY}`, ...init.headers }
        return fetch(stack.url + PATH, {
          ...init,
          method: 'POST',
          headers,
          body: formOf(file, { model: MODEL, ...fields }),
        })
      }

      const testOnce = test.skipIf(mode !== 'embedded' && !isLong)

      testOnce('the transcription of recorded speech returns json with a word error rate below 5 %', async () => {
        const { bytes, text } = clip('two-cities')
        const answer = (await (await upload(bytes, {})).json()) as { text: string; duration: number; usage: Json }
        expect(errorRate(text, answer.text)).toBeLessThan(0.05)
        expect(answer.duration).toBeCloseTo(44.374, 2)
        expect(answer.usage).toMatchObject({ type: 'duration', seconds: 45, input_tokens: 450 })
        expect(answer.usage.output_tokens).toBeGreaterThan(100)
      })

      testOnce('returns verbose_json with all keys of segments, and words with matching times', async () => {
        const fields = { response_format: 'verbose_json', 'timestamp_granularities[]': ['word', 'segment'] }
        const answer = (await (await upload(clip('beckett').bytes, fields)).json()) as {
          text: string
          duration: number
          language: string
          segments: Json[]
          words: { word: string; start: number; end: number }[]
        }
        expect(answer.language).toBe('english')
        expect(Object.keys(answer.segments[0] ?? {})).toHaveLength(10)
        expect(answer.words.map(({ word }) => word).join(' ')).toBe(answer.text)
        const times = answer.words.flatMap(({ start, end }) => [start, end])
        expect(times).toEqual(times.toSorted((a, b) => a - b))
        expect(times.at(-1)).toBeLessThanOrEqual(answer.duration)
      })

      test('the transcription of recorded speech streams several text deltas before the done event', async () => {
        const frames = await framesOf(await upload(clip('two-cities').bytes, { stream: 'true' }))
        const deltas = frames.filter(({ type }) => type === 'transcript.text.delta').map(({ delta }) => delta)
        expect(deltas.length).toBeGreaterThan(1)
        expect(frames.at(-1)).toMatchObject({ type: 'transcript.text.done', text: deltas.join('') })
      })

      testOnce('returns the log probability of each token', async () => {
        const fields = { 'include[]': 'logprobs' }
        const answer = (await (await upload(clip('austen-0880').bytes, fields)).json()) as {
          text: string
          logprobs: Json[]
        }
        expect(
          answer.logprobs
            .map(({ token }) => token)
            .join('')
            .trim(),
        ).toBe(answer.text)
      })

      testOnce('returns the speakers of a conversation, one of them recognized by a voice sample', async () => {
        const { file, truth, sample } = await conversation()
        const fields = {
          response_format: 'diarized_json',
          'known_speaker_names[]': 'Jane',
          'known_speaker_references[]': `data:audio/wav;base64,${sample.toString('base64')}`,
        }
        const { segments, text } = (await (await upload(file, fields)).json()) as { segments: Turn[]; text: string }
        expect([...new Set(segments.map(({ speaker }) => speaker))]).toEqual(['Jane', 'A'])
        expect(speakerError(truth, segments)).toBeLessThan(0.1)
        expect(text).toMatch(/^Jane: .+\nA: .+\nJane: /)
      })

      test('the transcription of recorded speech runs as one durable job, which reports progress', {
        timeout: 420_000,
      }, async () => {
        // The recording lasts 70 s, but 35 s of it are a pause, so less than a minute is speech.
        const reading = await readingOfDickens()
        const file = waveOf(joined([reading.slice(0, 20 * RATE), silence(35), reading.slice(0, 15 * RATE)]))
        const headers = { prefer: 'respond-async' }
        const { id } = (await (await upload(file, { response_format: 'srt' }, { headers })).json()) as { id: string }
        const percents = new Set<number>()
        const done = await until(
          async () => {
            const job = (await (await stack.get(`/v1/jobs/${id}`)).json()) as {
              status: string
              progress?: Json
              result: Json
            }
            if (typeof job.progress?.percent === 'number') percents.add(job.progress.percent)
            return job.status === 'completed' ? job : undefined
          },
          { withinMs: 360_000 },
        )
        expect(percents.size).toBeGreaterThan(1)
        expect(JSON.stringify(done.result)).toContain('00:01:')
      })

      testOnce(
        'the transcription endpoint refuses a file that is not audio, too short audio and too short voice samples',
        async () => {
          const refusal = async (file: Buffer, fields: Record<string, string>) => {
            const response = await upload(file, fields)
            return { status: response.status, ...((await response.json()) as { error: Json }).error }
          }
          const { bytes } = clip('austen-0880')
          expect(await refusal(Buffer.concat([bytes.subarray(0, 40), Buffer.alloc(4)]), {})).toMatchObject({
            status: 400,
            code: 'invalid_audio',
          })
          expect(await refusal(waveOf(silence(0.05)), {})).toMatchObject({
            status: 400,
            code: 'audio_too_short',
            param: 'file',
          })
          const fields = {
            response_format: 'diarized_json',
            'known_speaker_names[]': 'Jane',
            'known_speaker_references[]': `data:audio/wav;base64,${waveOf(silence(1)).toString('base64')}`,
          }
          expect(await refusal(bytes, fields)).toMatchObject({ status: 400, param: 'known_speaker_references[0]' })
        },
      )

      testOnce('refuses another language for an English-only model unless language is set', async () => {
        const german = await readFile(GERMAN)
        const refused = await upload(german, {})
        expect({ status: refused.status, ...((await refused.json()) as { error: Json }).error }).toMatchObject({
          status: 400,
          code: 'unsupported_value',
          param: 'language',
          message: expect.stringMatching(/supports English only.*Set model to .*whisper-base.*or set language to 'en'/),
        })
        const statuses = [
          (await upload(german, { language: 'en' })).status,
          (await upload(clip('beckett').bytes, {})).status,
        ]
        expect(statuses, 'statuses of German with a language, and of English without').toEqual([200, 200])
      })

      testOnce(
        'the transcription endpoint releases the model for the next caller if the caller disconnects',
        async () => {
          const stop = new AbortController()
          const long = waveOf(joined(Array(15).fill(await readingOfDickens())))
          const response = await upload(long, { stream: 'true' }, { signal: stop.signal })
          expect(response.status).toBe(200)
          await response.body?.getReader().read()
          stop.abort()
          // The local server has only one copy of the model. If the cancelled call continued, then this call would wait for more than a
          // minute.
          const answer = (await (
            await upload(clip('beckett').bytes, {}, { signal: AbortSignal.timeout(30_000) })
          ).json()) as Json
          expect(errorRate(clip('beckett').text, String(answer.text))).toBeLessThan(0.2)
        },
      )
    },
  )
}

function clip(name: string) {
  const found = clips?.[name]
  if (!found) throw new Error(`no clip ${name}`)
  return found
}

function errorRate(said: string, heard: string): number {
  const { errors, words } = wordErrors(said, heard)
  return errors / words
}

function formOf(file: Buffer, fields: Record<string, string | string[]>): FormData {
  const data = new FormData()
  data.append('file', new Blob([new Uint8Array(file)]), 'speech.wav')
  for (const [name, value] of Object.entries(fields)) for (const each of [value].flat()) data.append(name, each)
  return data
}

let dickens: Promise<Int16Array> | undefined

/**
 * Returns a recorded reading of Dickens. The recording has another sample rate than the other clips, so the local server converts it, once
 * for all tests.
 */
function readingOfDickens(): Promise<Int16Array> {
  dickens ??= (async () => {
    await using local = openServer()
    return samplesOf((await local.post('/audio/decode', clip('two-cities').bytes)).bytes)
  })()
  return dickens
}

/** Builds a recording in which two people speak alternately. Returns the recording, its speaker turns, and a voice sample of one person. */
async function conversation(): Promise<{ file: Buffer; truth: Turn[]; sample: Buffer }> {
  const cities = await readingOfDickens()
  const stretch = (from: number, to: number) => cities.slice(from * RATE, to * RATE)
  const austen = (number: string) => samplesOf(clip(`austen-${number}`).bytes)
  const parts: [string, Int16Array][] = [
    ['Jane', austen('0870')],
    ['A', stretch(1, 8)],
    ['Jane', austen('0920')],
    ['A', stretch(21, 28)],
  ]
  const truth: Turn[] = []
  let at = 0
  for (const [speaker, samples] of parts) {
    truth.push({ speaker, start: at, end: at + samples.length / RATE })
    at += samples.length / RATE + 0.3
  }
  const file = waveOf(joined(parts.flatMap(([, samples]) => [samples, silence(0.3)])))
  return { file, truth, sample: waveOf(joined([austen('0880'), austen('0930')])) }
}
