import { mkdirSync, symlinkSync } from 'node:fs'
import { createServer } from 'node:http'
import type { AddressInfo } from 'node:net'
import { join } from 'node:path'
import { Readable } from 'node:stream'
import { request } from 'undici'
import { MODELS_DIR } from '../../test/support/speech/running.ts'
import { silence, waveOf } from '../../test/support/speech/wave.ts'
import { type Sluice, startSluice, upstreamModel } from '../machine/sluice.ts'
import { residentMib, watchMemory } from '../machine/usage.ts'
import { show } from '../results/tables.ts'
import type { Run } from '../section.ts'

const FILE_MIB = 25
const FILES = { quick: 5, normal: 50 } as const
const PIECE_BYTES = 64 * 1024
const CALL_TIMEOUT_MS = 600_000
const BOUNDARY = 'bench-boundary'

export async function measureUploads(run: Run): Promise<string[]> {
  const files = run.options.isQuick ? FILES.quick : FILES.normal
  const upstream = createServer((req, res) => {
    req.resume()
    req.on('end', () => res.writeHead(200, { 'content-type': 'application/json' }).end('{"text":"Hello."}'))
  })
  await new Promise<void>((resolve) => upstream.listen(0, '127.0.0.1', resolve))
  await using processes = run.processes()
  try {
    const dir = join(processes.dir, 'uploads')
    mkdirSync(dir)
    symlinkSync(MODELS_DIR, join(dir, 'models'))
    const url = new URL(`http://127.0.0.1:${(upstream.address() as AddressInfo).port}`)
    const models = [upstreamModel('speech', url, 'pool: transcription, ')]
    const sluice = await startSluice(processes, {
      name: 'uploads',
      models,
      env: { TRANSCRIPTION_SLOTS: String(files) },
    })
    const file = waveOf(silence((FILE_MIB * 1024 * 1024 - 64) / 32_000))
    await upload(sluice, file, run.signal)
    const pid = sluice.processes[0]?.pid ?? 0
    const before = residentMib(pid)
    const memory = watchMemory(pid)
    run.print(`uploading ${files} files at once`)
    await Promise.all(Array.from({ length: files }, () => upload(sluice, file, run.signal)))
    return [`${files} uploads of ${FILE_MIB} MiB at once`, show(before, 0), show(memory.stop().own, 0)]
  } finally {
    upstream.close()
  }
}

async function upload({ url, key }: Sluice, file: Buffer, signal: AbortSignal): Promise<void> {
  const { statusCode, body } = await request(new URL('/v1/audio/transcriptions', url), {
    method: 'POST',
    headers: { authorization: `Bearer ${key}`, 'content-type': `multipart/form-data; boundary=${BOUNDARY}` },
    body: Readable.from(formPieces(file)),
    headersTimeout: CALL_TIMEOUT_MS,
    signal,
  })
  const text = await body.text()
  if (statusCode !== 200) throw new Error(`an upload returned ${statusCode}: ${text}`)
}

function* formPieces(file: Buffer): Generator<Buffer> {
  const part = (name: string) => `--${BOUNDARY}\r\ncontent-disposition: form-data; name="${name}"`
  yield Buffer.from(`${part('model')}\r\n\r\nspeech\r\n${part('file')}; filename="a.wav"\r\n\r\n`)
  for (let at = 0; at < file.length; at += PIECE_BYTES) yield file.subarray(at, at + PIECE_BYTES)
  yield Buffer.from(`\r\n--${BOUNDARY}--\r\n`)
}
