import { execFile } from 'node:child_process'
import { mkdtemp, readFile, rm } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join as pathOf } from 'node:path'
import { promisify } from 'node:util'
import type { Turn } from '../test/local-server/measure.ts'
import { openServer, type TestServer } from '../test/local-server/running.ts'
import { findSpeech } from '../test/local-server/speech.ts'
import { join, RATE, samplesOf, silence, waveOf } from '../test/local-server/wave.ts'

/*
 * What the speech benchmark is measured on, made anew in each run: recordings that packages bring, synthetic speech by
 * flite where that is installed, and conversations put together of both. Small: read the figures as works or does not.
 */

const FLITE_MS = 30_000
/** Four people recorded for flite. */
const FLITE_VOICES = ['kal16', 'awb', 'rms', 'slt'] as const
/** The first of them again, at 8 kHz as by telephone: voices are much harder to tell apart there. */
const TELEPHONE_VOICE = 'kal'
const SENTENCES = [
  'the ferry to the island leaves at half past seven every morning',
  'please send the signed contract to our office before friday',
  'she opened the old wooden box and found three letters inside',
  'the temperature will fall below freezing in the mountains tonight',
  'we counted forty two birds near the lake last sunday',
  'a good cup of coffee and a quiet street are all i need',
  'the engine made a strange noise and then stopped completely',
  'nobody could remember who had turned off the kitchen light',
]
const REFERENCE_SECONDS = 6
/** Stretches of the reading of Dickens between which there are pauses, in seconds. */
const DICKENS_STRETCHES = [
  [1, 8],
  [9, 15],
  [21, 28],
  [29, 34],
  [36, 41],
] as const
const BREATH_SECONDS = 0.3
const TURNS = 10

/** Something that was said, and by whom. */
export interface Utterance {
  readonly speaker: string
  readonly text: string
  readonly file: Buffer
}

/** A recording of several people in turn. */
export interface Conversation {
  readonly file: Buffer
  readonly truth: readonly Turn[]
  /** One of the people is heard at 8 kHz. */
  readonly hasTelephone: boolean
  /** A sample of each speaker's voice, none of which is in the recording. */
  readonly samples: Readonly<Record<string, Buffer>>
}

/** What is measured on. */
export interface SpeechSet {
  readonly human: readonly Utterance[]
  /** Empty without flite. */
  readonly synthetic: readonly Utterance[]
  readonly conversations: readonly Conversation[]
  /** Some minutes of one reading. */
  readonly long: Buffer
  readonly skipped: readonly string[]
}

/** A voice: what it says in conversations, and a sample of it beside that. */
interface Voice {
  readonly speaker: string
  readonly parts: readonly Int16Array[]
  readonly sample: Int16Array
}

/**
 * Makes the set.
 *
 * @param perCount Conversations of two, of three and of four people each.
 * @throws Error without the recordings, or without Python
 */
export async function makeSpeechSet(perCount: number): Promise<SpeechSet> {
  const clips = await findSpeech()
  if (!clips) throw new Error('the recordings could not be fetched')
  await using local = openServer()
  const human = Object.values(clips).map(({ name, text, bytes }) => {
    return { speaker: name.replace(/-\d+$/, ''), text, file: bytes }
  })
  const synthetic = await speakByFlite()
  const dickens = await decode(local, clips['two-cities']?.bytes)
  const recorded = [await austen(local, human), dickensVoice(dickens)]
  const spoken: Voice[] = []
  for (const speaker of [...FLITE_VOICES, TELEPHONE_VOICE]) {
    const voice = await fliteVoice(local, speaker, synthetic)
    if (voice) spoken.push(voice)
  }
  const telephone = spoken.find(({ speaker }) => speaker === TELEPHONE_VOICE)
  const wide = [...recorded, ...spoken.filter((voice) => voice !== telephone)]
  // In the place of the same person at full quality, so that the two can be compared.
  const byTelephone = telephone ? wide.map((voice) => (voice.speaker === FLITE_VOICES[0] ? telephone : voice)) : []
  return {
    human,
    synthetic,
    conversations: [
      ...converse(wide, perCount),
      ...converse(byTelephone, perCount).filter((each) => each.hasTelephone),
    ],
    long: waveOf(join(Array(5).fill(dickens))),
    skipped: synthetic.length > 0 ? [] : ['synthetic voices: flite is not installed (apt-get install flite)'],
  }
}

async function austen(local: TestServer, human: readonly Utterance[]): Promise<Voice> {
  const own = human.filter(({ speaker }) => speaker === 'austen')
  const parts = await Promise.all(own.map(({ file }) => decode(local, file)))
  // Two short ones make a sample.
  const [a, b, c, d, e] = parts as [Int16Array, Int16Array, Int16Array, Int16Array, Int16Array]
  return { speaker: 'austen', parts: [a, c, d], sample: join([b, e]).slice(0, REFERENCE_SECONDS * RATE) }
}

function dickensVoice(reading: Int16Array): Voice {
  const parts = DICKENS_STRETCHES.map(([from, to]) => reading.slice(from * RATE, to * RATE))
  return { speaker: 'dickens', parts: parts.slice(0, -1), sample: parts.at(-1) ?? silence(1) }
}

async function fliteVoice(
  local: TestServer,
  speaker: string,
  synthetic: readonly Utterance[],
): Promise<Voice | undefined> {
  const own = synthetic.filter((utterance) => utterance.speaker === speaker)
  const parts = await Promise.all(own.map(({ file }) => decode(local, file)))
  const sample = parts.at(-1)
  return sample && { speaker, parts: parts.slice(0, -1), sample: sample.slice(0, REFERENCE_SECONDS * RATE) }
}

async function decode(local: TestServer, file: Buffer | undefined): Promise<Int16Array> {
  return samplesOf((await local.post('/audio/decode', file ?? Buffer.alloc(0))).bytes)
}

async function speakByFlite(): Promise<Utterance[]> {
  const dir = await mkdtemp(pathOf(tmpdir(), 'sluice-flite-'))
  const run = promisify(execFile)
  try {
    const spoken: Utterance[] = []
    for (const speaker of [...FLITE_VOICES, TELEPHONE_VOICE]) {
      for (const [index, text] of SENTENCES.entries()) {
        const file = pathOf(dir, `${speaker}-${index}.wav`)
        await run('flite', ['-voice', speaker, '-t', text, '-o', file], { timeout: FLITE_MS })
        spoken.push({ speaker, text, file: await readFile(file) })
      }
    }
    return spoken
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code !== 'ENOENT') throw error
    return []
  } finally {
    await rm(dir, { recursive: true, force: true })
  }
}

/** Conversations of two to four of the voices, each with the same ones in every run. */
function converse(voices: readonly Voice[], perCount: number): Conversation[] {
  const counts = [2, 3, 4].filter((count) => count <= voices.length)
  return counts.flatMap((count) =>
    Array.from({ length: perCount }, (_, turn) => {
      // Another group each time: neighbours on a circle.
      const present = Array.from({ length: count }, (_, at) => voices[(turn * 2 + at) % voices.length] as Voice)
      return compose(present)
    }),
  )
}

function compose(present: readonly Voice[]): Conversation {
  const truth: Turn[] = []
  const pieces: Int16Array[] = []
  let at = 0
  for (let turn = 0; turn < TURNS; turn++) {
    const { speaker, parts } = present[turn % present.length] as Voice
    const part = parts[Math.floor(turn / present.length) % parts.length] as Int16Array
    truth.push({ speaker, start: at, end: at + part.length / RATE })
    pieces.push(part, silence(BREATH_SECONDS))
    at += part.length / RATE + BREATH_SECONDS
  }
  const samples = Object.fromEntries(present.map(({ speaker, sample }) => [speaker, waveOf(sample)]))
  const hasTelephone = present.some(({ speaker }) => speaker === TELEPHONE_VOICE)
  return { file: waveOf(join(pieces)), truth, hasTelephone, samples }
}
