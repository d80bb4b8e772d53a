import { mkdirSync, symlinkSync, writeFileSync } from 'node:fs'
import { createServer, type Server } from 'node:http'
import type { AddressInfo } from 'node:net'
import { join } from 'node:path'
import { Readable } from 'node:stream'
import { Agent, request } from 'undici'
import { MODELS_DIR } from '../../test/support/speech/running.ts'
import { silence, waveOf } from '../../test/support/speech/wave.ts'
import type { Kafka } from '../machine/kafka.ts'
import { watchMemory } from '../machine/process-tree.ts'
import { Processes, type Running } from '../machine/processes.ts'

const KEY = 'sk-bench-0123456789abcdef0123456789abcdef'
const MIB = 1024 * 1024
const FILE_MIB = 25
const PIECE_BYTES = 64 * 1024
const CALL_MS = 600_000
const BOUNDARY = 'bench-boundary'

/** Memory while many large files are on their way, each to an upstream that takes all of it. MiB. */
export interface UploadFigures {
  readonly files: number
  readonly fileMib: number
  readonly seconds: number
  /** The process that takes the files, and the one that sends them on; the same one without Kafka. */
  readonly ingress: Growth
  readonly worker: Growth | undefined
}

/** Most MiB before the files came, and while they were there. */
export interface Growth {
  readonly before: number
  readonly most: number
}

/**
 * Uploads files of 25 MiB at once to an ingress and a worker with a slot for each of them, whose upstream reads all of each
 * file before it answers.
 */
export async function measureUploads(
  files: number,
  kafka: Kafka | undefined,
  dir: string,
  signal: AbortSignal,
): Promise<UploadFigures> {
  mkdirSync(dir)
  symlinkSync(MODELS_DIR, join(dir, 'models'))
  const upstream = await startUpstream()
  await using processes = new Processes(dir, undefined)
  const agent = new Agent({ connections: files })
  try {
    const roles = await startRoles(processes, dir, upstream.url, files, kafka)
    const file = waveOf(silence((FILE_MIB * MIB - 64) / 32_000))
    const send = () => upload(new URL('/v1/audio/transcriptions', roles.ingress.url), file, agent, signal)
    await send()
    const watches = roles.all.map(({ pid }) => ({ before: watchMemory(pid).stop().own, watch: watchMemory(pid) }))
    const startedAt = performance.now()
    await Promise.all(Array.from({ length: files }, send))
    const seconds = (performance.now() - startedAt) / 1_000
    const [ingress, worker] = watches.map(({ before, watch }) => ({ before, most: watch.stop().own }))
    return { files, fileMib: FILE_MIB, seconds, ingress: ingress as Growth, worker }
  } finally {
    await agent.close()
    upstream.server.close()
  }
}

async function startRoles(
  processes: Processes,
  dir: string,
  upstream: string,
  slots: number,
  kafka: Kafka | undefined,
) {
  const models = `models:\n  - { id: speech, pool: transcription, engine: { type: openai, base_url: '${upstream}/v1' } }\n`
  writeFileSync(join(dir, 'models.yaml'), models)
  const env = {
    PORT: '0',
    DATA_DIR: dir,
    MODELS_FILE: join(dir, 'models.yaml'),
    SLUICE_API_KEY: KEY,
    TRANSCRIPTION_SLOTS: String(slots),
    ...(kafka && { KAFKA_BROKERS: kafka.brokers, KAFKA_PREFIX: 'uploads.' }),
  }
  const start = (role: string | undefined): Promise<Running> =>
    processes.node({
      name: `uploads-${role ?? 'all'}`,
      script: '../services/main.js',
      args: role ? [role] : [],
      env: { ...env },
      addressOn: role === 'transcription' ? 'none' : 'stderr',
    })
  if (!kafka) {
    const whole = await start(undefined)
    return { ingress: whole, all: [whole] }
  }
  const worker = await start('transcription')
  const ingress = await start('ingress')
  return { ingress, all: [ingress, worker] }
}

async function upload(url: URL, file: Buffer, agent: Agent, signal: AbortSignal): Promise<void> {
  const { statusCode, body } = await request(url, {
    method: 'POST',
    dispatcher: agent,
    headers: { authorization: `Bearer ${KEY}`, 'content-type': `multipart/form-data; boundary=${BOUNDARY}` },
    body: Readable.from(formPieces(file)),
    headersTimeout: CALL_MS,
    signal,
  })
  const text = await body.text()
  if (statusCode !== 200) throw new Error(`an upload was answered with ${statusCode}: ${text}`)
}

function* formPieces(file: Buffer): Generator<Buffer> {
  const part = (name: string) => `--${BOUNDARY}\r\ncontent-disposition: form-data; name="${name}"`
  yield Buffer.from(`${part('model')}\r\n\r\nspeech\r\n${part('file')}; filename="a.wav"\r\n\r\n`)
  for (let at = 0; at < file.length; at += PIECE_BYTES) yield file.subarray(at, at + PIECE_BYTES)
  yield Buffer.from(`\r\n--${BOUNDARY}--\r\n`)
}

/** Answers once it has all of a file. */
async function startUpstream(): Promise<{ server: Server; url: string }> {
  const server = createServer((req, res) => {
    req.resume()
    req.on('end', () => res.writeHead(200, { 'content-type': 'application/json' }).end('{"text":"Hello."}'))
  })
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve))
  return { server, url: `http://127.0.0.1:${(server.address() as AddressInfo).port}` }
}
