import { execFile } from 'node:child_process'
import { mkdtemp, readFile, rm } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join as pathOf } from 'node:path'
import { promisify } from 'node:util'
import { openRandom, type Random } from '../../test/chaos/load/random.ts'
import type { Turn } from '../../test/support/speech/measure.ts'
import { openServer, type TestServer } from '../../test/support/speech/running.ts'
import { findSpeech } from '../../test/support/speech/speech.ts'
import { join, RATE, samplesOf, silence, waveOf } from '../../test/support/speech/wave.ts'

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
/** Of the reading of Beckett: all but the last two sentences, and those. */
const BECKETT_STRETCHES = [
  [0, 6.2],
  [6.2, 9.4],
] as const
const BREATH_SECONDS = 0.3
const TURNS = 10
/** Decides who talks at random: the same conversations in every run. */
const SEED = 7

/** Something that was said, and by whom. */
export interface Utterance {
  readonly speaker: string
  readonly text: string
  readonly file: Buffer
}

/** A recording of several people in turn. */
export interface Conversation {
  /** How many people talk, and how they take turns. */
  readonly what: string
  readonly file: Buffer
  readonly truth: readonly Turn[]
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
 * @param perCount Conversations of two, of three and of four people each, by turns and again at random.
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
  const recorded = [await austen(local, human), stretches('dickens', dickens, DICKENS_STRETCHES)]
  const beckett = stretches('beckett', await decode(local, clips.beckett?.bytes), BECKETT_STRETCHES)
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
      ...inTurn(wide, perCount),
      ...atRandom([...wide, beckett], perCount, openRandom(SEED)),
      ...inTurn(byTelephone, perCount)
        .filter(({ samples }) => TELEPHONE_VOICE in samples)
        .map((each) => ({ ...each, what: '2 to 4, in turn, one of them at 8 kHz' })),
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

/** A voice by parts of one reading, from and to so many seconds; the last one is the sample. */
function stretches(speaker: string, reading: Int16Array, times: readonly (readonly [number, number])[]): Voice {
  const parts = times.map(([from, to]) => reading.slice(from * RATE, to * RATE))
  return { speaker, parts: parts.slice(0, -1), sample: parts.at(-1) ?? silence(1) }
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

/** Conversations of two to four of the voices, who talk one after the other with a breath between. */
function inTurn(voices: readonly Voice[], perCount: number): Conversation[] {
  return counts(voices).flatMap((count) =>
    Array.from({ length: perCount }, (_, nth) => {
      // Another group each time: neighbours on a circle.
      const present = Array.from({ length: count }, (_, at) => voices[(nth * 2 + at) % voices.length] as Voice)
      const said = Array.from({ length: TURNS }, (_, turn): Said => {
        const voice = present[turn % count] as Voice
        return { voice, part: voice.parts[Math.floor(turn / count) % voice.parts.length] as Int16Array }
      })
      return compose(`${count}, in turn`, said, BREATH_SECONDS)
    }),
  )
}

/** Conversations of any of the voices, who say anything, talk in any order, and at once when another one has ended. */
function atRandom(voices: readonly Voice[], perCount: number, random: Random): Conversation[] {
  return counts(voices).flatMap((count) =>
    Array.from({ length: perCount }, () => {
      const present = draw(voices, count, random)
      const said: Said[] = []
      while (said.length < TURNS) {
        // Everybody says something; nobody answers himself.
        const others = present.filter((voice) => voice !== said.at(-1)?.voice)
        const voice = present[said.length] ?? pick(others, random)
        said.push({ voice, part: pick(voice.parts, random) })
      }
      return compose(`${count}, at random`, said, 0)
    }),
  )
}

function counts(voices: readonly Voice[]): number[] {
  return [2, 3, 4].filter((count) => count <= voices.length)
}

function draw(voices: readonly Voice[], count: number, random: Random): Voice[] {
  const drawn: Voice[] = []
  while (drawn.length < count) {
    drawn.push(
      pick(
        voices.filter((voice) => !drawn.includes(voice)),
        random,
      ),
    )
  }
  return drawn
}

function pick<T>(items: readonly T[], random: Random): T {
  return items[random.between(0, items.length - 1)] as T
}

/** One turn of a conversation. */
interface Said {
  readonly voice: Voice
  readonly part: Int16Array
}

function compose(what: string, said: readonly Said[], pauseSeconds: number): Conversation {
  const pause = silence(pauseSeconds)
  const truth: Turn[] = []
  let at = 0
  for (const { voice, part } of said) {
    truth.push({ speaker: voice.speaker, start: at, end: at + part.length / RATE })
    at += (part.length + pause.length) / RATE
  }
  const samples = Object.fromEntries(said.map(({ voice: { speaker, sample } }) => [speaker, waveOf(sample)]))
  return { what, file: waveOf(join(said.flatMap(({ part }) => [part, pause]))), truth, samples }
}
