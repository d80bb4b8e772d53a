import { createOpenAI } from '@ai-sdk/openai'
import { transcribe } from 'ai'
import { afterAll, beforeAll, describe, expect, inject, it } from 'vitest'
import { failureOf } from '../support/sdk.ts'
import { startTranscriptions, type Transcriptions, wav } from '../support/speech/service.ts'
import { TEST_KEY } from '../support/stack.ts'

const TEXT = 'Hello world. How are you?'

for (const mode of ['embedded', 'Kafka']) {
  const kafka = mode === 'Kafka' ? (inject('kafka') ?? undefined) : undefined
  describe.skipIf(mode === 'Kafka' && !kafka)(`the transcribe function of the Vercel AI SDK, ${mode}`, () => {
    let service: Transcriptions
    beforeAll(async () => {
      service = await startTranscriptions({ kafka })
    })
    afterAll(() => service[Symbol.asyncDispose]())

    /**
     * Transcribes a recording. The SDK chooses the response format by the name of the model, so the service has aliases with the names of
     * OpenAI's models.
     */
    const ask = (model: string, options: Record<string, string | string[] | number | object> = {}) => {
      const openai = createOpenAI({ apiKey: TEST_KEY, baseURL: `${service.url}/v1` })
      const providerOptions = { openai: options as never }
      return transcribe({ model: openai.transcription(model), audio: wav(2), maxRetries: 0, providerOptions })
    }

    it('transcribe returns text, language, duration and segments', async () => {
      const { text, language, durationInSeconds, segments } = await ask('whisper-1', { language: 'en', prompt: 'x' })

      expect({ text, language, durationInSeconds }).toEqual({ text: TEXT, language: 'en', durationInSeconds: 2.71 })
      expect(segments[1]).toEqual({ text: ' How are you?', startSecond: 1.3, endSecond: 2.6 })
    })

    it('transcribe returns each word as a segment', async () => {
      const { segments } = await ask('whisper-1', { timestampGranularities: ['word'], temperature: 0.2 })

      expect(segments.map(({ text }) => text)).toEqual(TEXT.split(' '))
    })

    it('transcribe returns JSON without segments, and sends a chunking strategy as one JSON field', async () => {
      expect((await ask('speech-1', { chunkingStrategy: { type: 'server_vad', threshold: 0.3 } })).text).toBe(TEXT)
      expect(service.seen.at(-1)?.vad?.threshold).toBe(0.3)
    })

    it('transcribe returns a text with speaker labels', async () => {
      expect((await ask('gpt-4o-transcribe-diarize')).text).toBe('A: Hello world.\nB: How are you?')
    })

    it('transcribe throws an error with the status 404 for an unknown model', async () => {
      expect(await failureOf(ask('no-such'))).toMatchObject({ statusCode: 404 })
    })
  })
}
