import { getEventListeners } from 'node:events'
import { type AddressInfo, createServer, type Socket } from 'node:net'
import { Readable } from 'node:stream'
import { setTimeout as delay } from 'node:timers/promises'
import { describe, expect, test } from 'vitest'
import { openOpenAiTranscription } from '#shared/engines/openai/transcript/transcription.ts'
import type { Answer } from '../../../support/processes/upstream.ts'
import {
  askTranscript,
  CONTENT,
  collectTranscript,
  eventsOf,
  fileOf,
  speechModel,
  transcribeOptions,
  transcriptFailure,
  transcriptOf,
} from '../../../support/speech/calls.ts'
import { type SpeechScript, startSpeechServer } from '../../../support/speech/server.ts'
import { until } from '../../../support/stack.ts'

const PATH = '/v1/audio/transcriptions'
/** Response in the form in which whisper-1 and Speaches send it. */
const VERBOSE = {
  task: 'transcribe',
  language: 'english',
  duration: 4.2,
  text: ' Hello world. Goodbye.',
  segments: [
    {
      id: 1,
      seek: 0,
      start: 0,
      end: 2,
      text: ' Hello world.',
      tokens: [1, 2, 3],
      avg_logprob: -0.2,
      no_speech_prob: null,
    },
    { id: 2, seek: 0, start: 2, end: 4.2, text: ' Goodbye.', tokens: [4] },
  ],
  words: [
    { word: 'Hello', start: 0, end: 0.9 },
    { word: 'world', start: 1, end: 2.1 },
    { word: 'Goodbye', start: 2.5, end: 4 },
  ],
}

async function openOn(script: SpeechScript, engine: object = {}, model: object = {}) {
  const server = await startSpeechServer({ [PATH]: script })
  const opened = openOpenAiTranscription(speechModel(server.url, engine, model), { KEY: 'secret' })
  return {
    server,
    engine: opened,
    async [Symbol.asyncDispose]() {
      await opened.close()
      await server[Symbol.asyncDispose]()
    },
  }
}

function sends(body: unknown): SpeechScript {
  return (_, answer) => answer.json(body)
}

function streams(...frames: unknown[]): SpeechScript {
  return (_, answer) => {
    answer.open()
    for (const frame of frames) answer.frame(frame)
    answer.end()
  }
}

describe('the request to a transcription upstream', () => {
  test('is a multipart form with every option, a content length, and the complete file as the last part', async () => {
    await using at = await openOn(sends(VERBOSE), {
      model: 'whisper-1',
      api_key_env: 'KEY',
      headers: { 'X-Team': 'a' },
    })
    const vad = { threshold: 0.4, silence_duration_ms: 300, prefix_padding_ms: 100 }
    const options = { language: 'de', prompt: 'Ein "Wort"\r\nund', temperature: 0.5, words: true, vad }
    await collectTranscript(at.engine, askTranscript(options), { traceparent: '00-a-b-01' })
    const [call] = at.server.calls
    expect(call?.fields).toEqual({
      model: ['whisper-1'],
      response_format: ['verbose_json'],
      language: ['de'],
      prompt: ['Ein "Wort"\r\nund'],
      temperature: ['0.5'],
      'timestamp_granularities[]': ['segment', 'word'],
      'chunking_strategy[type]': ['server_vad'],
      'chunking_strategy[threshold]': ['0.4'],
      'chunking_strategy[silence_duration_ms]': ['300'],
      'chunking_strategy[prefix_padding_ms]': ['100'],
    })
    expect([call?.file.equals(CONTENT), call?.filename]).toEqual([true, 'audio.wav'])
    expect(call?.headers).toMatchObject({
      authorization: 'Bearer secret',
      'x-team': 'a',
      'idempotency-key': 'job_1:1',
      traceparent: '00-a-b-01',
    })
    expect(Number(call?.headers['content-length'])).toBeGreaterThan(CONTENT.length)
  })

  test('omits options with default values', async () => {
    await using at = await openOn(sends(VERBOSE))
    await collectTranscript(at.engine)
    expect(at.server.calls[0]?.fields).toEqual({
      model: ['s1'],
      response_format: ['verbose_json'],
      'timestamp_granularities[]': ['segment'],
    })
  })

  test.each([
    ['response_format json if the upstream has no segments', { segments: false }, {}, { response_format: ['json'] }],
    [
      'response_format json if log probabilities are requested',
      {},
      { logprobs: true },
      { response_format: ['json'], 'include[]': ['logprobs'] },
    ],
    [
      'stream true if the upstream supports streams',
      { stream: true },
      { stream: true },
      { response_format: ['json'], stream: ['true'] },
    ],
    [
      'no stream field if the upstream does not support streams',
      {},
      { stream: true },
      { response_format: ['verbose_json'] },
    ],
    [
      'no stream field if segments are required',
      { stream: true },
      { stream: true, diarize: true },
      { response_format: ['verbose_json'] },
    ],
    [
      'segment timestamps only if the upstream has no word timestamps',
      { words: false },
      { diarize: true },
      { 'timestamp_granularities[]': ['segment'] },
    ],
  ])('contains %s', async (_, transcription, options, fields) => {
    await using at = await openOn(sends(VERBOSE), {}, { transcription })
    await collectTranscript(at.engine, askTranscript(options))
    expect(at.server.calls[0]?.fields).toMatchObject(fields)
    if (!('stream' in fields)) expect(at.server.calls[0]?.fields).not.toHaveProperty('stream')
  })

  test('reads the file no faster than the upstream reads the request', async () => {
    const sockets: Socket[] = []
    const server = createServer((socket) => void sockets.push(socket.pause()))
    await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve))
    const engine = openOpenAiTranscription(
      speechModel(`http://127.0.0.1:${(server.address() as AddressInfo).port}`),
      {},
    )
    const [piece, count] = [Buffer.alloc(64 * 1024), 1_000]
    let read = 0
    const content = async function* () {
      for (; read < count; read++) yield piece
    }
    const audio = { ...fileOf(), bytes: piece.length * count, open: () => Promise.resolve(Readable.from(content())) }
    const stop = new AbortController()
    const call = collectTranscript(engine, askTranscript(), { signal: stop.signal }, audio)
    call.catch(() => {})
    await untilSteady(() => read)
    // The engine has read nothing. The server could therefore send only as many bytes as the socket buffers hold.
    expect(read * piece.length).toBeLessThan(16 * 1024 * 1024)
    stop.abort('enough')
    await expect(call).rejects.toBe('enough')
    for (const socket of sockets) socket.destroy()
    await engine.close()
    server.close()
  })
})

describe('the response of a transcription upstream', () => {
  test('yields language, duration, text, numbered segments and words from verbose_json', async () => {
    await using at = await openOn(sends(VERBOSE))
    const events = await collectTranscript(at.engine, askTranscript({ words: true }))
    expect(events.map(({ type }) => type)).toEqual(['start', 'text', 'segment', 'segment', 'usage', 'finish'])
    expect(events[0]).toEqual({ type: 'start', language: 'english', duration: 4.2, input_tokens: 50 })
    expect(transcriptOf(events)).toBe('Hello world. Goodbye.')
    const segments = eventsOf(events, 'segment').map(({ segment }) => segment)
    expect(segments.map(({ id, text }) => [id, text])).toEqual([
      [0, ' Hello world.'],
      [1, ' Goodbye.'],
    ])
    expect(segments[0]).toMatchObject({ tokens: [1, 2, 3], avg_logprob: -0.2, no_speech_prob: 0, temperature: 0 })
    // The second word begins in the first segment and ends after it. A word belongs to the segment that contains its middle.
    expect(segments.map(({ words }) => words?.map(({ word }) => word))).toEqual([['Hello', 'world'], ['Goodbye']])
    expect(eventsOf(events, 'usage')[0]?.usage).toEqual({ input_tokens: 50, output_tokens: 4 })
  })

  test('yields words without spaces, and omits empty words, if segments contain words (whisper.cpp)', async () => {
    const words = [
      { word: ' Hi', start: 0, end: 1, probability: 0.9 },
      { word: '', start: 1, end: 1 },
    ]
    await using at = await openOn(sends({ text: ' Hi', segments: [{ id: 0, start: 0, end: 1, text: ' Hi', words }] }))
    const events = await collectTranscript(at.engine, askTranscript({ words: true }))
    expect(eventsOf(events, 'segment')[0]?.segment.words).toEqual([{ word: 'Hi', start: 0, end: 1 }])
  })

  test('yields segments with all of the text if the response has words but no segments', async () => {
    const words = 'One two three four'.split(' ').map((word, at) => ({ word, start: at, end: at + 1 }))
    const said = words.map((word) => (word.word === 'two' ? { ...word, word: 'two.' } : word))
    await using at = await openOn(sends({ text: '"One two." Three – three four!', words: said, duration: '4.0' }))
    const events = await collectTranscript(at.engine)
    const segments = eventsOf(events, 'segment').map(({ segment }) => segment)
    expect(segments.map(({ text, start, end }) => [text, start, end])).toEqual([
      ['"One two." Three – ', 0, 2],
      ['three four!', 2, 4],
    ])
    expect(eventsOf(events, 'start')[0]?.duration).toBe(4)
  })

  test('yields one segment over the whole duration, and an estimated token count, from json', async () => {
    await using at = await openOn(sends({ text: 'Hello world.', usage: { type: 'duration', seconds: 3 } }))
    const events = await collectTranscript(at.engine)
    expect(eventsOf(events, 'segment')).toMatchObject([{ segment: { id: 0, start: 0, end: 3, text: 'Hello world.' } }])
    expect(eventsOf(events, 'usage')[0]?.usage).toEqual({ input_tokens: 30, output_tokens: 3 })
  })

  test('yields no text and no segment if the audio has no speech', async () => {
    await using at = await openOn(sends({ text: '', segments: [] }))
    const events = await collectTranscript(at.engine, askTranscript(), { duration: 2 })
    expect(events.map(({ type }) => type)).toEqual(['start', 'usage', 'finish'])
  })

  test('yields events of bounded size for 20,000 characters and 600 log probabilities', async () => {
    const logprobs = Array.from({ length: 600 }, (_, at) => ({ token: `t${at}`, logprob: -0.5, bytes: [116] }))
    const text = '🎉'.repeat(20_000)
    await using at = await openOn(sends({ text, logprobs }))
    const events = await collectTranscript(at.engine, askTranscript({ logprobs: true }))
    const texts = eventsOf(events, 'text')
    expect(transcriptOf(events)).toBe(text)
    expect(texts.every((event) => event.text.isWellFormed() && event.text.length <= 8_192)).toBe(true)
    expect(texts.flatMap((event) => event.logprobs ?? [])).toEqual(logprobs)
    expect(Math.max(...texts.map((event) => event.logprobs?.length ?? 0))).toBeLessThanOrEqual(256)
  })

  test('yields the token count of the upstream, but the duration of the local decoder', async () => {
    const usage = { type: 'tokens', input_tokens: 14, output_tokens: 45, total_tokens: 59 }
    await using at = await openOn(sends({ ...VERBOSE, usage }))
    const events = await collectTranscript(at.engine, askTranscript({ language: 'en' }), { duration: 4.123 })
    expect(events[0]).toEqual({ type: 'start', language: 'en', duration: 4.123, input_tokens: 14 })
    expect(eventsOf(events, 'usage')[0]?.usage).toEqual({ input_tokens: 14, output_tokens: 45 })
  })
})

describe('the stream of a transcription upstream', () => {
  const stream = { transcription: { stream: true } }
  const wish = askTranscript({ stream: true })

  test('yields each delta as it arrives, and usage at the end (OpenAI)', async () => {
    const done = Promise.withResolvers<void>()
    const usage = { type: 'tokens', input_tokens: 8, output_tokens: 2, total_tokens: 10 }
    await using at = await openOn(
      async (_, answer) => {
        answer.open()
        answer.frame({
          type: 'transcript.text.delta',
          delta: 'Hel',
          logprobs: [{ token: 'Hel', logprob: -1, bytes: [1] }],
        })
        await done.promise
        answer.frame({ type: 'transcript.text.delta', delta: 'lo' })
        answer.frame({ type: 'transcript.text.done', text: 'Hello', usage })
        answer.end()
      },
      {},
      stream,
    )
    const seen: string[] = []
    for await (const event of at.engine.transcribe(wish, fileOf(), transcribeOptions({ duration: 1.5 }))) {
      if (event.type === 'text') seen.push(`${event.text} ${event.logprobs?.length ?? 0}`)
      else seen.push(event.type)
      // The server waits for this promise before it sends the rest. The test thus proves that the first delta is returned before the stream has
      // ended.
      if (event.type === 'text') done.resolve()
    }
    expect(seen).toEqual(['start', 'Hel 1', 'lo 0', 'segment', 'usage', 'finish'])
  })

  test.each([
    [
      'vLLM',
      [chunk('Hello'), chunk(' world'), chunk('', 'stop'), chunk(' again', null), chunk('', 'stop'), '[DONE]'],
      'Hello world again',
    ],
    ['Speaches in json', [{ text: 'Hello.' }, { text: 'Goodbye.' }], 'Hello. Goodbye.'],
    ['a server with all text in the last event', [{ type: 'transcript.text.done', text: ' Hello' }], 'Hello'],
    ['a server that sends no events', [], ''],
  ])('yields the complete text of %s', async (_, frames, text) => {
    await using at = await openOn(streams(...frames), {}, stream)
    const events = await collectTranscript(at.engine, wish, { duration: 2 })
    expect(transcriptOf(events)).toBe(text)
    expect(events.at(-1)).toEqual({ type: 'finish' })
    expect(events.filter(({ type }) => type === 'start')).toHaveLength(1)
  })

  test('yields one segment per frame (Speaches in verbose_json)', async () => {
    const frame = (text: string, start: number) => ({
      ...VERBOSE,
      text,
      words: null,
      segments: [{ id: 9, start, end: start + 1, text: ` ${text}` }],
    })
    await using at = await openOn(streams(frame('One.', 0), frame('Two.', 1)), {}, stream)
    const seconds: number[] = []
    const events = await collectTranscript(at.engine, wish, { onSeconds: (each) => seconds.push(each) })
    expect(events[0]).toMatchObject({ language: 'english', duration: 4.2 })
    expect(transcriptOf(events)).toBe('One. Two.')
    expect(eventsOf(events, 'segment').map(({ segment }) => [segment.id, segment.start])).toEqual([
      [0, 0],
      [1, 1],
    ])
    expect(seconds).toEqual([1, 2])
  })

  test('is parsed as JSON if the server does not stream', async () => {
    await using at = await openOn(sends({ text: 'Hello' }), {}, stream)
    expect(transcriptOf(await collectTranscript(at.engine, wish))).toBe('Hello')
  })

  test('yields whole characters if the server splits a surrogate pair', async () => {
    const delta = (text: string) => ({ type: 'transcript.text.delta', delta: text })
    await using at = await openOn(
      streams(delta('a\ud83c'), delta('\udf89b'), { type: 'transcript.text.done' }),
      {},
      stream,
    )
    const events = await collectTranscript(at.engine, wish)
    expect(eventsOf(events, 'text').every(({ text }) => text.isWellFormed())).toBe(true)
    expect(transcriptOf(events)).toBe('a🎉b')
  })

  test.each<[string, (answer: Answer) => void, string]>([
    ['ends without its last event', (answer) => answer.end(), 'upstream_error'],
    ['ends with a closed connection', (answer) => answer.cut(), 'upstream_error'],
    [
      'contains an error event',
      (answer) => {
        answer.frame({ error: { message: 'out of memory', type: 'server_error' } })
        answer.end()
      },
      'upstream_error',
    ],
    ['pauses for longer than the timeout', () => {}, 'upstream_timeout'],
  ])('fails, instead of yielding an incomplete transcript, if the stream %s', async (_, finish, code) => {
    await using at = await openOn(
      (_, answer) => {
        answer.open()
        answer.frame({ type: 'transcript.text.delta', delta: 'Hello' })
        finish(answer)
      },
      { timeouts: { between_tokens_ms: 100 } },
      stream,
    )
    expect((await transcriptFailure(at.engine, wish)).code).toBe(code)
  })
})

describe('a failing call of a transcription upstream', () => {
  test.each([
    [400, { error: { message: 'too short', code: 'audio_too_short', param: 'file' } }, 'audio_too_short', 'file'],
    [
      400,
      { error: { message: 'no such language', code: 'invalid_language_format', param: 'language' } },
      'invalid_language_format',
      'language',
    ],
    [400, { error: { message: 'bad wish', code: 'other', param: 'prompt' } }, 'invalid_request', 'prompt'],
    [413, { detail: 'too large' }, 'request_too_large', null],
    [401, { error: { message: 'bad key' } }, 'upstream_refused', null],
    [404, 'not here', 'upstream_refused', null],
    [429, { error: { message: 'slow down' } }, 'overloaded', null],
    [500, 'oops', 'upstream_error', null],
    [503, 'loading', 'overloaded', null],
  ])('maps status %i with %j to the error code %s', async (status, body, code, param) => {
    await using at = await openOn((_, answer) => answer.json(body, status, { 'retry-after': '2' }))
    const audio = fileOf()
    const error = await transcriptFailure(at.engine, askTranscript(), {}, audio)
    expect(error).toMatchObject({ code, param })
    if (status === 429) expect(error.retryAfterMs).toBe(2_000)
    await until(() => audio.unclosed === 0)
  })

  test.each([
    ['invalid JSON', (answer: Answer) => answer.text('Hello', 'application/json')],
    ['plain text', (answer: Answer) => answer.text('Hello', 'text/plain')],
    ['JSON without text', (answer: Answer) => answer.json({ segments: [] })],
    ['an error with status 200', (answer: Answer) => answer.json({ error: { message: 'no' } })],
  ])('has the error code upstream_error if the response is %s', async (_, script) => {
    await using at = await openOn((_, answer) => script(answer))
    expect(['upstream_error']).toContain((await transcriptFailure(at.engine)).code)
  })

  test('has the error code upstream_error if the upstream is unreachable', async () => {
    const server = await startSpeechServer({})
    await server[Symbol.asyncDispose]()
    const engine = openOpenAiTranscription(speechModel(server.url), {})
    const audio = fileOf()
    expect((await transcriptFailure(engine, askTranscript(), {}, audio)).code).toBe('upstream_error')
    await until(() => audio.unclosed === 0)
    await engine.close()
  })

  test('is not sent if the audio file is missing', async () => {
    await using at = await openOn(sends(VERBOSE))
    const gone = { ...fileOf(), open: () => Promise.reject(new Error('gone')) }
    await expect(collectTranscript(at.engine, askTranscript(), {}, gone)).rejects.toThrow('gone')
    expect(at.server.calls).toHaveLength(0)
  })

  test('has the error code upstream_error if reading the file fails during the upload', async () => {
    await using at = await openOn(sends(VERBOSE))
    const broken = async function* () {
      yield CONTENT.subarray(0, 5)
      throw new Error('disk')
    }
    const audio = { ...fileOf(), bytes: CONTENT.length, open: () => Promise.resolve(Readable.from(broken())) }
    expect((await transcriptFailure(at.engine, askTranscript(), {}, audio)).code).toBe('upstream_error')
  })

  test('fails like the last call while the circuit breaker is open, without a request to the upstream', async () => {
    await using at = await openOn((_, answer) => answer.json({}, 500), { breaker: { failures: 2, reset_ms: 60_000 } })
    for (let call = 0; call < 2; call++) await transcriptFailure(at.engine)
    const error = await transcriptFailure(at.engine)
    expect([error.code, at.server.calls.length]).toEqual(['upstream_error', 2])
  })
})

describe('an aborted transcription call', () => {
  test.each([
    ['before the response begins', false],
    ['during the stream of the response', true],
  ])('ends with the abort reason %s, and closes the socket and the file', async (_, isOpen) => {
    const received = Promise.withResolvers<void>()
    let closed: Promise<void> | undefined
    await using at = await openOn(
      (call, answer) => {
        closed = call.closed
        if (isOpen) answer.open()
        if (isOpen) answer.frame({ type: 'transcript.text.delta', delta: 'Hello' })
        received.resolve()
      },
      {},
      { transcription: { stream: true } },
    )
    const stop = new AbortController()
    const audio = fileOf()
    const call = collectTranscript(at.engine, askTranscript({ stream: true }), { signal: stop.signal }, audio)
    await received.promise
    stop.abort('cancelled')
    await expect(call).rejects.toBe('cancelled')
    await closed
    await until(() => audio.unclosed === 0)
    expect(getEventListeners(stop.signal, 'abort')).toHaveLength(0)
  })

  test('is never sent if it was waiting for a slot, and does not occupy the slot', async () => {
    const release = Promise.withResolvers<void>()
    const received = Promise.withResolvers<void>()
    await using at = await openOn(
      async (_, answer) => {
        received.resolve()
        await release.promise
        answer.json(VERBOSE)
      },
      { concurrency: 1 },
    )
    const first = collectTranscript(at.engine)
    await received.promise
    const stop = new AbortController()
    const audio = fileOf()
    const second = collectTranscript(at.engine, askTranscript(), { signal: stop.signal }, audio)
    const third = collectTranscript(at.engine)
    stop.abort('late')
    await expect(second).rejects.toBe('late')
    release.resolve()
    await Promise.all([first, third])
    expect([at.server.calls.length, at.server.mostAtOnce]).toEqual([2, 1])
    await until(() => audio.unclosed === 0)
  })

  test('closes its socket if the caller stops reading', async () => {
    let closed: Promise<void> | undefined
    await using at = await openOn(
      (call, answer) => {
        closed = call.closed
        answer.open()
        answer.frame({ type: 'transcript.text.delta', delta: 'Hello' })
      },
      {},
      { transcription: { stream: true } },
    )
    for await (const event of at.engine.transcribe(askTranscript({ stream: true }), fileOf(), transcribeOptions())) {
      if (event.type === 'text') break
    }
    await closed
  })
})

function chunk(content: string, finish_reason: string | null = null) {
  return { id: 'trsc-1', object: 'transcription.chunk', model: 'm', choices: [{ delta: { content }, finish_reason }] }
}

/** Waits until a number has stopped growing. */
async function untilSteady(value: () => number): Promise<void> {
  for (let last = -1, same = 0; same < 5; same = value() === last && last > 0 ? same + 1 : 0) {
    last = value()
    await delay(20)
  }
}
