import { mkdirSync, symlinkSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { request } from 'undici'
import { speakerError, type Turn, wordErrors } from '../../test/support/speech/measure.ts'
import { MODELS_DIR } from '../../test/support/speech/running.ts'
import type { Kafka } from '../machine/kafka.ts'
import { treeCpuSeconds, watchMemory } from '../machine/process-tree.ts'
import { Processes } from '../machine/processes.ts'
import { confusionRate, countDiarization, type DiarizationCount, errorRate } from './diarization-error.ts'
import { type Conversation, makeSpeechSet, type SpeechSet, type Utterance } from './speech-set.ts'
import { measureUploads, type UploadFigures } from './uploads.ts'

const KEY = 'sk-bench-0123456789abcdef0123456789abcdef'
const MODEL = 'whisper-tiny.en'
const CALL_MS = 600_000
const MODELS = `models:
  - id: ${MODEL}
    pool: transcription
    engine: { type: local, model: ${MODEL} }
    transcription: { languages: [en] }
`

/** What a run found out about transcription. Rates are parts of 1. */
export interface TranscriptionResults {
  readonly engine: string
  /** Words that are wrong, missing or too many, for each that was said. */
  readonly words: readonly {
    readonly what: string
    readonly clips: number
    readonly said: number
    readonly rate: number
  }[]
  readonly speakers: readonly SpeakerFigures[]
  /** Seconds of work for each second of audio. */
  readonly speed: readonly {
    readonly what: string
    readonly audioSeconds: number
    readonly wall: number
    readonly cpu: number
  }[]
  /** MiB at most: of Sluice's process, and of the local model server's together. */
  readonly memory: { readonly own: number; readonly started: number }
  readonly uploads: UploadFigures
  readonly skipped: readonly string[]
}

/** Conversations of one kind. */
export interface SpeakerFigures {
  /** How many people talk, and how they take turns. */
  readonly what: string
  readonly conversations: number
  readonly minutes: number
  /** Diarization error rate with a collar of 250 ms: missed, false alarm, and confused. */
  readonly error: number
  /** The part of it that is confused. */
  readonly confusion: number
  /** Part of the time that both call speech and that is somebody else's, without a collar: the mean of the recordings. */
  readonly speakerError: number
  /** Part of the speech that has the right name when all voices are known by samples. */
  readonly named: number
}

/** How much is measured. */
export interface TranscriptionOptions {
  /** Conversations of two, three and four people each. */
  readonly conversations: number
  /** Files that arrive at once. */
  readonly uploads: number
  readonly print: (text: string) => void
  readonly signal: AbortSignal
}

/** Measures transcription and the telling apart of speakers through the API. @throws Error without Python */
export async function measureTranscription(
  options: TranscriptionOptions,
  kafka: Kafka | undefined,
  dir: string,
): Promise<TranscriptionResults> {
  const { print, signal } = options
  print('making the speech that transcription is measured on')
  const set = await makeSpeechSet(options.conversations)
  const measured = await measureSpeech(set, dir, print, signal)
  print(`uploading ${options.uploads} files at once`)
  const uploads = await measureUploads(options.uploads, kafka, join(dir, 'uploads'), signal)
  return {
    engine: 'faster-whisper, whisper-tiny.en in 8 bits; speakers by pyannote community-1',
    ...measured,
    uploads,
    skipped: set.skipped,
  }
}

type SpeechFigures = Pick<TranscriptionResults, 'words' | 'speakers' | 'speed' | 'memory'>

async function measureSpeech(
  set: SpeechSet,
  dir: string,
  print: (text: string) => void,
  signal: AbortSignal,
): Promise<SpeechFigures> {
  await using processes = new Processes(dir, undefined)
  const client = await startService(processes, join(dir, 'transcription'), signal)
  // The server starts, and loads its model.
  await client.transcribe((set.human[0] as Utterance).file, {})
  const watch = watchMemory(client.pid)
  const words = [
    await wordsOf('recorded speech', set.human, client, print),
    ...(set.synthetic.length > 0 ? [await wordsOf('synthetic speech (flite)', set.synthetic, client, print)] : []),
  ]
  const speed = [
    await speedOf('text of a long recording', set.long, {}, client, print),
    await speedOf('text and speakers of it', set.long, { response_format: 'diarized_json' }, client, print),
    await speedOf('text of one sentence', (set.human[1] as Utterance).file, {}, client, print),
  ]
  const speakers = await speakersOf(set.conversations, client, print)
  return { words, speed, speakers, memory: watch.stop() }
}

async function wordsOf(what: string, clips: readonly Utterance[], client: Client, print: (text: string) => void) {
  let [said, wrong] = [0, 0]
  for (const { text, file } of clips) {
    const { text: heard } = await client.transcribe(file, {})
    const { errors, words } = wordErrors(text, heard)
    said += words
    wrong += errors
  }
  print(`${what}: ${wrong} of ${said} words wrong`)
  return { what, clips: clips.length, said, rate: wrong / said }
}

async function speedOf(what: string, file: Buffer, fields: Fields, client: Client, print: (text: string) => void) {
  const [startedAt, cpuBefore] = [performance.now(), treeCpuSeconds(client.pid)]
  const { duration } = await client.transcribe(file, fields)
  const wallSeconds = (performance.now() - startedAt) / 1_000
  const cpu = (treeCpuSeconds(client.pid) - cpuBefore) / duration
  print(`${what}: ${duration.toFixed(0)} s of audio in ${wallSeconds.toFixed(1)} s`)
  return { what, audioSeconds: duration, wall: wallSeconds / duration, cpu }
}

async function speakersOf(conversations: readonly Conversation[], client: Client, print: (text: string) => void) {
  const figures: SpeakerFigures[] = []
  for (const [what, own] of Map.groupBy(conversations, (conversation) => conversation.what)) {
    const [found, named]: [DiarizationCount[], DiarizationCount[]] = [[], []]
    const errors: number[] = []
    for (const conversation of own) {
      const { truth, samples } = conversation
      const turns = await diarize(conversation, {}, client)
      found.push(countDiarization(truth, turns, false))
      errors.push(speakerError(truth, turns))
      named.push(countDiarization(truth, await diarize(conversation, samples, client), true))
    }
    const seconds = own.reduce((sum, { truth }) => sum + (truth.at(-1)?.end ?? 0), 0)
    const rates = {
      error: errorRate(found),
      confusion: confusionRate(found),
      speakerError: errors.reduce((sum, error) => sum + error, 0) / errors.length,
      named: 1 - confusionRate(named),
    }
    figures.push({ what, conversations: own.length, minutes: seconds / 60, ...rates })
    print(
      `speakers, ${what}: error ${(100 * rates.speakerError).toFixed(1)} %, right names ${(100 * rates.named).toFixed(1)} %`,
    )
  }
  return figures
}

/** Who speaks when, by the answer of the API. @param samples Voices that are known, by name */
async function diarize({ file }: Conversation, samples: Conversation['samples'], client: Client): Promise<Turn[]> {
  const { segments } = await client.transcribe(file, {
    response_format: 'diarized_json',
    'known_speaker_names[]': Object.keys(samples),
    'known_speaker_references[]': Object.values(samples).map(
      (sample) => `data:audio/wav;base64,${sample.toString('base64')}`,
    ),
  })
  return segments
}

type Fields = Readonly<Record<string, string | readonly string[]>>

/** Calls of one service. */
interface Client {
  readonly pid: number
  transcribe(file: Buffer, fields: Fields): Promise<{ text: string; duration: number; segments: Turn[] }>
}

async function startService(processes: Processes, dir: string, signal: AbortSignal): Promise<Client> {
  mkdirSync(dir)
  // Prepared once a machine, by tests or by this.
  symlinkSync(MODELS_DIR, join(dir, 'models'))
  writeFileSync(join(dir, 'models.yaml'), MODELS)
  const env = { PORT: '0', DATA_DIR: dir, MODELS_FILE: join(dir, 'models.yaml'), SLUICE_API_KEY: KEY }
  const service = { name: 'transcription', script: '../services/main.js', args: [], env, addressOn: 'stderr' } as const
  const { pid, url } = await processes.node(service)
  const address = new URL('/v1/audio/transcriptions', url)
  return {
    pid,
    async transcribe(file, fields) {
      // The platform writes the form.
      const form = new Response(formOf(file, { model: MODEL, ...fields }))
      const { statusCode, body } = await request(address, {
        method: 'POST',
        headers: { authorization: `Bearer ${KEY}`, 'content-type': form.headers.get('content-type') ?? '' },
        body: Buffer.from(await form.arrayBuffer()),
        headersTimeout: CALL_MS,
        signal: AbortSignal.any([signal, AbortSignal.timeout(CALL_MS)]),
      })
      if (statusCode !== 200) throw new Error(`transcription answered ${statusCode}: ${await body.text()}`)
      return (await body.json()) as Awaited<ReturnType<Client['transcribe']>>
    },
  }
}

function formOf(file: Buffer, fields: Fields): FormData {
  const form = new FormData()
  form.append('file', new Blob([new Uint8Array(file)]), 'speech.wav')
  for (const [name, value] of Object.entries(fields)) for (const each of [value].flat()) form.append(name, each)
  return form
}
