/*
 * Tests of the transcription worker through the API, with a simulated speech server and a simulated local model server. Tests with the real
 * servers are in transcription.test.ts.
 */

import { rm } from 'node:fs/promises'
import { join } from 'node:path'
import { describe, expect, inject, test } from 'vitest'
import { AudioQuota } from '#services/transcription/audio-quota.ts'
import { ServiceError } from '#shared/lib/error.ts'
import {
  type SpeechCall,
  type SpeechScript,
  type SpeechScripts,
  type SpeechServer,
  startSpeechServer,
} from '../../support/speech/server.ts'
import { framesOf, startTranscriptionWorker, WAVE, type WorkerOptions } from '../../support/speech/worker.ts'
import { until } from '../../support/stack.ts'

const TRANSCRIBE = '/v1/audio/transcriptions'
const VERBOSE = {
  task: 'transcribe',
  language: 'english',
  duration: 4,
  text: 'How are you? Fine.',
  segments: [
    { id: 0, start: 0, end: 3, text: ' How are you?', tokens: [1, 2, 3] },
    { id: 1, start: 3, end: 4, text: ' Fine.', tokens: [4] },
  ],
  words: [word('How', 0), word('are', 1), word('you?', 2), word('Fine.', 3)],
}
const TURNS = [
  { start: 0, end: 1.9, speaker: 'A' },
  { start: 2, end: 4, speaker: 'agent' },
]
const LASTS_4 = { '/audio/probe': sends({ duration: 4 }) }

function word(text: string, start: number) {
  return { word: text, start, end: start + 1 }
}

function sends(body: unknown, status = 200, headers: Record<string, string> = {}): SpeechScript {
  return (_, answer) => answer.json(body, status, headers)
}

/** Returns a script for a simulated server. Each call runs the next of the given scripts, and further calls repeat the last one. */
function inTurn(...scripts: SpeechScript[]): SpeechScript {
  return (call, answer) => (scripts.length > 1 ? scripts.shift() : scripts[0])?.(call, answer)
}

/** Starts a service whose model `s1` runs on a simulated speech server. A second server simulates the local model server. */
async function startOn(
  { upstream = { [TRANSCRIBE]: sends(VERBOSE) }, local = LASTS_4 }: { upstream?: SpeechScripts; local?: SpeechScripts },
  { models, ...options }: Partial<Omit<WorkerOptions, 'models'>> & { models?: (url: string) => object[] } = {},
) {
  const [speech, audio] = [await startSpeechServer(upstream), await startSpeechServer(local)]
  const model = { id: 's1', pool: 'transcription', engine: { type: 'openai', base_url: `${speech.url}/v1` } }
  const service = await startTranscriptionWorker({
    models: models?.(speech.url) ?? [model],
    connect: audio.connect,
    ...options,
  })
  return {
    ...service,
    speech,
    audio,
    async [Symbol.asyncDispose]() {
      await service[Symbol.asyncDispose]()
      await speech[Symbol.asyncDispose]()
      await audio[Symbol.asyncDispose]()
    },
  }
}

function pathsOf(server: SpeechServer): string[] {
  return server.calls.map(({ path }) => path)
}

async function errorOf(response: Response): Promise<Record<string, unknown>> {
  return { status: response.status, ...((await response.json()) as { error: object }).error }
}

describe.each([
  ['embedded', undefined],
  ['through Kafka', inject('kafka')],
])('an audio upload to a worker, %s', { timeout: 60_000 }, (mode, kafka) => {
  test.skipIf(mode !== 'embedded' && !kafka)(
    'reaches the model unchanged, and returns the response of the model',
    async () => {
      await using service = await startOn({}, { kafka: kafka ?? undefined })
      const fields = { model: 's1', response_format: 'verbose_json', 'timestamp_granularities[]': ['word', 'segment'] }
      const answer = (await (await service.upload(fields)).json()) as typeof VERBOSE
      expect(answer).toMatchObject({ language: 'english', duration: 4, text: VERBOSE.text, words: VERBOSE.words })
      expect(answer.segments.map(({ text }) => text)).toEqual([' How are you?', ' Fine.'])
      expect([service.speech.calls[0]?.file.equals(WAVE), service.audio.calls[0]?.file.equals(WAVE)]).toEqual([
        true,
        true,
      ])
      await until(async () => (await service.blobs()).length === 0)
    },
  )
})

describe('the check of audio before transcription', () => {
  test.each([
    ['damaged', { error: { message: 'It is damaged.', code: 'invalid_audio', param: 'file' } }, 400, 'invalid_audio'],
    ['too short', { error: { message: 'x', code: 'audio_too_short', param: 'file' } }, 400, 'audio_too_short'],
    [
      'longer than the maximum of the decoder',
      { error: { message: 'x', code: 'audio_too_long', param: 'file' } },
      400,
      'audio_too_long',
    ],
    ['longer than the maximum of the settings', { duration: 61 }, 200, 'audio_too_long'],
  ])('refuses audio that is %s', async (_, body, status, code) => {
    await using service = await startOn(
      { local: { '/audio/probe': sends(body, status) } },
      { settings: { AUDIO_SECONDS_MAX: '60' } },
    )
    expect(await errorOf(await service.upload({ model: 's1' }))).toMatchObject({ status: 400, code, param: 'file' })
    expect(service.speech.calls).toHaveLength(0)
  })

  test.each([
    ['1 s long', { duration: 1 }, 200],
    ['11 s long', { duration: 11 }, 200],
    ['damaged', { error: { message: 'x', code: 'invalid_audio', param: 'file' } }, 400],
  ])('refuses voice samples if the second one is %s', async (_, body, status) => {
    const probe = inTurn(sends({ duration: 60 }), sends({ duration: 2 }), sends(body, status))
    await using service = await startOn({ local: { '/audio/probe': probe } })
    const sample = `data:audio/wav;base64,${WAVE.toString('base64')}`
    const fields = {
      model: 's1',
      response_format: 'diarized_json',
      'known_speaker_names[]': ['agent', 'client'],
      'known_speaker_references[]': [sample, sample],
    }
    const error = await errorOf(await service.upload(fields))
    expect(error).toMatchObject({ status: 400, code: 'invalid_value', param: 'known_speaker_references[1]' })
    expect([service.speech.calls.length, pathsOf(service.audio)]).toEqual([0, Array(3).fill('/audio/probe')])
  })

  test('returns the duration of the decoded audio instead of the duration from the model', async () => {
    await using service = await startOn({ local: { '/audio/probe': sends({ duration: 4.321 }) } })
    const answer = await (await service.upload({ model: 's1' })).json()
    expect(answer).toMatchObject({ duration: 4.321, usage: { seconds: 5, input_tokens: 50, output_tokens: 4 } })
  })

  test('is skipped if there is no decoder, with one log entry for all calls', async () => {
    const warned: unknown[] = []
    await using service = await startOn(
      {},
      {
        connect: () => Promise.reject(new ServiceError('model_loading', 'install python3')),
        onLog: (line) => line.level === 40 && warned.push([line.msg, line.reason]),
      },
    )
    for (let call = 0; call < 2; call++) {
      expect(await (await service.upload({ model: 's1' })).json()).toMatchObject({ text: VERBOSE.text, duration: 4 })
    }
    expect(warned).toEqual([['audio sent to the model without local validation', 'install python3']])
  })

  test('refuses diarization if there is no decoder', async () => {
    const connect = () => Promise.reject(new ServiceError('model_loading', 'install python3', { retryAfterMs: 60_000 }))
    await using service = await startOn({}, { connect })
    const response = await service.upload({ model: 's1', response_format: 'diarized_json' })
    expect(response.headers.get('retry-after')).toBe('60')
    expect(await errorOf(response)).toMatchObject({ status: 503, code: 'model_loading', message: 'install python3' })
    expect(service.speech.calls).toHaveLength(0)
  })
})

describe('an upload of audio over the limit of its key', () => {
  /** Starts a transcription worker with two slots. The first model call hangs until the promise `go` settles. */
  async function startHanging(go: Promise<void>) {
    const hangs: SpeechScript = async (_, answer) => {
      await go
      answer.open()
      answer.frame({ type: 'transcript.text.done', text: 'first', language: 'en', duration: 3_000 })
      answer.end()
    }
    const speaks: SpeechScript = (_, answer) => {
      answer.open()
      answer.frame({ type: 'transcript.text.done', text: 'later', language: 'en', duration: 1 })
      answer.end()
    }
    const probed = [3_000, 30]
    const probe: SpeechScript = ({ query }, answer) => {
      const seconds = probed.shift() ?? 700
      if (seconds <= Number(query.replace('seconds_max=', ''))) answer.json({ duration: seconds })
      else answer.json({ error: { message: 'x', code: 'audio_too_long', param: 'file' } }, 400)
    }
    const models = () => [
      {
        id: 's1',
        pool: 'transcription',
        engine: { type: 'local', model: 'whisper-tiny.en' },
        transcription: { stream: true },
      },
    ]
    const local = { '/audio/probe': probe, [TRANSCRIBE]: inTurn(hangs, speaks) }
    return await startOn({ local }, { models })
  }

  test('is refused with 429 as a plain call, and waits in the queue as a durable job', async () => {
    const go = Promise.withResolvers<void>()
    await using service = await startHanging(go.promise)
    const first = service.upload({ model: 's1' })
    await until(() => service.audio.calls.some(({ path }) => path === TRANSCRIBE))
    expect(await (await service.upload({ model: 's1' })).json()).toMatchObject({ text: 'later' })

    const refused = await service.upload({ model: 's1' })
    expect(Number(refused.headers.get('retry-after'))).toBeGreaterThan(5)
    expect(await errorOf(refused)).toMatchObject({ status: 429, code: 'rate_limit_exceeded' })

    const job = (await (
      await service.upload({ model: 's1' }, WAVE, { headers: { prefer: 'respond-async' } })
    ).json()) as { id: string }
    const state = async () => (await (await service.get(`/v1/jobs/${job.id}`)).json()) as Record<string, unknown>
    await until(async () => (await state()).attempt === 1 && (await state()).status === 'queued')
    go.resolve()
    expect(await (await first).json()).toMatchObject({ text: 'first' })
    expect(await (await service.upload({ model: 's1' })).json()).toMatchObject({ text: 'later' })
  })
})

describe('the limit on audio in progress per key', () => {
  const share = () => new AudioQuota({ secondsPerKey: 100, secondsMax: 1_000 })

  test('applies only if the key already has another file in progress', () => {
    const files = share()
    const one = files.enter('key_1')
    expect(one.secondsMax).toBe(1_000)
    one.take(30)
    expect([files.enter('key_1').secondsMax, files.enter('key_2').secondsMax]).toEqual([70, 1_000])
  })

  test('allows at least one minute of audio per file, even if earlier files exceed the limit', () => {
    const files = share()
    const one = files.enter('key_1')
    one.take(900)
    const other = files.enter('key_1')
    expect(other.secondsMax).toBe(60)
    expect(() => other.take(61)).toThrow(
      'This key has 900 s of audio in progress on this worker; the maximum is 100 s at once.',
    )
    one.leave()
    other.leave()
    expect(files.enter('key_1').secondsMax).toBe(1_000)
  })

  test('counts all files that are decoded concurrently', () => {
    const files = share()
    const [one, other] = [files.enter('key_1'), files.enter('key_1')]
    one.take(90)
    expect(() => other.take(90)).toThrow('This key has 90 s')
  })
})

describe('diarization', () => {
  const fields = {
    model: 's1',
    response_format: 'diarized_json',
    'known_speaker_names[]': 'agent',
    'known_speaker_references[]': `data:audio/wav;base64,${WAVE.toString('base64')}`,
  }
  const local = { ...LASTS_4, '/diarize': sends({ duration: 4, turns: TURNS }) }

  test('labels segments, which are divided where the speaker changes', async () => {
    await using service = await startOn({ local })
    const answer = (await (await service.upload(fields)).json()) as { text: string; segments: object[] }
    expect(answer.text).toBe('A: How are\nagent: you? Fine.')
    expect(answer.segments).toEqual([
      { type: 'transcript.text.segment', id: 'seg_001', start: 0, end: 2, text: 'How are', speaker: 'A' },
      { type: 'transcript.text.segment', id: 'seg_002', start: 2, end: 3, text: 'you?', speaker: 'agent' },
      { type: 'transcript.text.segment', id: 'seg_003', start: 3, end: 4, text: 'Fine.', speaker: 'agent' },
    ])
    const diarize = service.audio.calls.find(({ path }) => path === '/diarize')
    expect([diarize?.file.equals(WAVE), diarize?.fields['known_speaker_names[]']]).toEqual([true, ['agent']])
  })

  test('does not delay the text of a stream, which precedes the segments with speakers', async () => {
    await using service = await startOn({ local })
    const frames = await framesOf(await service.upload({ ...fields, stream: 'true' }))
    const texts = frames.filter(({ type }) => type === 'transcript.text.delta').map(({ delta }) => delta)
    const speakers = frames.filter(({ type }) => type === 'transcript.text.segment').map(({ speaker }) => speaker)
    expect([texts.join(''), speakers]).toEqual([VERBOSE.text, ['A', 'agent', 'agent']])
    expect(frames.at(-1)).toMatchObject({ type: 'transcript.text.done', text: VERBOSE.text })
  })

  test('that fails cancels the transcription and fails the call', async () => {
    const hanging = Promise.withResolvers<SpeechCall>()
    const hangs: SpeechScript = (call) => hanging.resolve(call)
    const refuses: SpeechScript = async (_, answer) => {
      await hanging.promise
      answer.json(
        { error: { message: 'no voice', code: 'invalid_reference', param: fields['known_speaker_names[]'] } },
        400,
      )
    }
    await using service = await startOn({
      upstream: { [TRANSCRIBE]: hangs },
      local: { ...LASTS_4, '/diarize': refuses },
    })
    expect(await errorOf(await service.upload(fields))).toMatchObject({ status: 400, message: 'no voice' })
    await (await hanging.promise).closed
  })

  test('is cancelled if the transcription model fails', async () => {
    const hanging = Promise.withResolvers<SpeechCall>()
    const hangs: SpeechScript = (call) => hanging.resolve(call)
    const refuses: SpeechScript = async (_, answer) => {
      await hanging.promise
      answer.json({ error: { message: 'no', param: 'prompt' } }, 400)
    }
    await using service = await startOn({
      upstream: { [TRANSCRIBE]: refuses },
      local: { ...LASTS_4, '/diarize': hangs },
    })
    expect(await errorOf(await service.upload(fields))).toMatchObject({ status: 400, param: 'prompt' })
    await (await hanging.promise).closed
  })
})

describe('a failed call of a transcription model', () => {
  test.each([
    ['429', sends({ error: { message: 'slow down' } }, 429, { 'retry-after-ms': '10' })],
    ['500', sends({ error: { message: 'oops' } }, 500)],
    ['a closed connection', ((_, answer) => answer.cut()) as SpeechScript],
  ])('is retried with the complete file after %s', async (_, fails) => {
    await using service = await startOn({ upstream: { [TRANSCRIBE]: inTurn(fails, sends(VERBOSE)) } })
    expect(await (await service.upload({ model: 's1' })).json()).toMatchObject({ text: VERBOSE.text })
    expect(service.speech.calls.map(({ file }) => file.equals(WAVE))).toEqual([true, true])
  })

  test('is not retried if the model refused the request', async () => {
    const refusal = { error: { message: 'No such prompt.', param: 'prompt' } }
    await using service = await startOn({ upstream: { [TRANSCRIBE]: sends(refusal, 400) } })
    expect(await errorOf(await service.upload({ model: 's1' }))).toMatchObject({
      status: 400,
      message: 'No such prompt.',
      param: 'prompt',
    })
    expect(service.speech.calls).toHaveLength(1)
  })

  test('is repeated with the fallback model after status 401', async () => {
    const engine = (url: string, path: string) => ({ type: 'openai', base_url: `${url}/${path}` })
    const models = (url: string) => [
      { id: 's1', pool: 'transcription', engine: engine(url, 'v1'), fallbacks: ['s2'] },
      { id: 's2', pool: 'transcription', engine: engine(url, 'v2') },
    ]
    const upstream = { [TRANSCRIBE]: sends({}, 401), '/v2/audio/transcriptions': sends({ text: 'instead' }) }
    await using service = await startOn({ upstream }, { models })
    expect(await (await service.upload({ model: 's1' })).json()).toMatchObject({ text: 'instead' })
    expect(service.speech.calls.map(({ fields }) => fields.model)).toEqual([['s1'], ['s2']])
  })

  test('ends the stream with an error if text was already sent', async () => {
    const seen = Promise.withResolvers<void>()
    const breaks: SpeechScript = async (_, answer) => {
      answer.open()
      answer.frame({ type: 'transcript.text.delta', delta: 'How are' })
      await seen.promise
      answer.cut()
    }
    const transcription = { stream: true }
    const models = (url: string) => [
      { id: 's1', pool: 'transcription', engine: { type: 'openai', base_url: `${url}/v1` }, transcription },
    ]
    await using service = await startOn({ upstream: { [TRANSCRIBE]: breaks } }, { models })
    const response = await service.upload({ model: 's1', stream: 'true' })
    seen.resolve()
    expect(await framesOf(response)).toMatchObject([{ delta: 'How are' }, { error: { code: 'upstream_error' } }])
    expect(service.speech.calls).toHaveLength(1)
  })
})

describe('a caller that disconnects from a transcription', () => {
  test('cancels the model and the decoder within a second', async () => {
    const received = Promise.withResolvers<{ closed: Promise<void> }>()
    await using service = await startOn({ upstream: { [TRANSCRIBE]: (call) => received.resolve(call) } })
    const stop = new AbortController()
    const response = service.upload({ model: 's1' }, WAVE, { signal: stop.signal })
    response.catch(() => {})
    const { closed } = await received.promise
    stop.abort()
    await closed
    await until(async () => (await service.blobs()).length === 0)
  })
})

describe('a durable transcription in a worker', () => {
  const durable = { headers: { prefer: 'respond-async' } }
  type Job = {
    id: string
    status: string
    progress?: { phase: string; percent: number }
    result: object
    error: { code: string }
  }
  const jobOf = async (service: { get(path: string): Promise<Response> }, id: string) =>
    (await (await service.get(`/v1/jobs/${id}`)).json()) as Job

  test('reports its progress and stores its result', async () => {
    const go = Promise.withResolvers<void>()
    const speaks: SpeechScript = async (_, answer) => {
      answer.open()
      answer.frame({ type: 'transcript.text.delta', delta: 'How are you?' })
      answer.frame({ type: 'sluice.progress', seconds: 3, duration: 4 })
      await go.promise
      answer.frame({ type: 'transcript.text.delta', delta: ' Fine.' })
      answer.frame({ type: 'transcript.text.done', text: 'How are you? Fine.', language: 'en', duration: 4 })
      answer.end()
    }
    const models = () => [
      {
        id: 's1',
        pool: 'transcription',
        engine: { type: 'local', model: 'whisper-tiny.en' },
        transcription: { languages: ['en'] },
      },
    ]
    await using service = await startOn({ local: { ...LASTS_4, [TRANSCRIBE]: speaks } }, { models })
    const { id } = (await (await service.upload({ model: 's1' }, WAVE, durable)).json()) as Job
    const under = await until(async () => {
      const { progress } = await jobOf(service, id)
      return progress?.percent === 75 ? progress : undefined
    })
    expect(under).toMatchObject({ phase: 'transcribing', message: '3 of 4 seconds' })
    go.resolve()
    const done = await until(async () => {
      const job = await jobOf(service, id)
      return job.status === 'completed' ? job : undefined
    })
    expect(done.result).toMatchObject({ text: 'How are you? Fine.', duration: 4 })
  })

  test('fails with a server error if its audio was deleted', async () => {
    const go = Promise.withResolvers<void>()
    const waits: SpeechScript = async (_, answer) => {
      await go.promise
      answer.json({ error: { message: 'busy' } }, 500)
    }
    await using service = await startOn({ local: { '/audio/probe': waits } })
    const { id } = (await (await service.upload({ model: 's1' }, WAVE, durable)).json()) as Job
    await until(() => service.audio.calls.length > 0)
    for (const name of await service.blobs()) await rm(join(service.blobDir, name))
    go.resolve()
    const failed = await until(async () => {
      const job = await jobOf(service, id)
      return job.status === 'failed' ? job : undefined
    })
    expect(failed.error).toMatchObject({ code: 'internal_error' })
    expect(service.speech.calls).toHaveLength(0)
  })

  test('aborts the upstream call when the job is cancelled', async () => {
    const received = Promise.withResolvers<{ closed: Promise<void> }>()
    await using service = await startOn({ upstream: { [TRANSCRIBE]: (call) => received.resolve(call) } })
    const { id } = (await (await service.upload({ model: 's1' }, WAVE, durable)).json()) as Job
    const { closed } = await received.promise
    await service.cancel(id)
    await closed
    await until(async () => (await jobOf(service, id)).status === 'cancelled')
  })
})
