import { Readable } from 'node:stream'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import type { TranscriptionEngine } from '#shared/engines/engine.ts'
import { openLocalTranscription } from '#shared/engines/local/local.ts'
import { openOpenAiTranscription } from '#shared/engines/openai/transcript/transcription.ts'
import {
  askTranscript,
  collectTranscript,
  eventsOf,
  fileOf,
  localModel,
  speechModel,
  transcribeOptions,
  transcriptFailure,
  transcriptOf,
} from '../../../support/speech/calls.ts'
import { findEnvironment, openServer } from '../../../support/speech/running.ts'
import { type SpeechScript, startSpeechServer } from '../../../support/speech/server.ts'
import { findSpeech } from '../../../support/speech/speech.ts'
import { until } from '../../../support/stack.ts'

/** A transcription engine under test. */
interface Adapter {
  readonly name: string
  open(): Promise<{ engine: TranscriptionEngine; close(): Promise<void> }>
  /** Two recordings: `audio` has a sentence or two, and `long` is long enough to be cancelled. */
  readonly audio: Buffer
  readonly long: Buffer
}

const WORDS = ['Hello', ' world,', ' how', ' are', ' you?']
const TEXT = WORDS.join('')
const clips = (await findEnvironment()) && (await findSpeech())

/** Script of a server that has all features. The answer contains the features that the request asks for. A long file gets no answer. */
const speaks: SpeechScript = ({ fields, file }, answer) => {
  if (file.length === 0) return answer.json({ error: { message: 'empty', code: 'invalid_audio', param: 'file' } }, 400)
  const words = WORDS.map((word, at) => ({ word: word.trim(), start: at, end: at + 1 }))
  const segment = { id: 0, start: 0, end: 5, text: ` ${TEXT}`, tokens: [1, 2, 3] }
  const logprobs = WORDS.map((token) => ({ token, logprob: -0.1, bytes: [...Buffer.from(token)] }))
  if (fields.stream) {
    answer.open()
    for (const [at, delta] of WORDS.entries())
      answer.frame({ type: 'transcript.text.delta', delta, logprobs: [logprobs[at]] })
    if (file.length > 1_000) return
    answer.frame({ type: 'transcript.text.done', text: TEXT })
    return answer.end()
  }
  if (file.length > 1_000) return
  if (fields.response_format?.[0] === 'json') return answer.json({ text: TEXT, logprobs })
  answer.json({ text: TEXT, language: 'english', duration: 5, segments: [segment], words })
}

const openAi = (name: string, transcription: object): Adapter => ({
  name,
  audio: Buffer.alloc(100),
  long: Buffer.alloc(2_000),
  open: async () => {
    const server = await startSpeechServer({ '/v1/audio/transcriptions': speaks })
    const engine = openOpenAiTranscription(speechModel(server.url, {}, { transcription }), {})
    return { engine, close: async () => await server[Symbol.asyncDispose]() }
  },
})
const local: Adapter = {
  name: 'on the local model server',
  audio: clips?.['austen-0880']?.bytes ?? Buffer.alloc(0),
  long: clips?.['two-cities']?.bytes ?? Buffer.alloc(0),
  open: async () => {
    const { server } = openServer()
    const engine = openLocalTranscription(localModel(), (signal) => server.connect(signal))
    return { engine, close: () => server.close() }
  },
}
const adapters = [openAi('that answers in one piece', {}), openAi('that streams', { stream: true })]

describe.each(clips ? [...adapters, local] : adapters)(
  'the transcription engine $name',
  { timeout: 60_000 },
  ({ open, audio, long }) => {
    let engine: TranscriptionEngine
    let close: () => Promise<void>
    beforeAll(async () => {
      ;({ engine, close } = await open())
    })
    afterAll(async () => {
      await engine.close()
      await close()
    })

    test('yields start at the beginning, and usage and finish in this order at the end', async () => {
      const events = await collectTranscript(engine, askTranscript({ stream: true }), { duration: 5 }, fileOf(audio))
      const types = events.map(({ type }) => type)
      expect([types[0], ...types.slice(-2)]).toEqual(['start', 'usage', 'finish'])
      expect(types.filter((type) => type !== 'text' && type !== 'segment')).toEqual(['start', 'usage', 'finish'])
      expect(eventsOf(events, 'start')[0]?.duration).toBe(5)
      expect(eventsOf(events, 'usage')[0]?.usage.output_tokens).toBeGreaterThan(0)
    })

    test('yields the text of a segment before the segment, and numbers segments from 0 without gaps', async () => {
      const events = await collectTranscript(engine, askTranscript({ words: true }), { duration: 5 }, fileOf(audio))
      const segments = eventsOf(events, 'segment').map(({ segment }) => segment)
      expect(
        segments
          .map(({ text }) => text)
          .join('')
          .trim(),
      ).toBe(transcriptOf(events))
      expect(segments.map(({ id }) => id)).toEqual(segments.map((_, at) => at))
      let said = ''
      let told = ''
      for (const event of events) {
        if (event.type === 'text') said += event.text
        if (event.type === 'segment') told += event.segment.text
        if (event.type === 'segment') expect(said.startsWith(told.trimStart())).toBe(true)
      }
    })

    test('yields words in order of time that join to the text', async () => {
      const events = await collectTranscript(engine, askTranscript({ words: true }), { duration: 5 }, fileOf(audio))
      const words = eventsOf(events, 'segment').flatMap(({ segment }) => segment.words ?? [])
      // Spaces are removed before the comparison. For example, Whisper returns "ill-disposed" as two words, and only the first has a space before
      // it.
      expect(words.map(({ word }) => word).join('')).toBe(transcriptOf(events).replaceAll(' ', ''))
      const starts = words.map(({ start }) => start)
      expect(starts).toEqual(starts.toSorted((a, b) => a - b))
    })

    test('yields log probabilities whose tokens join to the text', async () => {
      const request = askTranscript({ logprobs: true })
      const events = await collectTranscript(engine, request, { duration: 5 }, fileOf(audio))
      const logprobs = eventsOf(events, 'text').flatMap((event) => event.logprobs ?? [])
      expect(
        logprobs
          .map(({ token }) => token)
          .join('')
          .trim(),
      ).toBe(transcriptOf(events))
      expect(logprobs.every(({ logprob }) => logprob <= 0)).toBe(true)
    })

    test('ends a call and closes the file when the signal of the call is aborted', async () => {
      const stop = new AbortController()
      const file = fileOf(long)
      const call = collectTranscript(engine, askTranscript({ stream: true }), { signal: stop.signal }, file)
      call.catch(() => {})
      await until(() => file.unclosed > 0)
      stop.abort('cancelled')
      await expect(call).rejects.toBe('cancelled')
      await until(() => file.unclosed === 0)
      // Another call checks that the engine still works after the cancel.
      expect(transcriptOf(await collectTranscript(engine, askTranscript(), {}, fileOf(audio)))).not.toBe('')
    })

    test('does not start a call whose signal is already aborted', async () => {
      const signal = AbortSignal.abort('never')
      const file = fileOf(audio)
      await expect(collectTranscript(engine, askTranscript(), { signal }, file)).rejects.toBe('never')
      await until(() => file.unclosed === 0)
    })

    test('closes the file if the caller abandons the response', async () => {
      const file = fileOf(audio)
      for await (const event of engine.transcribe(askTranscript(), file, transcribeOptions())) {
        if (event.type === 'text') break
      }
      await until(() => file.unclosed === 0)
    })

    test('fails with invalid_audio for an empty file', async () => {
      const empty = { ...fileOf(), bytes: 0, open: () => Promise.resolve(Readable.from([])) }
      expect(await transcriptFailure(engine, askTranscript(), {}, empty)).toMatchObject({
        code: 'invalid_audio',
        param: 'file',
      })
    })
  },
)
