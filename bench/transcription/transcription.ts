import { mkdirSync, symlinkSync } from 'node:fs'
import { join } from 'node:path'
import { request } from 'undici'
import { MODELS_DIR } from '../../test/support/speech/running.ts'
import { findSpeech, telephoneCall } from '../../test/support/speech/speech.ts'
import { type Sluice, startSluice } from '../machine/sluice.ts'
import { treeCpuMs, watchMemory } from '../machine/usage.ts'
import { renderTable, show } from '../results/tables.ts'
import type { Run, Section } from '../section.ts'
import { measureUploads } from './uploads.ts'

const MODEL = 'whisper-tiny.en'
const CALL_TIMEOUT_MS = 600_000

export const TRANSCRIPTION: Section = {
  name: 'transcription',
  summary: 'speed and memory of the built-in speech model; memory during large uploads',
  title: '## Transcription',
  introduction: `The built-in model (faster-whisper with \`${MODEL}\` in 8 bits; speakers by pyannote community-1) through the API of \`npm start\`, on
recordings from packages. **Real-time factor**: seconds of work per second of audio; CPU counts all processes.
\`node bench/quality/speech.ts\` measures the quality of transcripts and speakers.`,
  async measure(run) {
    const clips = await findSpeech()
    if (!clips) return ['Not measured: the recordings could not be fetched.']
    await using processes = run.processes()
    const env = { TRANSCRIPTION_SLOTS: '1' }
    const models = [
      `{ id: ${MODEL}, pool: transcription, engine: { type: local, model: ${MODEL} }, transcription: { languages: [en] } }`,
    ]
    // Models are prepared once per machine. The tests and this benchmark share the prepared models, so their directory
    // is linked here.
    const dir = join(processes.dir, 'transcription')
    mkdirSync(dir)
    symlinkSync(MODELS_DIR, join(dir, 'models'))
    const sluice = await startSluice(processes, { name: 'transcription', models, env })
    const pid = sluice.processes[0]?.pid ?? 0
    const sentence = clips['austen-0880']?.bytes ?? Buffer.alloc(0)
    // The first call starts the model server and loads the model, so it is not measured.
    await transcribe(sluice, sentence, run.signal)
    const memory = watchMemory(pid)
    const { bytes: call } = await telephoneCall()
    const files: readonly [string, Buffer, string][] = [
      ['one sentence', sentence, 'verbose_json'],
      ['a reading', clips['two-cities']?.bytes ?? Buffer.alloc(0), 'verbose_json'],
      ['a telephone call with speakers', call, 'diarized_json'],
    ]
    const speed: string[][] = []
    for (const [name, file, format] of run.options.isQuick ? files.slice(0, 1) : files) {
      speed.push(await measureSpeed(run, sluice, pid, name, file, format))
    }
    const max = memory.stop()
    return [
      renderTable(['real-time factor', 'seconds of audio', 'wall', 'CPU'], speed),
      renderTable(
        ['memory, MiB', 'before', 'maximum'],
        [
          ['transcription: the process of Sluice', '–', show(max.own, 0)],
          ['transcription: the model server', '–', show(max.started, 0)],
          await measureUploads(run),
        ],
      ),
    ]
  },
}

async function measureSpeed(run: Run, sluice: Sluice, pid: number, name: string, file: Buffer, format: string) {
  const [startedAt, cpuBefore] = [performance.now(), treeCpuMs(pid)]
  const { duration } = await transcribe(sluice, file, run.signal, format)
  const factors = [performance.now() - startedAt, treeCpuMs(pid) - cpuBefore].map((ms) =>
    show(ms / 1_000 / duration, 3),
  )
  run.print(`${name}: ${duration.toFixed(1)} s of audio, real-time factor ${factors.join(', CPU ')}`)
  return [name, show(duration, 1), ...factors]
}

async function transcribe(
  { url, key }: Sluice,
  file: Buffer,
  signal: AbortSignal,
  format = 'verbose_json',
): Promise<{ duration: number }> {
  const form = new FormData()
  form.append('file', new Blob([new Uint8Array(file)]), 'speech.wav')
  for (const [name, value] of Object.entries({ model: MODEL, response_format: format })) form.append(name, value)
  const encoded = new Response(form)
  const { statusCode, body } = await request(new URL('/v1/audio/transcriptions', url), {
    method: 'POST',
    headers: { authorization: `Bearer ${key}`, 'content-type': encoded.headers.get('content-type') ?? '' },
    body: Buffer.from(await encoded.arrayBuffer()),
    headersTimeout: CALL_TIMEOUT_MS,
    signal: AbortSignal.any([signal, AbortSignal.timeout(CALL_TIMEOUT_MS)]),
  })
  if (statusCode !== 200) throw new Error(`transcription returned ${statusCode}: ${await body.text()}`)
  return (await body.json()) as { duration: number }
}
