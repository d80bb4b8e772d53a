/*
 * Tests of POST /v1/audio/translations as the official SDK calls it, with a simulated speech server that translates
 * (docs/guides/transcription.md).
 */

import OpenAI, { toFile } from 'openai'
import { afterAll, beforeAll, expect, test } from 'vitest'
import { type SpeechServer, startSpeechServer } from '../../support/speech/server.ts'
import { startTranscriptionWorker, WAVE } from '../../support/speech/worker.ts'
import { TEST_KEY, until } from '../../support/stack.ts'

const TRANSLATE = '/v1/audio/translations'
const TEXT = 'How are you? Fine.'
const SEGMENTS = [
  { id: 0, start: 0, end: 3, text: ' How are you?', tokens: [1, 2, 3] },
  { id: 1, start: 3, end: 4, text: ' Fine.', tokens: [4] },
]

let speech: SpeechServer
let tools: SpeechServer
let service: Awaited<ReturnType<typeof startTranscriptionWorker>>
let client: OpenAI
beforeAll(async () => {
  speech = await startSpeechServer({
    [TRANSLATE]: ({ fields }, answer) => {
      if (fields.prompt?.[0] === 'STALL') return
      if (fields.model?.[0] === 'broken') return answer.json({ error: { message: 'no' } }, 500)
      if (fields.response_format?.[0] === 'json') return answer.json({ text: TEXT })
      answer.json({ task: 'translate', language: 'english', duration: 4, text: TEXT, segments: SEGMENTS })
    },
  })
  tools = await startSpeechServer({ '/audio/probe': (_, answer) => answer.json({ duration: 4 }) })
  const engine = { type: 'openai', base_url: `${speech.url}/v1` }
  const model = { pool: 'transcription', engine }
  const translates = { transcription: { translates: true } }
  service = await startTranscriptionWorker({
    models: [
      { ...model, ...translates, id: 'whisper-1', engine: { ...engine, model: 'whisper-large' } },
      { ...model, transcription: { translates: true, segments: false }, id: 'short' },
      { ...model, id: 'plain' },
      { ...model, ...translates, id: 'broken', fallbacks: ['plain', 'short'] },
    ],
    connect: tools.connect,
  })
  client = new OpenAI({ apiKey: TEST_KEY, baseURL: `${service.url}/v1`, maxRetries: 0 })
})
afterAll(async () => {
  await service[Symbol.asyncDispose]()
  await speech[Symbol.asyncDispose]()
  await tools[Symbol.asyncDispose]()
})

const file = () => toFile(WAVE, 'speech.wav')

test('the translation endpoint returns English from a server that receives the file unchanged', async () => {
  const answer = await client.audio.translations.create({
    file: await file(),
    model: 'whisper-1',
    prompt: 'Names: Ada',
    temperature: 0.2,
  })
  expect(answer.text).toBe(TEXT)
  const call = speech.calls.at(-1)
  expect(call).toMatchObject({
    path: TRANSLATE,
    fields: { model: ['whisper-large'], prompt: ['Names: Ada'], temperature: ['0.2'] },
  })
  expect(call?.file.equals(WAVE)).toBe(true)
  expect(Object.keys(call?.fields ?? {}).sort()).toEqual(['model', 'prompt', 'response_format', 'temperature'])
  await until(async () => (await service.blobs()).length === 0)
})

test('the translation endpoint supports every format of the SDK', async () => {
  const ask = async (response_format: 'text' | 'srt' | 'vtt') =>
    (await client.audio.translations.create({
      file: await file(),
      model: 'whisper-1',
      response_format,
    })) as unknown as string
  expect(await ask('text')).toBe(`${TEXT}\n`)
  expect(await ask('srt')).toContain('1\n00:00:00,000 --> 00:00:03,000\nHow are you?\n')
  expect(await ask('vtt')).toMatch(/^WEBVTT\n\n00:00:00.000 --> /)
  const verbose = await client.audio.translations.create({
    file: await file(),
    model: 'whisper-1',
    response_format: 'verbose_json',
  })
  expect(verbose).toMatchObject({
    task: 'translate',
    language: 'english',
    duration: 4,
    text: TEXT,
    segments: [{ start: 0 }, { end: 4 }],
  })
})

test('the translation endpoint creates one subtitle from json if the server has no other format', async () => {
  const srt = await client.audio.translations.create({ file: await file(), model: 'short', response_format: 'srt' })
  expect(srt).toBe(`1\n00:00:00,000 --> 00:00:04,000\n${TEXT}\n\n`)
  expect(speech.calls.at(-1)?.fields.response_format).toEqual(['json'])
})

test('the translation endpoint uses only fallbacks that can translate', async () => {
  expect((await client.audio.translations.create({ file: await file(), model: 'broken' })).text).toBe(TEXT)
  expect(speech.calls.at(-1)?.fields.model).toEqual(['short'])
  expect(speech.calls.every(({ path }) => path === TRANSLATE)).toBe(true)
})

test('the translation endpoint cancels the upstream call if the caller disconnects', async () => {
  const leave = new AbortController()
  const before = speech.calls.length
  const asked = { file: await file(), model: 'whisper-1', prompt: 'STALL' }
  const call = client.audio.translations.create(asked, { signal: leave.signal }).catch(() => {})
  await until(() => speech.calls.length > before)
  leave.abort()
  await Promise.all([speech.calls.at(-1)?.closed, call])
})

test('the translation endpoint refuses an unsupported field, and names the field', async () => {
  const failure = async (more: object) =>
    (await client.audio.translations
      .create({ file: await file(), model: 'whisper-1', ...more })
      .catch((error: unknown) => error)) as Error
  const other = await failure({ model: 'plain' })
  expect(other).toMatchObject({ status: 400, code: 'model_not_supported', param: 'model' })
  expect(other.message).toContain(
    "'plain' does not translate. Models that support translation: whisper-1, short, broken.",
  )
  expect(await failure({ model: 'nothing' })).toMatchObject({ status: 404, code: 'model_not_found' })
  expect(await failure({ response_format: 'diarized_json' })).toMatchObject({ status: 400, param: 'response_format' })
  expect(await failure({ stream: true })).toMatchObject({ status: 400, param: 'stream' })
  expect(await failure({ temperature: 2 })).toMatchObject({ status: 400, param: 'temperature' })
  expect(await failure({ file: await toFile(Buffer.from('no audio'), 'a.txt') })).toMatchObject({
    status: 400,
    code: 'invalid_audio',
  })
})
