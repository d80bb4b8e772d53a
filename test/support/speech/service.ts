/** Starts the complete service for tests of transcription over HTTP. The worker is scripted: it runs no model. */
import { createHash } from 'node:crypto'
import { mkdtemp, readdir, rm, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { buffer } from 'node:stream/consumers'
import { stringify } from 'yaml'
import { TranscribeEvent, type TranscribeRequest } from '#schemas/kinds/transcription.ts'
import { startInference } from '#services/inference/inference.ts'
import { startIngress } from '#services/ingress/ingress.ts'
import { startScheduler } from '#services/scheduler/scheduler.ts'
import { parseConfig } from '#shared/config/config.ts'
import { startWorker } from '#shared/jobs/worker/worker.ts'
import { type AttemptContext, handle } from '#shared/kinds/kind.ts'
import { transcribe } from '#shared/kinds/transcribe/transcribe.ts'
import { newId } from '#shared/lib/id.ts'
import { openLog } from '#shared/log/log.ts'
import { openPorts, portsService } from '#shared/ports.ts'
import { stopAll } from '#shared/process/lifecycle.ts'
import { ECHO_MODEL, type Stack, TEST_KEY } from '../stack.ts'

export const TRANSCRIPTIONS = '/v1/audio/transcriptions'

/** Id of a model that has every transcription feature. */
export const SPEECH = 'speech-1'
/** Id of a model for English only, which returns text and segments, but no words or speakers. */
export const PLAIN = 'speech-plain'

const engine = { type: 'local', model: 'whisper-tiny.en' }
const MODELS = [
  ECHO_MODEL,
  { id: SPEECH, pool: 'transcription', engine, aliases: ['whisper-1', 'gpt-4o-transcribe-diarize'] },
  {
    id: PLAIN,
    pool: 'transcription',
    engine,
    aliases: ['plain'],
    capabilities: { logprobs: false },
    transcription: { languages: ['en'], words: false, diarize: false },
  },
]

/** Produces the events of the worker for a request; default: {@link speak}. */
export type Script = (request: TranscribeRequest, context: AttemptContext) => AsyncIterable<TranscribeEvent>

/** A request as the worker received it, with the hash of its audio. */
export type SeenRequest = TranscribeRequest & { readonly heard: string; readonly blob: string | undefined }

/** A running service. Dispose it. */
export interface Transcriptions extends Stack {
  /** Requests that the worker received, in order. */
  readonly seen: SeenRequest[]
  /** Names of the stored blobs, including unfinished ones. */
  blobs(): Promise<string[]>
  /** Posts a form with the test key, encoded by fetch. */
  upload(form: FormData, init?: RequestInit): Promise<Response>
  /** Posts a form with the exact bytes of {@link formBytes}. */
  uploadParts(parts: readonly Part[], init?: RequestInit): Promise<Response>
}

export interface TranscriptionsOptions {
  readonly kafka?: string | undefined
  readonly settings?: Readonly<Record<string, string>>
  readonly script?: Script
}

/** Starts every role in this process, with a scripted worker of the pool `transcription`. */
export async function startTranscriptions(options: TranscriptionsOptions = {}): Promise<Transcriptions> {
  const dataDir = await mkdtemp(join(tmpdir(), 'sluice-speech-'))
  const modelsFile = join(dataDir, 'models.yaml')
  await writeFile(modelsFile, stringify({ models: MODELS }))
  const config = parseConfig({
    PORT: '0',
    DATA_DIR: dataDir,
    MODELS_FILE: modelsFile,
    SLUICE_API_KEY: TEST_KEY,
    LOG_LEVEL: process.env.TEST_LOG ?? 'silent',
    KAFKA_BROKERS: options.kafka,
    KAFKA_PREFIX: options.kafka && `${newId('t', 8)}.`,
    ...options.settings,
  })
  const log = openLog(config.logLevel, 'test')
  const ports = await openPorts(config, log, 'test', true, (error) => {
    throw error
  })
  const seen: SeenRequest[] = []
  const script = options.script ?? speak
  const handler = handle(transcribe, async function* (request, context) {
    const { blob, base64 = '' } = request.audio
    const bytes = blob === undefined ? Buffer.from(base64, 'base64') : await buffer(await ports.blobs.open(blob))
    seen.push({ ...request, blob, heard: sha256(bytes) })
    for await (const event of script(request, context)) yield TranscribeEvent.parse(event)
  })
  const ingress = await startIngress(ports)
  const services = [
    portsService(ports),
    await startInference(ports),
    await startWorker(ports, { name: 'transcription', slots: 8, kinds: { transcribe: handler } }),
    await startScheduler(ports),
    ingress,
  ]
  const url = `http://127.0.0.1:${ingress.port}`
  const request = (method: string, path: string, body: RequestInit['body'], init: RequestInit = {}) => {
    const headers = new Headers(init.headers)
    if (!headers.has('authorization')) headers.set('authorization', `Bearer ${TEST_KEY}`)
    return fetch(url + path, { ...init, method, headers, ...(body != null && { body }) })
  }
  const withType = (type: string, init: RequestInit = {}): RequestInit => {
    const headers = new Headers(init.headers)
    if (!headers.has('content-type')) headers.set('content-type', type)
    return { ...init, headers }
  }
  return {
    url,
    dataDir,
    broker: ports.broker,
    seen,
    blobs: async () => (await readdir(config.blobDir)).filter((name) => name !== '.directory-id'),
    get: (path, init) => request('GET', path, null, init),
    post: (path, body, init) => request('POST', path, JSON.stringify(body), withType('application/json', init)),
    upload: (form, init) => request('POST', TRANSCRIPTIONS, form, init),
    uploadParts: (parts, init) => request('POST', TRANSCRIPTIONS, formBytes(parts), withType(FORM_TYPE, init)),
    async [Symbol.asyncDispose]() {
      await stopAll(services, 1_000, log)
      await rm(dataDir, { recursive: true, force: true })
    },
  }
}

export interface Part {
  readonly name?: string
  readonly filename?: string
  readonly type?: string
  readonly value: string | Buffer
}

export const BOUNDARY = 'sluice-test-boundary'
export const FORM_TYPE = `multipart/form-data; boundary=${BOUNDARY}`

/** Encodes a multipart form. Names and values are written exactly as given. */
export function formBytes(parts: readonly Part[]): Buffer {
  const chunks = parts.flatMap(({ name, filename, type, value }) => {
    const names = [
      name === undefined ? '' : `; name="${name}"`,
      filename === undefined ? '' : `; filename="${filename}"`,
    ]
    const typeLine = type === undefined ? '' : `content-type: ${type}\r\n`
    const head = `--${BOUNDARY}\r\ncontent-disposition: form-data${names.join('')}\r\n${typeLine}\r\n`
    return [Buffer.from(head), Buffer.from(value as string), Buffer.from('\r\n')]
  })
  return Buffer.concat([...chunks, Buffer.from(`--${BOUNDARY}--\r\n`)])
}

/** Returns the form parts of a transcription call: the audio file, and fields with one or several values. */
export function partsOf(fields: Readonly<Record<string, string | readonly string[]>>, audio = wav(1)): Part[] {
  const parts = Object.entries(fields).flatMap(([name, value]) =>
    (typeof value === 'string' ? [value] : value).map((each) => ({ name, value: each })),
  )
  return [{ name: 'file', filename: 'speech.wav', type: 'audio/x-wav', value: audio }, ...parts]
}

/** A WAV file of silence: 16 kHz, mono, 16 bits. */
export function wav(seconds: number): Buffer {
  const samples = Buffer.alloc(Math.round(seconds * 16_000) * 2)
  const head = Buffer.alloc(44)
  head.write('RIFF')
  head.writeUInt32LE(36 + samples.length, 4)
  head.write('WAVEfmt ', 8)
  head.writeUInt32LE(16, 16)
  head.writeUInt16LE(1, 20)
  head.writeUInt16LE(1, 22)
  head.writeUInt32LE(16_000, 24)
  head.writeUInt32LE(32_000, 28)
  head.writeUInt16LE(2, 32)
  head.writeUInt16LE(16, 34)
  head.write('data', 36)
  head.writeUInt32LE(samples.length, 40)
  return Buffer.concat([head, samples])
}

export function sha256(bytes: Buffer): string {
  return createHash('sha256').update(bytes).digest('hex')
}

/** Default script of the worker: two sentences of two speakers, with all requested features, in the order that the schema requires. */
export async function* speak(request: TranscribeRequest): AsyncGenerator<TranscribeEvent> {
  const named = request.speakers.map(({ name }) => name)
  const speakers = request.diarize ? [...named, 'A', 'B'].slice(0, 2) : []
  yield { type: 'start', language: request.language ?? 'en', duration: 2.71, input_tokens: 28 }
  for (const [index, words] of [
    [' Hello', ' world.'],
    [' How', ' are', ' you?'],
  ].entries()) {
    for (const word of words) {
      const logprobs = [{ token: word, logprob: -0.25, bytes: [...Buffer.from(word)] }]
      yield { type: 'text', text: word, segment: index, ...(request.logprobs && { logprobs }) }
    }
    const start = index * 1.3
    yield {
      type: 'segment',
      segment: {
        id: index,
        seek: 0,
        start,
        end: start + 1.3,
        text: words.join(''),
        tokens: [50_364, 2_425],
        temperature: request.temperature,
        avg_logprob: -0.2,
        compression_ratio: 1.1,
        no_speech_prob: 0.01,
        ...(request.words && {
          words: words.map((word, at) => ({ word, start: start + at * 0.4, end: start + at * 0.4 + 0.3 })),
        }),
        ...(request.diarize && { speaker: speakers[index] ?? 'A' }),
      },
    }
  }
  yield { type: 'usage', usage: { input_tokens: 28, output_tokens: 7 } }
  yield { type: 'finish' }
}
