import { gzipSync } from 'node:zlib'
import { afterAll, beforeAll, describe, expect, it } from 'vitest'
import { openRaw, rawRequest } from '../../support/raw-http.ts'
import {
  BOUNDARY,
  FORM_TYPE,
  formBytes,
  type Part,
  PLAIN,
  partsOf,
  SPEECH,
  startTranscriptions,
  TRANSCRIPTIONS,
  type Transcriptions,
  wav,
} from '../../support/speech/service.ts'
import { TEST_KEY, until } from '../../support/stack.ts'

const MODEL: Part = { name: 'model', value: SPEECH }
const AUDIO = wav(1)
const VOICE = `data:audio/wav;base64,${wav(2).toString('base64')}`
const audio = (value: Buffer, filename = 'a.wav'): Part => ({ name: 'file', filename, value })
const FILE = audio(AUDIO)

let service: Transcriptions
beforeAll(async () => {
  service = await startTranscriptions({ settings: { AUDIO_BYTES_MAX: '200000' } })
})
afterAll(() => service[Symbol.asyncDispose]())

/** Uploads a form that must be refused, and returns the error. Waits until no blob of the upload remains. */
async function refusal(parts: readonly Part[]): Promise<object> {
  return await errorOf(await service.uploadParts(parts))
}

async function errorOf(response: Response): Promise<object> {
  const { error } = (await response.json()) as { error: object }
  await until(async () => (await service.blobs()).length === 0)
  return { status: response.status, ...error }
}

/** Sends raw bytes as the body of a form, and returns the error. */
async function sendBytes(body: Buffer | string, headers: Record<string, string> = {}): Promise<object> {
  return await errorOf(
    await fetch(service.url + TRANSCRIPTIONS, {
      method: 'POST',
      headers: { authorization: `Bearer ${TEST_KEY}`, 'content-type': FORM_TYPE, ...headers },
      body: typeof body === 'string' ? body : new Uint8Array(body),
    }),
  )
}

describe('an audio upload', () => {
  it.each<[string, Part[], object]>([
    ['if there is no file', [MODEL], { code: 'missing_required_parameter' }],
    [
      'if the file is empty',
      [MODEL, audio(Buffer.alloc(0))],
      { code: 'invalid_audio', message: 'The audio file is empty.' },
    ],
    ['if there are two files', [FILE, FILE, MODEL], { code: 'invalid_value' }],
    [
      'if the part has no filename',
      [{ name: 'file', type: 'audio/wav', value: AUDIO }, MODEL],
      { code: 'invalid_type' },
    ],
    ['if the filename is empty', [audio(AUDIO, ''), MODEL], { code: 'invalid_type' }],
    ['if the part is a plain field', [{ name: 'file', value: '/tmp/speech.wav' }, MODEL], { code: 'invalid_type' }],
    ['if the part is a data URL in a plain field', [{ name: 'file', value: VOICE }, MODEL], { code: 'invalid_type' }],
    [
      'if the file is text',
      [MODEL, audio(Buffer.from('<html><body>404 Not Found</body></html>'))],
      { code: 'invalid_audio' },
    ],
    ['if the file is an archive', [MODEL, audio(Buffer.from('PK\x03\x04....'), 'a.mp3')], { code: 'invalid_audio' }],
    ['if the file is compressed by gzip', [MODEL, audio(gzipSync(AUDIO))], { code: 'invalid_audio' }],
    ['if the file is a picture', [MODEL, audio(Buffer.from('\x89PNG\r\n\x1a\n', 'latin1'))], { code: 'invalid_audio' }],
    [
      'if the file is a RIFF container of a picture',
      [MODEL, audio(Buffer.from('RIFF\0\0\0\0WEBPVP8 '))],
      { code: 'invalid_audio' },
    ],
    [
      'if the file ends within its ID3 tag',
      [MODEL, audio(Buffer.from('ID3\x04\0\0\0\0\x7f\x7fTIT2'), 'a.mp3')],
      { code: 'invalid_audio' },
    ],
    [
      'if neither content nor name shows the format',
      [MODEL, audio(Buffer.alloc(99), 'upload')],
      { code: 'invalid_audio' },
    ],
    [
      'if the name has the extension of a text file',
      [MODEL, audio(Buffer.alloc(99), 'a.txt')],
      { code: 'invalid_audio' },
    ],
  ])('is refused with 400 %s', async (_when, parts, error) => {
    expect(await refusal(parts)).toMatchObject({ status: 400, type: 'invalid_request_error', param: 'file', ...error })
  })

  it('is accepted at the size limit, and refused one byte over the limit', async () => {
    const largest = Buffer.concat([AUDIO, Buffer.alloc(200_000 - AUDIO.length)])

    expect((await service.uploadParts([MODEL, audio(largest)])).status).toBe(200)
    expect(await refusal([MODEL, audio(Buffer.concat([largest, Buffer.of(0)]))])).toMatchObject({
      status: 413,
      code: 'request_too_large',
      param: 'file',
    })
  })

  it('is refused with 413 before it arrives if its Content-Length is over the limit', async () => {
    using client = await openRaw(service.url)

    client.send(rawRequest(`POST ${TRANSCRIPTIONS}`, [...HEADERS, 'content-length: 99000000'], '--'))

    expect((await client.answer()).status).toBe(413)
  })

  it('is refused with 400 if the field of the file is not named file', async () => {
    const parts = [{ name: 'audio', filename: 'a.wav', value: AUDIO }, MODEL]

    expect(await refusal(parts)).toMatchObject({ status: 400, param: 'audio', code: 'invalid_value' })
  })
})

describe('a transcription form', () => {
  const fields = (more: Record<string, string | string[]>) => refusal(partsOf({ model: SPEECH, ...more }))

  it.each<[string, Record<string, string | string[]>, object]>([
    ['temperature', { temperature: '1.1' }, { code: 'decimal_above_max_value' }],
    ['temperature', { temperature: '-0.1' }, { code: 'decimal_below_min_value' }],
    ['temperature', { temperature: 'warm' }, { code: 'invalid_type' }],
    ['temperature', { temperature: 'NaN' }, { code: 'invalid_type' }],
    ['temperature', { temperature: ['0.1', '0.2'] }, { code: 'invalid_value' }],
    ['response_format', { response_format: 'xml' }, { code: 'invalid_value' }],
    ['language', { language: 'english' }, { code: 'invalid_language_format' }],
    ['language', { language: 'en-US' }, { code: 'invalid_language_format' }],
    ['language', { language: 'xx' }, { code: 'invalid_language_format' }],
    ['languages[1]', { 'languages[]': ['de', 'xx'] }, { code: 'invalid_language_format' }],
    ['stream', { stream: 'yes' }, { code: 'invalid_type' }],
    ['stream', { stream: 'true', response_format: 'srt' }, { code: 'unsupported_value' }],
    ['stream', { stream: 'true', response_format: 'vtt' }, { code: 'unsupported_value' }],
    ['stream', { stream: 'true', response_format: 'verbose_json' }, { code: 'unsupported_value' }],
    ['timestamp_granularities', { 'timestamp_granularities[]': 'word' }, { code: 'unsupported_value' }],
    ['timestamp_granularities', { 'timestamp_granularities[]': 'segment', response_format: 'srt' }, {}],
    ['timestamp_granularities[0]', { 'timestamp_granularities[]': 'letter', response_format: 'verbose_json' }, {}],
    ['include', { 'include[]': 'logprobs', response_format: 'verbose_json' }, { code: 'unsupported_value' }],
    ['include', { 'include[]': 'logprobs', response_format: 'text' }, { code: 'unsupported_value' }],
    ['include[0]', { 'include[]': 'everything' }, { code: 'invalid_value' }],
    ['chunking_strategy', { chunking_strategy: 'none' }, {}],
    ['chunking_strategy', { chunking_strategy: '{"type":' }, { code: 'invalid_value' }],
    ['chunking_strategy.threshold', { chunking_strategy: '{"type":"server_vad","threshold":2}' }, {}],
    ['chunking_strategy.type', { 'chunking_strategy[threshold]': '0.5' }, { code: 'missing_required_parameter' }],
    ['chunking_strategy[type]', { chunking_strategy: 'auto', 'chunking_strategy[type]': 'server_vad' }, {}],
    ['store', { store: 'maybe' }, { code: 'invalid_type' }],
  ])('is refused with 400 because of %s: %j', async (param, more, error) => {
    expect(await fields(more)).toMatchObject({ status: 400, param, ...error })
  })

  it.each<[string, string, object]>([
    ['prompt', 'a'.repeat(20_000), { code: 'string_above_max_length' }],
    ['prompt', 'a'.repeat(5_000_000), { code: 'string_above_max_length' }],
    ['chunking_strategy', '{"a":'.repeat(50_000), { code: 'invalid_value' }],
  ])('is refused with 400 if the value of %s is very long', async (param, value, error) => {
    expect(await fields({ [param]: value })).toMatchObject({ status: 400, param, ...error })
  })

  it('is refused if its model is missing, unknown, or not a transcription model', async () => {
    expect(await refusal([FILE])).toMatchObject({ status: 400, param: 'model', code: 'missing_required_parameter' })
    expect(await refusal(partsOf({ model: '' }))).toMatchObject({ status: 400, param: 'model' })
    expect(await refusal(partsOf({ model: 'no-such' }))).toMatchObject({ status: 404, code: 'model_not_found' })
    expect(await refusal(partsOf({ model: 'echo-1' }))).toMatchObject({ status: 400, code: 'model_not_supported' })
  })

  it.each<[string, Record<string, string>]>([
    ['language', { language: 'de' }],
    ['response_format', { response_format: 'diarized_json' }],
    ['include', { 'include[]': 'logprobs' }],
    ['timestamp_granularities', { response_format: 'verbose_json', 'timestamp_granularities[]': 'word' }],
  ])('is refused with 400 because of %s if the model does not support %j', async (param, more) => {
    const error = await refusal(partsOf({ model: PLAIN, ...more }))

    expect(error).toMatchObject({ status: 400, param, code: 'unsupported_value' })
  })

  it('is refused with 400 if it has 300 fields', async () => {
    const many = Array.from({ length: 300 }, (_, index) => ({ name: `x${index}`, value: 'y' }))

    expect(await refusal([FILE, ...many, MODEL])).toMatchObject({ status: 400, message: /too many parts/ })
  })

  it('is refused with 413 if its fields are too large in total', async () => {
    const many = Array.from({ length: 6 }, () => ({ name: 'x', value: Buffer.alloc(4_000_000, 'a') }))

    expect(await refusal([FILE, ...many, MODEL])).toMatchObject({ status: 413, code: 'request_too_large' })
  })

  it('is refused with 400 if a field has no name', async () => {
    expect(await refusal([FILE, { value: 'x' }, MODEL])).toMatchObject({ status: 400, message: /no name/ })
  })
})

describe('the known speakers of a transcription', () => {
  const NAMES = 'known_speaker_names[]'
  const VOICES = 'known_speaker_references[]'
  const speakers = (names: string[], voices: string[], format = 'diarized_json') =>
    refusal(partsOf({ model: SPEECH, response_format: format, [NAMES]: names, [VOICES]: voices }))

  it.each<[string, string[], string[], object]>([
    ['five', ['a', 'b', 'c', 'd', 'e'], [VOICE, VOICE, VOICE, VOICE, VOICE], { code: 'array_above_max_length' }],
    ['names without references', ['a', 'b'], [VOICE], { param: 'known_speaker_references' }],
    ['references without names', [], [VOICE], { param: 'known_speaker_names' }],
    ['a duplicate name', ['a', 'a'], [VOICE, VOICE], { param: 'known_speaker_names[1]' }],
    ['a name of 101 characters', ['a'.repeat(101)], [VOICE], { param: 'known_speaker_names[0]' }],
    ['a URL', ['a'], ['https://example.com/a.wav'], { param: 'known_speaker_references[0]' }],
    ['invalid base64', ['a'], ['data:audio/wav;base64,%%%'], { param: 'known_speaker_references[0]' }],
    ['a picture', ['a'], ['data:image/png;base64,iVBORw0KGgo='], { code: 'invalid_audio' }],
    [
      'a voice sample of several megabytes',
      ['a'],
      [`${VOICE}${'A'.repeat(4_200_000)}`],
      { code: 'string_above_max_length' },
    ],
  ])('are refused with 400 for %s', async (_what, names, voices, error) => {
    expect(await speakers(names, voices)).toMatchObject({ status: 400, ...error })
  })

  it('are refused with 400 if the model does not support speakers', async () => {
    expect(await speakers(['a'], [VOICE], 'json')).toMatchObject({ status: 400, param: 'known_speaker_names' })
  })
})

describe('an invalid transcription request', () => {
  const FORM = formBytes([FILE, MODEL])

  it.each<[string, Buffer | string, Record<string, string>, object]>([
    ['if it is JSON', '{"model":"speech-1"}', { 'content-type': 'application/json' }, { status: 415 }],
    [
      'if it is a URL-encoded form',
      'model=speech-1',
      { 'content-type': 'application/x-www-form-urlencoded' },
      { status: 415 },
    ],
    ['if it is audio without a form', AUDIO, { 'content-type': 'audio/wav' }, { status: 415 }],
    ['if it is compressed', gzipSync(FORM), { 'content-encoding': 'gzip' }, { status: 415 }],
    ['if the content type has no boundary', FORM, { 'content-type': 'multipart/form-data' }, { status: 400 }],
    ['if the boundary is too long', FORM, { 'content-type': `multipart/form-data; boundary=${'b'.repeat(300)}` }, {}],
    [
      'if the boundary differs from the content type',
      FORM,
      { 'content-type': 'multipart/form-data; boundary=other' },
      {},
    ],
    ['if it ends within the file', FORM.subarray(0, 9_000), {}, { message: /The form is incomplete/ }],
    ['if it ends within a field', FORM.subarray(0, -50), {}, {}],
    ['if it ends before the last boundary', FORM.subarray(0, -BOUNDARY.length - 6), {}, {}],
    ['if it is not a form', 'hello', {}, {}],
    ['if it has no parts', `--${BOUNDARY}--\r\n`, {}, { code: 'missing_required_parameter' }],
    ['if it is empty', '', {}, {}],
  ])('is refused %s', async (_what, body, headers, error) => {
    expect(await sendBytes(body, headers)).toMatchObject({ status: 400, type: 'invalid_request_error', ...error })
  })

  it('in a job is refused if the file field names a blob instead of containing the audio', async () => {
    const file = { blob: 'upl_of_somebody_else', sha256: '00', bytes: 1, format: 'wav' }

    const response = await service.post('/v1/jobs', { endpoint: TRANSCRIPTIONS, body: { model: SPEECH, file } })

    expect(await errorOf(response)).toMatchObject({ status: 400, param: 'body.file.data' })
  })

  it.each<[string, unknown, object]>([
    ['missing', undefined, { param: 'body.file', code: 'missing_required_parameter' }],
    ['a URL', 'https://example.com/a.wav', { param: 'body.file', code: 'invalid_value' }],
    ['invalid base64', 'data:audio/wav;base64,*', { param: 'body.file', code: 'invalid_value' }],
    ['an object with invalid base64', { data: '*', filename: 'a.wav' }, { param: 'body.file.data' }],
    ['an empty file', { data: '' }, { param: 'body.file', code: 'invalid_audio' }],
    ['a picture', 'data:audio/wav;base64,iVBORw0KGgo=', { param: 'body.file', code: 'invalid_audio' }],
    ['larger than the size limit', { data: 'A'.repeat(270_000) }, { status: 413, param: 'body.file' }],
    ['a number', 7, { param: 'body.file', code: 'invalid_type' }],
  ])('in a job is refused if its file is %s', async (_what, file, error) => {
    const response = await service.post('/v1/jobs', { endpoint: TRANSCRIPTIONS, body: { model: SPEECH, file } })

    expect(await errorOf(response)).toMatchObject({ status: 400, ...error })
  })
})

describe('a transcription request without a key', () => {
  it('gets 401 before its body arrives', async () => {
    using client = await openRaw(service.url)

    client.send(rawRequest(`POST ${TRANSCRIPTIONS}`, [`content-type: ${FORM_TYPE}`, 'content-length: 1000'], 'x'))

    expect((await client.answer()).status).toBe(401)
  })
})

const HEADERS = ['host: test', `authorization: Bearer ${TEST_KEY}`, `content-type: ${FORM_TYPE}`]
