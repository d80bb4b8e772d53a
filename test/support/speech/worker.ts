import { mkdtemp, readdir, rm, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { pino } from 'pino'
import { stringify } from 'yaml'
import { startIngress } from '#services/ingress/ingress.ts'
import { startScheduler } from '#services/scheduler/scheduler.ts'
import { startTranscription } from '#services/transcription/transcription.ts'
import { parseConfig } from '#shared/config/config.ts'
import { LocalAudioTools, openLocalTranscription } from '#shared/engines/local/local.ts'
import type { UpstreamTarget } from '#shared/engines/upstream/upstream.ts'
import { newId } from '#shared/lib/id.ts'
import { type Log, openLog } from '#shared/log/log.ts'
import { openPorts, portsService } from '#shared/ports.ts'
import { stopAll } from '#shared/process/lifecycle.ts'
import { TEST_KEY } from '../stack.ts'

const PATH = '/v1/audio/transcriptions'

export interface WorkerOptions {
  /** Entries of models.yaml. */
  readonly models: readonly object[]
  /** Connects to the test server that replaces the local model server. */
  readonly connect: (signal: AbortSignal) => Promise<UpstreamTarget>
  readonly settings?: Readonly<Record<string, string>>
  readonly kafka?: string | undefined
  /** Receives parsed log lines. */
  readonly onLog?: (line: Record<string, unknown>) => void
}

/** Fields of a form. A list is sent as one field per value. */
export type Fields = Readonly<Record<string, string | readonly string[]>>

/** A running service with a transcription worker. Dispose it. */
export interface TranscriptionWorker extends AsyncDisposable {
  readonly url: string
  /** Sends a transcription request with a file, using the test key. */
  upload(fields: Fields, file?: Buffer, init?: RequestInit): Promise<Response>
  get(path: string): Promise<Response>
  cancel(id: string): Promise<Response>
  /** Names of the stored blobs. */
  blobs(): Promise<string[]>
  readonly blobDir: string
}

/** Starts an ingress, a scheduler and a transcription worker in this process. A test server replaces the local model server. */
export async function startTranscriptionWorker(options: WorkerOptions): Promise<TranscriptionWorker> {
  const dataDir = await mkdtemp(join(tmpdir(), 'sluice-transcribe-'))
  const modelsFile = join(dataDir, 'models.yaml')
  await writeFile(modelsFile, stringify({ models: options.models }))
  const config = parseConfig({
    PORT: '0',
    DATA_DIR: dataDir,
    MODELS_FILE: modelsFile,
    SLUICE_API_KEY: TEST_KEY,
    LOG_LEVEL: 'silent',
    KAFKA_BROKERS: options.kafka,
    KAFKA_PREFIX: options.kafka && `${newId('t', 8)}.`,
    ...options.settings,
  })
  const { connect, onLog } = options
  const log: Log = onLog ? pino({}, { write: (line) => onLog(JSON.parse(line)) }) : openLog('silent', 'test')
  const opened = await openPorts(config, log, 'test', true, (error) => {
    throw error
  })
  const ports: typeof opened = {
    ...opened,
    async loadEngines() {
      const openers = await opened.loadEngines()
      return {
        ...openers,
        openAudioTools: () => new LocalAudioTools(connect, config.transcriptionSlots),
        openTranscriptionEngine: (model) =>
          model.engine.type === 'local'
            ? openLocalTranscription(model, connect)
            : openers.openTranscriptionEngine(model),
      }
    },
    prepareModels: () => Promise.resolve(),
  }
  const ingress = await startIngress(ports)
  const services = [portsService(ports), await startTranscription(ports), await startScheduler(ports), ingress]
  const call = (method: string, path: string, init: RequestInit = {}) =>
    fetch(`http://127.0.0.1:${ingress.port}${path}`, {
      ...init,
      method,
      headers: { authorization: `Bearer ${TEST_KEY}`, ...init.headers },
    })
  return {
    url: `http://127.0.0.1:${ingress.port}`,
    upload: (fields, file = WAVE, init) => call('POST', PATH, { ...init, body: formOf(fields, file) }),
    get: (path) => call('GET', path),
    cancel: (id) => call('POST', `/v1/jobs/${id}/cancel`),
    blobs: async () => (await readdir(config.blobDir)).filter((name) => name !== '.directory-id'),
    blobDir: config.blobDir,
    async [Symbol.asyncDispose]() {
      await stopAll(services, 1_000, log)
      await rm(dataDir, { recursive: true, force: true })
    },
  }
}

/** Beginning of a WAV file, for tests that do not decode it. */
export const WAVE = Buffer.concat([Buffer.from('RIFF\0\0\0\0WAVEfmt '), Buffer.alloc(200, 7)])

function formOf(fields: Fields, file: Buffer): FormData {
  const form = new FormData()
  form.append('file', new Blob([new Uint8Array(file)]), 'speech.wav')
  for (const [name, value] of Object.entries(fields)) {
    for (const each of [value].flat()) form.append(name, each)
  }
  return form
}

/** Returns the JSON objects of an event stream, in order. */
export async function framesOf(response: Response): Promise<Record<string, unknown>[]> {
  const frames = (await response.text()).split('\n\n').filter((frame) => frame.startsWith('data: {'))
  return frames.map((frame) => JSON.parse(frame.slice('data: '.length)))
}
