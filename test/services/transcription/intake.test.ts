import { Readable } from 'node:stream'
import { afterAll, beforeAll, describe, expect, it } from 'vitest'
import { ServiceError } from '#shared/lib/error.ts'
import type { WireJob } from '../../support/jobs/api.ts'
import { openRaw } from '../../support/raw-http.ts'
import {
  FORM_TYPE,
  formBytes,
  type Part,
  PLAIN,
  partsOf,
  type SeenRequest,
  SPEECH,
  sha256,
  speak,
  startTranscriptions,
  TRANSCRIPTIONS,
  type Transcriptions,
  wav,
} from '../../support/speech/service.ts'
import { TEST_KEY, until } from '../../support/stack.ts'
import { openWs } from '../../support/ws.ts'

const AUDIO = wav(1.5)
const MODEL: Part = { name: 'model', value: SPEECH }
const FILE: Part = { name: 'file', filename: 'a.wav', type: 'audio/x-wav', value: AUDIO }

describe('the transcription endpoint', () => {
  let service: Transcriptions
  beforeAll(async () => {
    service = await startTranscriptions()
  })
  afterAll(() => service[Symbol.asyncDispose]())

  /** Uploads a form, and returns the request that the worker received. */
  const received = async (parts: readonly Part[], init?: RequestInit): Promise<SeenRequest> => {
    const response = await service.uploadParts(parts, init)
    expect({ status: response.status, text: await response.text() }).toMatchObject({ status: 200 })
    return service.seen.at(-1) as SeenRequest
  }
  const fields = (more: Record<string, string | string[]>) => received(partsOf({ model: SPEECH, ...more }, AUDIO))

  it.each([
    ['first', [FILE, MODEL]],
    ['last', [MODEL, FILE]],
    ['in the middle of the fields', [MODEL, FILE, { name: 'prompt', value: 'Names' }]],
  ])('accepts a form with the file %s', async (_place, parts) => {
    const request = await received(parts)

    expect(request.heard).toBe(sha256(AUDIO))
    expect(request.audio).toMatchObject({ sha256: sha256(AUDIO), bytes: AUDIO.length, format: 'wav' })
  })

  it.each([
    ['unknown_file', 'application/octet-stream'],
    ['upload', 'application/octet-stream'],
    ['blob', undefined],
    ['notes.txt', 'text/plain'],
    ['speech.mp3', 'audio/mpeg'],
  ])(
    'accepts a file with the name %s and the type %s, because the content determines the format',
    async (filename, type) => {
      const file = { name: 'file', filename, value: AUDIO, ...(type !== undefined && { type }) }

      expect((await received([file, MODEL])).audio.format).toBe('wav')
    },
  )

  it('accepts a body without Content-Length whose first 300 bytes arrive one by one', async () => {
    const bytes = formBytes([FILE, MODEL])
    const pieces = [...Array.from(bytes.subarray(0, 300), (byte) => Buffer.of(byte)), bytes.subarray(300)]
    const init = { method: 'POST', body: Readable.from(pieces), duplex: 'half' } as unknown as RequestInit

    const response = await fetch(service.url + TRANSCRIPTIONS, {
      ...init,
      headers: { authorization: `Bearer ${TEST_KEY}`, 'content-type': FORM_TYPE },
    })

    expect(response.status).toBe(200)
    expect(service.seen.at(-1)?.heard).toBe(sha256(AUDIO))
  })

  it.each([
    ['wav', Buffer.from('RIFF....WAVEfmt '), 'wav'],
    ['flac', Buffer.from('fLaC\0\0\0\x22'), 'flac'],
    ['mp3 without a tag', Buffer.from([0xff, 0xfb, 0x90, 0x64]), 'mp3'],
    ['mp3 of version 2.5', Buffer.from([0xff, 0xe3, 0x18, 0xc4]), 'mp3'],
    ['ogg', Buffer.from('OggS\0\x02'), 'ogg'],
    ['webm', Buffer.from([0x1a, 0x45, 0xdf, 0xa3]), 'webm'],
    ['mp4', Buffer.from('\0\0\0\x20ftypisom'), 'mp4'],
    ['m4a', Buffer.from('\0\0\0\x20ftypM4A '), 'mp4'],
    ['mpeg', Buffer.from([0, 0, 1, 0xba]), 'mpeg'],
    ['mpeg video', Buffer.from([0, 0, 1, 0xb3]), 'mpeg'],
    ['mp3 after an ID3 tag', Buffer.concat([id3(40_000), Buffer.from([0xff, 0xfb, 0x90, 0x64])]), 'mp3'],
    ['mp3 after two ID3 tags', Buffer.concat([id3(5), id3(90_000), Buffer.from([0xff, 0xfb, 0x90, 0x64])]), 'mp3'],
    ['flac after an ID3 tag', Buffer.concat([id3(200), Buffer.from('fLaC')]), 'flac'],
  ])('accepts the content of %s without a known file name or type', async (_what, head, format) => {
    const value = Buffer.concat([head, Buffer.alloc(500)])

    const request = await received([{ name: 'file', filename: 'upload', value }, MODEL])

    expect(request.audio.format).toBe(format)
    expect(request.heard).toBe(sha256(value))
  })

  it.each([
    ['mpga', 'mp3'],
    ['M4A', 'mp4'],
    ['mpeg', 'mpeg'],
  ])('accepts unknown content if its file name ends in .%s', async (extension, format) => {
    const file = { name: 'file', filename: `a.b.${extension}`, value: Buffer.alloc(500) }

    expect((await received([file, MODEL])).audio.format).toBe(format)
  })

  it('deletes the blob of the file at the end of the call', async () => {
    expect((await fields({})).audio.blob).toMatch(/^job_\w{32}-\w{8}$/)
    expect(await until(async () => (await service.blobs()).length === 0)).toBe(true)
  })

  it('accepts the alias of a model', async () => {
    const request = await received(partsOf({ model: 'plain' }))

    expect(request.model).toBe(PLAIN)
  })

  it('uses defaults for all optional fields', async () => {
    const { heard: _heard, blob: _blob, audio: _audio, ...request } = await fields({})

    expect(request).toEqual({
      model: SPEECH,
      temperature: 0,
      words: false,
      logprobs: false,
      diarize: false,
      speakers: [],
      stream: false,
    })
  })

  it('parses numbers and booleans from text, and treats empty fields as absent', async () => {
    const request = await fields({
      temperature: '0.40',
      stream: 'True',
      language: '',
      prompt: 'Dr. Müller',
      'include[]': '',
    })

    expect(request).toMatchObject({ temperature: 0.4, stream: true, prompt: 'Dr. Müller' })
    expect(request.language).toBeUndefined()
  })

  it.each([['timestamp_granularities[]'], ['timestamp_granularities'], ['timestamp_granularities[0]']])(
    'parses a list written as %s',
    async (name) => {
      expect((await fields({ response_format: 'verbose_json', [name]: 'word' })).words).toBe(true)
    },
  )

  it('sorts the known speakers by the index in their field names', async () => {
    const request = await fields({
      response_format: 'diarized_json',
      'known_speaker_names[1]': 'customer',
      'known_speaker_names[0]': 'agent',
      'known_speaker_references[0]': dataUrl(wav(2)),
      'known_speaker_references[1]': dataUrl(wav(3)),
    })

    expect(request.speakers.map(({ name }) => name)).toEqual(['agent', 'customer'])
    expect(request.speakers[1]?.reference).toBe(wav(3).toString('base64'))
  })

  it.each<[string, Record<string, string>, object]>([
    ['auto', { chunking_strategy: 'auto' }, { threshold: 0.5, silence_duration_ms: 200, prefix_padding_ms: 300 }],
    [
      'JSON',
      { chunking_strategy: '{"type":"server_vad","threshold":0.4}' },
      { threshold: 0.4, silence_duration_ms: 200, prefix_padding_ms: 300 },
    ],
    [
      'JSON after a byte order mark',
      { chunking_strategy: '\uFEFF{"type":"server_vad","threshold":0.4}' },
      { threshold: 0.4, silence_duration_ms: 200, prefix_padding_ms: 300 },
    ],
    [
      'separate fields',
      {
        'chunking_strategy[type]': 'server_vad',
        'chunking_strategy[threshold]': '0.4',
        'chunking_strategy[silence_duration_ms]': '900',
        'chunking_strategy[prefix_padding_ms]': '10',
      },
      { threshold: 0.4, silence_duration_ms: 900, prefix_padding_ms: 10 },
    ],
    ['nothing with diarization', { response_format: 'diarized_json' }, { threshold: 0.5 }],
  ])('parses a chunking strategy written as %s', async (_how, strategy, vad) => {
    expect((await fields(strategy)).vad).toMatchObject(vad)
  })

  it.each([
    ['DE', 'de'],
    ['jv', 'jw'],
    ['nb', 'no'],
    ['haw', 'haw'],
    ['ga', 'ga'],
  ])('maps the language code %s to %s', async (given, code) => {
    expect((await fields({ language: given })).language).toBe(code)
  })

  it('uses a single language hint as the language, and adds hinted words to the prompt', async () => {
    const request = await fields({ 'languages[]': 'fr', prompt: 'Earlier.', 'keywords[]': ['Sluice', 'Kafka'] })

    expect(request).toMatchObject({ language: 'fr', prompt: 'Earlier.\nSluice, Kafka' })
  })

  it('ignores unknown fields', async () => {
    expect(await fields({ 'x[y][z]': '1', constructor: 'a', task: 'translate' })).toBeDefined()
  })

  it('accepts JSON in a job, with the audio in base64', async () => {
    const body = { model: SPEECH, file: dataUrl(AUDIO), response_format: 'verbose_json', language: 'en' }

    const job = await jobOf(service.post('/v1/jobs', { endpoint: TRANSCRIPTIONS, body }))
    const ended = await jobOf(service.get(`/v1/jobs/${job.id}?wait=20`))

    expect(ended).toMatchObject({ status: 'completed', result: { task: 'transcribe', language: 'english' } })
    expect(service.seen.at(-1)).toMatchObject({ heard: sha256(AUDIO), audio: { format: 'wav', bytes: AUDIO.length } })
  })

  it('accepts JSON in a job, with the audio in base64 and a file name', async () => {
    const file = { data: Buffer.alloc(200).toString('base64'), filename: 'a.mp3' }

    const job = await jobOf(service.post('/v1/jobs', { endpoint: TRANSCRIPTIONS, body: { model: SPEECH, file } }))
    await service.get(`/v1/jobs/${job.id}?wait=20`)

    expect(service.seen.at(-1)?.audio.format).toBe('mp3')
  })
})

describe('an upload that fails or whose caller disconnects', () => {
  it('leaves no blob if the client disconnects in the middle of the file', async () => {
    await using service = await startTranscriptions()
    const form = formBytes([FILE, MODEL])
    using client = await openRaw(service.url)
    client.send(head(form.length))
    client.send(form.subarray(0, 20_000))
    await until(async () => (await service.blobs()).length === 1)

    client.socket.destroy()

    await until(async () => (await service.blobs()).length === 0)
    expect(service.seen).toEqual([])
  })

  it('leaves no blob if the client disconnects between the file and the fields', async () => {
    await using service = await startTranscriptions()
    const form = formBytes([FILE, MODEL])
    using client = await openRaw(service.url)
    client.send(head(form.length))
    client.send(form.subarray(0, form.length - 20))
    await until(async () => (await service.blobs()).some((name) => name.startsWith('job_')))

    client.socket.destroy()

    await until(async () => (await service.blobs()).length === 0)
    expect(service.seen).toEqual([])
  })

  it('leaves no blob and gets 408 if the client stops sending', async () => {
    await using service = await startTranscriptions({ settings: { BODY_STALL_MS: '100' } })
    const form = formBytes([FILE, MODEL])
    using client = await openRaw(service.url)
    client.send(head(form.length))
    client.send(form.subarray(0, 20_000))

    const answer = await client.answer()

    expect(answer).toMatchObject({ status: 408, headers: { 'x-should-retry': 'true' } })
    expect(JSON.parse(answer.body).error.code).toBe('request_timeout')
    await until(async () => (await service.blobs()).length === 0)
  })

  it('leaves no blob if the file exceeds the size limit while the client is sending', async () => {
    await using service = await startTranscriptions({ settings: { AUDIO_BYTES_MAX: '30000' } })
    const [start = Buffer.alloc(0), rest = Buffer.alloc(0)] = splitAt(formBytes([FILE, MODEL]), 40_000)
    using client = await openRaw(service.url)
    client.send(head(undefined))
    client.send(chunk(start))

    const answer = await client.answer()

    expect(answer.status).toBe(413)
    expect(JSON.parse(answer.body).error).toMatchObject({ code: 'request_too_large', param: 'file' })
    client.send(chunk(rest))
    await until(async () => (await service.blobs()).length === 0)
  })

  it('leaves no blob if the fields after the file are refused', async () => {
    await using service = await startTranscriptions()

    const response = await service.uploadParts(partsOf({ model: SPEECH, temperature: '5' }))

    expect(response.status).toBe(400)
    await until(async () => (await service.blobs()).length === 0)
  })

  it('leaves no blob if the caller disconnects after the upload, during the transcription', async () => {
    const { promise: isAborted, resolve } = Promise.withResolvers<void>()
    await using service = await startTranscriptions({
      async *script(_request, { signal }) {
        await new Promise<void>((done) => signal.addEventListener('abort', () => done()))
        resolve()
        signal.throwIfAborted()
      },
    })
    const leave = new AbortController()
    const call = service.uploadParts(partsOf({ model: SPEECH }), { signal: leave.signal }).catch(() => {})
    await until(() => service.seen.length === 1)

    leave.abort()

    await Promise.all([isAborted, call])
    await until(async () => (await service.blobs()).length === 0)
  })
})

const ask = (service: Transcriptions, headers: Record<string, string>, more: Record<string, string> = {}) =>
  service.uploadParts(partsOf({ model: SPEECH, ...more }, AUDIO), { headers })

describe('a durable transcription', () => {
  it('is accepted with 202, and its audio blob is stored until the job is deleted', async () => {
    await using service = await startTranscriptions()

    const response = await ask(service, { prefer: 'respond-async' }, { response_format: 'srt' })
    const job = await jobOf(response)
    const ended = await jobOf(service.get(`/v1/jobs/${job.id}?wait=20`))
    const result = await service.get(`/v1/jobs/${job.id}/result`)

    expect(response.status).toBe(202)
    expect(ended).toMatchObject({ status: 'completed', endpoint: TRANSCRIPTIONS })
    expect(result.headers.get('content-type')).toBe('text/plain; charset=utf-8')
    expect(await result.text()).toMatch(/^1\n00:00:00,000 --> 00:00:01,300\nHello world.\n\n/)
    expect(await service.blobs()).toEqual([service.seen[0]?.blob])
    await (await fetch(`${service.url}/v1/jobs/${job.id}`, { method: 'DELETE', headers: bearer() })).text()
    await until(async () => (await service.blobs()).length === 0)
  })

  it('runs once for equal uploads with one idempotency key, and deletes the second blob', async () => {
    await using service = await startTranscriptions()

    const first = await ask(service, { 'idempotency-key': 'k1' }, { temperature: '0' })
    const firstText = await first.text()
    const [blob] = await service.blobs()
    // The second call must count as equal to the first one. Only the order of its parts, the name of its file and the spelling of a number
    // differ.
    const parts = [{ name: 'temperature', value: '0.0' }, MODEL, { ...FILE, filename: 'other.wav' }]
    const second = await service.uploadParts(parts, { headers: { 'idempotency-key': 'k1' } })

    expect(second.headers.get('idempotency-replayed')).toBe('true')
    expect(await second.text()).toBe(firstText)
    expect(service.seen).toHaveLength(1)
    await until(async () => (await service.blobs()).length === 1)
    expect(await service.blobs()).toEqual([blob])
  })

  it.each([
    ['another file', { audio: wav(2), fields: {} }],
    ['another field', { audio: AUDIO, fields: { language: 'de' } }],
  ])('is refused for an idempotency key that was used with %s', async (_what, { audio, fields }) => {
    await using service = await startTranscriptions()
    await (await ask(service, { 'idempotency-key': 'k1' })).text()

    const headers = { 'idempotency-key': 'k1' }
    const response = await service.uploadParts(partsOf({ model: SPEECH, ...fields }, audio), { headers })

    expect(response.status).toBe(422)
    expect(await response.json()).toMatchObject({ error: { code: 'idempotency_key_reused' } })
    await until(async () => (await service.blobs()).length === 1)
  })

  it('that failed runs again as a new job with a copy of the audio', async () => {
    let tries = 0
    await using service = await startTranscriptions({
      async *script(request) {
        if (tries++ === 0) throw new ServiceError('invalid_audio', 'The file cannot be decoded.', { param: 'file' })
        yield* speak(request)
      },
    })
    const job = await jobOf(ask(service, { prefer: 'respond-async' }))
    const failed = await jobOf(service.get(`/v1/jobs/${job.id}?wait=20`))

    const again = await jobOf(service.post(`/v1/jobs/${job.id}/redrive`, {}))
    const ended = await jobOf(service.get(`/v1/jobs/${again.id}?wait=20`))

    expect(failed).toMatchObject({ status: 'failed', error: { code: 'invalid_audio', param: 'file', status: 400 } })
    expect(ended).toMatchObject({ status: 'completed', parent_id: job.id })
    expect(new Set(service.seen.map(({ blob }) => blob)).size).toBe(2)
    expect(service.seen.every(({ heard }) => heard === sha256(AUDIO))).toBe(true)
  })

  it('returns an equal stream for a repeated request with its idempotency key', async () => {
    await using service = await startTranscriptions()

    const plain = await (await ask(service, {}, { stream: 'true' })).text()
    const kept = await (await ask(service, { 'idempotency-key': 'k1' }, { stream: 'true' })).text()
    const replayed = await (await ask(service, { 'idempotency-key': 'k1' }, { stream: 'true' })).text()

    expect(textOf(kept)).toBe('Hello world. How are you?')
    expect(lastOf(kept)).toEqual(lastOf(plain))
    expect(replayed).toBe(kept)
  })
})

describe('a transcription over a WebSocket', () => {
  const file = dataUrl(AUDIO)

  it('streams the same events as over HTTP unless stream is false', async () => {
    await using service = await startTranscriptions()
    using client = await openWs(service)

    client.send({ type: 'request.create', id: 'a', endpoint: TRANSCRIPTIONS, body: { model: SPEECH, file } })
    const body = { model: SPEECH, file: { data: AUDIO.toString('base64'), filename: 'a.wav' }, stream: false }
    client.send({ type: 'request.create', id: 'b', endpoint: TRANSCRIPTIONS, body })

    expect(await client.end('a')).toMatchObject({ type: 'request.completed', status: 200, body: null })
    expect(await client.end('b')).toMatchObject({ body: { text: 'Hello world. How are you?', duration: 2.71 } })
    const events = client.about('a').flatMap((frame) => (frame.type === 'request.event' ? [frame.event] : []))
    expect(events.at(-1)).toMatchObject({ type: 'transcript.text.done', text: 'Hello world. How are you?' })
    expect(service.seen.map(({ heard }) => heard)).toEqual([sha256(AUDIO), sha256(AUDIO)])
  })

  it('returns subtitles as text in one frame', async () => {
    await using service = await startTranscriptions()
    using client = await openWs(service)

    const body = { model: SPEECH, file, response_format: 'srt' }
    client.send({ type: 'request.create', id: 'a', endpoint: TRANSCRIPTIONS, body })

    expect(await client.end('a')).toMatchObject({ status: 200, body: expect.stringContaining('00:00:00,000 --> ') })
  })

  it('is refused with the path of the invalid field if its body is invalid', async () => {
    await using service = await startTranscriptions()
    using client = await openWs(service)
    const body = { model: SPEECH, file, response_format: 'vtt', stream: true }

    client.send({ type: 'request.create', id: 'a', endpoint: TRANSCRIPTIONS, body })

    expect(await client.end('a')).toMatchObject({ type: 'request.failed', status: 400, error: { param: 'stream' } })
  })
})

describe('the tokens of a transcription', () => {
  it('count against the rate limit of the key in every response format', async () => {
    await using service = await startTranscriptions({ settings: { RATE_LIMIT_TOKENS: '1000' } })
    const left = async (format: string) => {
      const response = await service.uploadParts(partsOf({ model: SPEECH, response_format: format }))
      await response.text()
      return Number(response.headers.get('x-ratelimit-remaining-tokens'))
    }

    expect([await left('srt'), await left('verbose_json'), await left('json')]).toEqual([1_000, 965, 930])
  })

  it('are in the usage of a durable job in every response format', async () => {
    await using service = await startTranscriptions()
    const usageOf = async (format: string) => {
      const response = await ask(service, { 'idempotency-key': format }, { response_format: format })
      await response.text()
      const job = await service.get(`/v1/jobs/${response.headers.get('x-job-id')}`)
      return ((await job.json()) as { usage: unknown }).usage
    }

    const counted = { input_tokens: 28, output_tokens: 7 }
    expect(await usageOf('srt')).toEqual(counted)
    expect(await usageOf('verbose_json')).toEqual({ ...counted, type: 'duration', seconds: 3 })
  })

  it('are estimated if the caller disconnects before the end', async () => {
    await using service = await startTranscriptions({
      settings: { RATE_LIMIT_TOKENS: '1000' },
      async *script(_request, { signal }) {
        yield { type: 'start', language: 'en', duration: 9, input_tokens: 90 }
        yield { type: 'text', text: 'Twenty characters at' }
        await new Promise<void>((done) => signal.addEventListener('abort', () => done()))
      },
    })
    const leave = new AbortController()
    const parts = partsOf({ model: SPEECH, stream: 'true' })
    const response = await service.uploadParts(parts, { signal: leave.signal })
    await response.body?.getReader().read()

    leave.abort()

    const left = async () => (await service.get('/v1/models')).headers.get('x-ratelimit-remaining-tokens')
    await until(async () => (await left()) === '905')
  })
})

async function jobOf(response: Response | Promise<Response>): Promise<WireJob> {
  return (await (await response).json()) as WireJob
}

/** Parses the JSON data of each event in a stream, and leaves out the end mark `[DONE]`. */
function eventsOf(stream: string): Record<string, unknown>[] {
  const lines = stream.split('\n').filter((line) => line.startsWith('data: {'))
  return lines.map((line) => JSON.parse(line.slice('data: '.length)))
}

function textOf(stream: string): string {
  return eventsOf(stream)
    .map(({ delta }) => delta ?? '')
    .join('')
}

function lastOf(stream: string): unknown {
  return eventsOf(stream).at(-1)
}

function id3(bytes: number): Buffer {
  const size = [21, 14, 7, 0].map((shift) => (bytes >> shift) & 0x7f)
  return Buffer.concat([Buffer.from('ID3\x04\0\0'), Buffer.from(size), Buffer.alloc(bytes, 0xff)])
}

function dataUrl(audio: Buffer): string {
  return `data:audio/wav;base64,${audio.toString('base64')}`
}

function bearer(): Record<string, string> {
  return { authorization: `Bearer ${TEST_KEY}` }
}

/** Returns the HTTP request head of an upload over a raw connection. If `length` is undefined, the body is chunked. */
function head(length: number | undefined): string {
  const framing = length === undefined ? 'transfer-encoding: chunked' : `content-length: ${length}`
  const lines = ['host: test', `authorization: Bearer ${TEST_KEY}`, `content-type: ${FORM_TYPE}`, framing]
  return `POST ${TRANSCRIPTIONS} HTTP/1.1\r\n${lines.join('\r\n')}\r\n\r\n`
}

function chunk(bytes: Buffer): Buffer {
  return Buffer.concat([Buffer.from(`${bytes.length.toString(16)}\r\n`), bytes, Buffer.from('\r\n')])
}

function splitAt(bytes: Buffer, at: number): Buffer[] {
  return [bytes.subarray(0, at), bytes.subarray(at)]
}
