import { execFile } from 'node:child_process'
import { mkdir, readdir, readFile, stat } from 'node:fs/promises'
import { homedir } from 'node:os'
import { join as pathOf } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import { promisify } from 'node:util'
import { columnsOf } from '#shared/kinds/transcribe/cue-text.ts'
import { encodeSrt } from '#shared/kinds/transcribe/cues.ts'
import { ServiceError } from '#shared/lib/error.ts'
import { diarizationError, speakerError, type Turn } from '../../test/support/speech/measure.ts'
import { findEnvironment, form, openServer } from '../../test/support/speech/running.ts'
import { findSpeech, telephoneCall, wordErrorRate } from '../../test/support/speech/speech.ts'
import { join, RATE, samplesOf, silence, waveOf } from '../../test/support/speech/wave.ts'

/*
 * Measures the quality of transcription on real recordings from packages: speakers, unknown voices, words, languages and subtitles.
 *
 *     node bench/quality/speech.ts                       all sections
 *     node bench/quality/speech.ts languages subtitles   some sections
 *
 * Recordings in languages other than English come from packages of Debian (`apt-get download`), and synthetic voices come from the program flite. If
 * the recordings of a section are missing, then the section is skipped.
 */

const run = promisify(execFile)
const COMMAND_MS = 120_000
const FETCH_MS = 600_000
const POLL_MS = 2_000
/** Maximum amplitude of silence at the ends of a synthetic clip. Samples have 16 bits. */
const SILENT = 200
const PATH = '/v1/audio/transcriptions'
const LANGUAGES = ['en', 'es', 'fr', 'it', 'ru'] as const
const CLIPS_A_LANGUAGE = 3
const CLIP_SECONDS = 8
const SENTENCES = [
  'the ferry to the island leaves at half past seven every morning',
  'please send the signed contract to our office before friday',
  'she opened the old wooden box and found three letters inside',
]

const environment = await findEnvironment()
const clips = await findSpeech()
if (!environment || !clips) throw new Error('the local model server or the recordings could not be prepared')
await using local = openServer()
await untilFetched('whisper-base')

const percent = (part: number) => `${(100 * part).toFixed(1)} %`
const decode = async (bytes: Buffer) => samplesOf((await local.post('/audio/decode', bytes)).bytes)
const diarize = async (file: Buffer, known: Record<string, Buffer> = {}) => {
  const references = Object.values(known).map((wave) => `data:audio/wav;base64,${wave.toString('base64')}`)
  const fields = { 'known_speaker_names[]': Object.keys(known), 'known_speaker_references[]': references }
  return (await local.post('/diarize', form({ file, ...fields }))).json.turns as Turn[]
}
const speakersOf = (turns: readonly Turn[]) => [...new Set(turns.map(({ speaker }) => speaker))]

const call = await telephoneCall()
const cities = await decode(clips['two-cities']?.bytes ?? Buffer.alloc(0))
const austen = waveOf((await decode(clips['austen-0870']?.bytes ?? Buffer.alloc(0))).slice(0, 9 * RATE))

const sections = {
  speakers: measureSpeakers,
  words: measureWords,
  languages: measureLanguages,
  subtitles: measureSubtitles,
}
const wanted = process.argv.slice(2)
for (const [name, measure] of Object.entries(sections)) {
  if (wanted.length === 0 || wanted.includes(name)) await measure()
}

async function untilFetched(model: string): Promise<void> {
  const signal = AbortSignal.timeout(FETCH_MS)
  for (;;) {
    try {
      await local.server.connect(signal, model)
      return
    } catch (error) {
      if (ServiceError.from(error).code !== 'model_loading') throw error
      await sleep(POLL_MS, undefined, { signal })
    }
  }
}

async function measureSpeakers(): Promise<void> {
  const turns = await diarize(call.bytes)
  console.log(
    `telephone call of two: ${speakersOf(turns).length} speakers, error ${percent(diarizationError(call.truth, turns))}`,
  )
  const synthetic = await threeVoices()
  if (synthetic) {
    const found = await diarize(synthetic.file)
    const confused = percent(speakerError(synthetic.truth, found))
    console.log(`three synthetic voices: ${speakersOf(found).length} speakers, ${confused} confused`)
  } else console.log('three synthetic voices: skipped, flite is not installed')
  const known = { dickens: waveOf(cities.slice(30 * RATE, 36 * RATE)), austen }
  const named = speakersOf(await diarize(call.bytes, known)).filter((speaker) => speaker in known)
  console.log(`unknown voices with a known name: ${named.length} of 2`)
  const own = speakersOf(await diarize(waveOf(cities.slice(0, 20 * RATE)), known))
  console.log(`a known voice has its name: ${own.join() === 'dickens'}`)
}

async function threeVoices(): Promise<{ file: Buffer; truth: Turn[] } | undefined> {
  const place = await cacheOf('speech-flite')
  const pause = silence(0.3)
  const parts: Int16Array[] = []
  const truth: Turn[] = []
  let at = 0
  for (const [index, text] of SENTENCES.entries()) {
    for (const speaker of ['slt', 'rms', 'awb']) {
      const file = pathOf(place, `${speaker}-${index}.wav`)
      const made = run('flite', ['-voice', speaker, '-t', text, '-o', file], { timeout: COMMAND_MS })
      if (!(await made.catch(() => undefined))) return undefined
      const samples = trimmed(await decode(await readFile(file)))
      truth.push({ speaker, start: at, end: at + samples.length / RATE })
      at += (samples.length + pause.length) / RATE
      parts.push(samples, pause)
    }
  }
  return { file: waveOf(join(parts)), truth }
}

function trimmed(samples: Int16Array): Int16Array {
  const isLoud = (sample: number) => Math.abs(sample) > SILENT
  return samples.slice(samples.findIndex(isLoud), samples.findLastIndex(isLoud) + 1)
}

async function measureWords(): Promise<void> {
  for (const model of ['whisper-tiny.en', 'whisper-base']) {
    const all = Object.values(clips ?? {})
    const texts: string[] = []
    for (const { bytes } of all) texts.push((await local.post(PATH, form({ model, file: bytes }))).json.text)
    console.log(`words wrong, ${model}: ${percent(wordErrorRate(all, texts))}`)
  }
}

async function measureLanguages(): Promise<void> {
  for (const language of LANGUAGES) {
    const prompts = await promptsIn(language)
    if (!prompts) {
      console.log(`language ${language}: skipped, asterisk-core-sounds-${language}-wav could not be fetched`)
      continue
    }
    let [refused, detected] = [0, 0]
    for (const file of prompts) {
      refused += Number((await local.post(PATH, form({ model: 'whisper-tiny.en', file }))).status === 400)
      const fields = { model: 'whisper-base', response_format: 'verbose_json', file }
      detected += Number((await local.post(PATH, form(fields))).json.language === language)
    }
    const of = `of ${prompts.length}`
    console.log(
      `language ${language}: whisper-tiny.en refuses ${refused} ${of}, whisper-base detects ${detected} ${of}`,
    )
  }
}

async function promptsIn(language: string): Promise<Buffer[] | undefined> {
  const place = await cacheOf(`speech-debian-${language}`)
  const sounds = pathOf(place, 'usr', 'share', 'asterisk', 'sounds')
  if (!(await stat(sounds).catch(() => undefined))) {
    const name = `asterisk-core-sounds-${language}-wav`
    const fetched = run('apt-get', ['download', '-q', name], { cwd: place, timeout: COMMAND_MS })
    if (!(await fetched.catch(() => undefined))) return undefined
    const [deb = ''] = (await readdir(place)).filter((file) => file.endsWith('.deb'))
    await run('dpkg', ['-x', pathOf(place, deb), place], { timeout: COMMAND_MS })
  }
  const [voice = ''] = (await readdir(sounds)).filter((name) => name.startsWith(`${language}_`))
  const files = (await readdir(pathOf(sounds, voice)))
    .filter((name) => /^(conf|vm|agent|ag)-.*\.wav$/.test(name))
    .sort()
  const clipsOf: Buffer[] = []
  let parts: Int16Array[] = []
  for (const name of files) {
    parts.push(await decode(await readFile(pathOf(sounds, voice, name))))
    const joined = join(parts)
    if (joined.length < CLIP_SECONDS * RATE) continue
    clipsOf.push(waveOf(joined))
    parts = []
    if (clipsOf.length === CLIPS_A_LANGUAGE) break
  }
  return clipsOf
}

async function measureSubtitles(): Promise<void> {
  const fields = { model: 'whisper-tiny.en', file: waveOf(cities), stream: 'true' }
  const segments = []
  for await (const event of local.events(PATH, form({ ...fields, 'timestamp_granularities[]': ['segment', 'word'] }))) {
    if (event.type === 'sluice.segment') segments.push({ seek: 0, ...event.segment })
  }
  const cues = (await encodeSrt(segments, 'en')).split('\n\n').filter(Boolean)
  const lines = cues.map((cue) => cue.split('\n').slice(2))
  const widest = Math.max(...lines.flat().map(columnsOf))
  const most = Math.max(...lines.map(({ length }) => length))
  const atPhrases = lines.filter((own) => /[.,;:!?]$/.test(own.at(-1) ?? '')).length
  console.log(
    `subtitles: ${cues.length} cues, at most ${most} lines of ${widest} columns, ${atPhrases} end at punctuation`,
  )
}

async function cacheOf(name: string): Promise<string> {
  const place = pathOf(process.env.XDG_CACHE_HOME || pathOf(homedir(), '.cache'), 'sluice', name)
  await mkdir(place, { recursive: true })
  return place
}
