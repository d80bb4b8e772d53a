/**
 * Memory of the ingress while many large audio files arrive at once: `node bench/uploads.ts [--files 50] [--mib 25]`.
 *
 * Each form ends with a field that is refused, so that nothing but the intake is at work: the whole file is read, hashed,
 * stored, and deleted again. Everything runs on this machine; Linux only.
 */
import { mkdtemp, readdir, rm, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { Readable } from 'node:stream'
import { setTimeout as sleep } from 'node:timers/promises'
import { parseArgs } from 'node:util'
import { Agent, request } from 'undici'
import { Processes } from './processes.ts'
import { residentMib } from './usage.ts'

const MIB = 1024 * 1024
const KEY = 'sk-bench-0123456789'
const BOUNDARY = 'bench-boundary'
const PIECE = Buffer.alloc(64 * 1024, 0x55)
/** How often memory is read. */
const SAMPLE_MS = 20
/** Quiet time before the first reading. */
const SETTLE_MS = 2_000
const UPLOAD_MS = 300_000

const MODELS = `models:
  - id: speech
    pool: transcription
    engine: { type: openai, base_url: 'http://127.0.0.1:9/v1' }
`

const { values } = parseArgs({
  options: { files: { type: 'string', default: '50' }, mib: { type: 'string', default: '25' } },
})
const files = Number(values.files)
const bytes = Number(values.mib) * MIB

const dir = await mkdtemp(join(tmpdir(), 'sluice-uploads-'))
try {
  await using processes = new Processes(dir, undefined)
  await writeFile(join(dir, 'models.yaml'), MODELS)
  const blobs = join(dir, 'blobs')
  const service = await processes.node({
    name: 'service',
    script: '../services/main.ts',
    args: [],
    env: { PORT: '0', DATA_DIR: dir, BLOB_DIR: blobs, MODELS_FILE: join(dir, 'models.yaml'), SLUICE_API_KEY: KEY },
    addressOn: 'stderr',
  })
  const url = `${service.url?.origin}/v1/audio/transcriptions`
  const agent = new Agent({ connections: files })
  await upload(url, agent)
  await sleep(SETTLE_MS)
  const before = residentMib(service.pid)
  const watch = watchMemory(service.pid)
  const startedAt = performance.now()
  const statuses = await Promise.all(Array.from({ length: files }, () => upload(url, agent)))
  const seconds = (performance.now() - startedAt) / 1_000
  const peak = watch.stop()
  await agent.close()
  if (statuses.some((status) => status !== 400)) throw new Error(`unexpected answers: ${[...new Set(statuses)]}`)
  const left = await readdir(blobs)
  const rows: [string, string][] = [
    ['files at once', `${files} of ${values.mib} MiB`],
    ['all of them', `${((files * bytes) / MIB).toFixed(0)} MiB`],
    ['seconds', seconds.toFixed(1)],
    ['MiB/s', ((files * bytes) / MIB / seconds).toFixed(0)],
    ['resident before, MiB', before.toFixed(0)],
    ['resident at most, MiB', peak.toFixed(0)],
    ['growth, MiB', (peak - before).toFixed(0)],
    ['growth per file, KiB', (((peak - before) * 1024) / files).toFixed(0)],
    ['blobs left', String(left.length)],
  ]
  for (const [what, figure] of rows) console.log(`${what.padEnd(24)}${figure.padStart(16)}`)
} finally {
  await rm(dir, { recursive: true, force: true })
}

async function upload(url: string, agent: Agent): Promise<number> {
  const { statusCode, body } = await request(url, {
    method: 'POST',
    dispatcher: agent,
    headers: { authorization: `Bearer ${KEY}`, 'content-type': `multipart/form-data; boundary=${BOUNDARY}` },
    body: Readable.from(formPieces()),
    headersTimeout: UPLOAD_MS,
    bodyTimeout: UPLOAD_MS,
  })
  await body.dump()
  return statusCode
}

function* formPieces(): Generator<Buffer> {
  const part = (name: string) => `--${BOUNDARY}\r\ncontent-disposition: form-data; name="${name}"`
  yield Buffer.from(`${part('file')}; filename="a.wav"\r\n\r\nRIFF....WAVE`)
  for (let sent = 12; sent < bytes; sent += PIECE.length) yield PIECE.subarray(0, bytes - sent)
  yield Buffer.from(`\r\n${part('model')}\r\n\r\nspeech\r\n${part('temperature')}\r\n\r\n5\r\n--${BOUNDARY}--\r\n`)
}

function watchMemory(pid: number): { stop(): number } {
  let most = 0
  const timer = setInterval(() => {
    most = Math.max(most, residentMib(pid))
  }, SAMPLE_MS)
  return {
    stop() {
      clearInterval(timer)
      return most
    },
  }
}
