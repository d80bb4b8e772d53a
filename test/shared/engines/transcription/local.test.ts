import { describe, expect, test } from 'vitest'
import { aboutReference } from '#shared/engines/engine.ts'
import { LocalAudioTools, openLocalTranscription } from '#shared/engines/local/local.ts'
import { ServiceError } from '#shared/lib/error.ts'
import {
  askTranscript,
  CONTENT,
  collectTranscript,
  eventsOf,
  fileOf,
  localModel,
  transcriptFailure,
  transcriptOf,
} from '../../../support/speech/calls.ts'
import { type SpeechCall, type SpeechScripts, startSpeechServer } from '../../../support/speech/server.ts'
import { until } from '../../../support/stack.ts'

const TRANSCRIBE = '/v1/audio/transcriptions'
const options = { signal: new AbortController().signal, secondsMax: 600 }
const loading = () => Promise.reject(new ServiceError('model_loading', 'prepared to 40 %', { retryAfterMs: 5_000 }))

async function openOn(scripts: SpeechScripts, engine: object = {}) {
  const server = await startSpeechServer(scripts)
  const opened = openLocalTranscription(localModel(engine), server.connect)
  const tools = new LocalAudioTools(server.connect, 2)
  return {
    server,
    engine: opened,
    tools,
    async [Symbol.asyncDispose]() {
      await opened.close()
      await tools.close()
      await server[Symbol.asyncDispose]()
    },
  }
}

const word = (text: string, start: number) => ({ word: text, start, end: start + 0.5, probability: 0.9 })
const segment = (id: number, text: string, start: number) => ({
  type: 'sluice.segment',
  segment: {
    id,
    seek: 0,
    start,
    end: start + 2,
    text,
    tokens: [1, 2],
    temperature: 0.2,
    avg_logprob: -0.3,
    compression_ratio: 1.1,
    no_speech_prob: 0.01,
    words: [word(text, start)],
  },
})

describe('the transcription engine on the local model server', () => {
  test('requests a stream with words, log probabilities, prompt, temperature and voice detection settings', async () => {
    await using at = await openOn({ [TRANSCRIBE]: (_, answer) => answer.json({ text: '' }) })
    const vad = { threshold: 0.4, silence_duration_ms: 300, prefix_padding_ms: 100 }
    await collectTranscript(
      at.engine,
      askTranscript({ words: true, logprobs: true, temperature: 0.3, prompt: 'p', vad }),
    )
    expect(at.server.calls[0]?.fields).toEqual({
      model: ['whisper-tiny.en'],
      response_format: ['verbose_json'],
      prompt: ['p'],
      temperature: ['0.3'],
      'timestamp_granularities[]': ['segment', 'word'],
      'include[]': ['logprobs'],
      vad: [JSON.stringify(vad)],
      stream: ['true'],
    })
  })

  test('yields text, segments with words, log probabilities and progress as they arrive', async () => {
    const logprobs = [{ token: ' One', logprob: -0.1, bytes: [32] }]
    await using at = await openOn({
      [TRANSCRIBE]: (_, answer) => {
        answer.open()
        answer.frame({ type: 'sluice.progress', seconds: 0, duration: 4 })
        answer.frame({ type: 'transcript.text.delta', delta: 'One.', logprobs })
        answer.frame(segment(0, ' One.', 0))
        answer.frame({ type: 'sluice.progress', seconds: 2, duration: 4 })
        answer.frame({ type: 'transcript.text.delta', delta: ' Two.' })
        answer.frame(segment(1, ' Two.', 2))
        const usage = { type: 'tokens', input_tokens: 41, output_tokens: 5, total_tokens: 46 }
        answer.frame({ type: 'transcript.text.done', text: 'One. Two.', language: 'en', duration: 4, usage })
        answer.end()
      },
    })
    const seconds: number[] = []
    const events = await collectTranscript(at.engine, askTranscript({ words: true, logprobs: true }), {
      duration: 4,
      onSeconds: (each) => seconds.push(each),
    })
    expect(events.map(({ type }) => type)).toEqual(['start', 'text', 'segment', 'text', 'segment', 'usage', 'finish'])
    expect(events[0]).toEqual({ type: 'start', language: 'en', duration: 4, input_tokens: 40 })
    expect(transcriptOf(events)).toBe('One. Two.')
    expect(eventsOf(events, 'text')[0]?.logprobs).toEqual(logprobs)
    expect(eventsOf(events, 'segment')[1]?.segment).toEqual({
      ...segment(1, ' Two.', 2).segment,
      words: [{ word: 'Two.', start: 2, end: 2.5 }],
    })
    expect(eventsOf(events, 'usage')[0]?.usage).toEqual({ input_tokens: 41, output_tokens: 5 })
    expect([seconds[0], Math.max(...seconds)]).toEqual([0, 4])
  })

  test('runs at most as many calls as the concurrency of the model, and queues the others', async () => {
    const gates = [Promise.withResolvers<void>(), Promise.withResolvers<void>()]
    let calls = 0
    await using at = await openOn(
      {
        [TRANSCRIBE]: async (_, answer) => {
          await gates[calls++]?.promise
          answer.json({ text: 'done' })
        },
      },
      { concurrency: 1 },
    )
    const both = [collectTranscript(at.engine), collectTranscript(at.engine)]
    gates[0]?.resolve()
    await both[0]
    gates[1]?.resolve()
    await both[1]
    expect([calls, at.server.mostAtOnce]).toEqual([2, 1])
  })

  test('fails with model_loading and the progress while the local server is prepared', async () => {
    const engine = openLocalTranscription(localModel(), loading)
    const audio = fileOf()
    const error = await transcriptFailure(engine, askTranscript(), {}, audio)
    expect(error).toMatchObject({ code: 'model_loading', message: 'prepared to 40 %', retryAfterMs: 5_000 })
    await engine.close()
  })

  test('fails with upstream_error if the server reports an error in the middle of a stream', async () => {
    await using at = await openOn({
      [TRANSCRIBE]: (_, answer) => {
        answer.open()
        answer.frame({ type: 'sluice.progress', seconds: 0, duration: 4 })
        answer.frame({ error: { message: 'The speech model failed.', type: 'server_error', code: 'internal_error' } })
        answer.end()
      },
    })
    expect((await transcriptFailure(at.engine)).code).toBe('upstream_error')
  })

  test('fails with upstream_error if the stream ends before the last frame', async () => {
    await using at = await openOn({
      [TRANSCRIBE]: (_, answer) => {
        answer.open()
        answer.frame({ type: 'sluice.progress', seconds: 0, duration: 4 })
        answer.end()
      },
    })
    expect((await transcriptFailure(at.engine)).code).toBe('upstream_error')
  })
})

describe('the audio decoder of the local model server', () => {
  test('receives the file unchanged, and returns its duration', async () => {
    await using at = await openOn({ '/audio/probe': (_, answer) => answer.json({ duration: 2.5, codec: 'flac' }) })
    expect(await at.tools.probe(fileOf(), options)).toBe(2.5)
    expect(at.server.calls[0]?.file.equals(CONTENT)).toBe(true)
    expect(at.server.calls[0]?.headers['content-length']).toBe(String(CONTENT.length))
  })

  test.each([
    ['invalid_audio', 400],
    ['audio_too_short', 400],
    ['audio_too_long', 400],
  ])('forwards the error %s of the server', async (code, status) => {
    const error = { message: 'why', code, param: 'file', type: 'invalid_request_error' }
    await using at = await openOn({ '/audio/probe': (_, answer) => answer.json({ error }, status) })
    await expect(at.tools.probe(fileOf(), options)).rejects.toMatchObject({ code, param: 'file', message: 'why' })
  })

  test.each([
    ['responds with status 500', { error: { message: 'x' } }, 500, 'upstream_error'],
    ['responds with status 503', { error: { message: 'x' } }, 503, 'overloaded'],
  ])('fails with a retryable error if the server %s', async (_, body, status, code) => {
    await using at = await openOn({ '/audio/probe': (_, answer) => answer.json(body, status) })
    await expect(at.tools.probe(fileOf(), options)).rejects.toMatchObject({ code })
  })

  test('sends names and samples of known speakers, and returns speaker turns', async () => {
    const turns = [{ start: 0, end: 1.5, speaker: 'agent' }]
    await using at = await openOn({ '/diarize': (_, answer) => answer.json({ duration: 2, turns }) })
    const speakers = [
      { name: 'agent', reference: 'AAAA' },
      { name: 'cléo', reference: 'BBBB' },
    ]
    expect(await at.tools.diarize(fileOf(), speakers, options)).toEqual(turns)
    expect(at.server.calls[0]?.fields).toEqual({
      'known_speaker_names[]': ['agent', 'cléo'],
      'known_speaker_references[]': [
        'data:application/octet-stream;base64,AAAA',
        'data:application/octet-stream;base64,BBBB',
      ],
    })
  })

  test('closes the connection and the file when the signal of the call is aborted', async () => {
    const received = Promise.withResolvers<SpeechCall>()
    await using at = await openOn({ '/audio/probe': (call) => received.resolve(call) })
    const stop = new AbortController()
    const audio = fileOf()
    const probing = at.tools.probe(audio, { secondsMax: 600, signal: stop.signal })
    const { closed } = await received.promise
    stop.abort('cancelled')
    await expect(probing).rejects.toBe('cancelled')
    await closed
    await until(() => audio.unclosed === 0)
  })

  test('reports an invalid voice sample as invalid_value, and names the field', () => {
    const wrong = new ServiceError('invalid_audio', 'It is damaged.', { param: 'file' })
    expect(aboutReference(wrong, 1)).toMatchObject({ code: 'invalid_value', param: 'known_speaker_references[1]' })
    const busy = new ServiceError('overloaded', 'busy')
    expect(aboutReference(busy, 1)).toBe(busy)
  })
})
