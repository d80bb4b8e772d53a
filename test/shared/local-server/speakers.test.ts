import { afterAll, describe, expect, test } from 'vitest'
import { diarizationError, speakerError, type Turn } from '../../support/speech/measure.ts'
import { findEnvironment, form, openServer } from '../../support/speech/running.ts'
import { findSpeech, telephoneCall } from '../../support/speech/speech.ts'
import { join, RATE, samplesOf, silence, waveOf } from '../../support/speech/wave.ts'

const environment = await findEnvironment()
const clips = environment && (await findSpeech())

describe.skipIf(!clips)('diarization by the local model server', { timeout: 120_000 }, () => {
  const local = openServer()
  afterAll(() => local[Symbol.asyncDispose]())
  const samples = async (name: string) => {
    const bytes = clips?.[name]?.bytes
    if (!bytes) throw new Error(`no clip ${name}`)
    return samplesOf((await local.post('/audio/decode', bytes)).bytes)
  }
  /** Composes a conversation of two people in turn: the reader of Austen, and the reader of Dickens. */
  const conversation = async () => {
    const cities = await samples('two-cities')
    const stretch = (from: number, to: number) => cities.slice(from * RATE, to * RATE)
    return compose([
      ['austen', await samples('austen-0870')],
      ['dickens', stretch(1, 8)],
      ['austen', await samples('austen-0890')],
      ['dickens', stretch(9, 15)],
      ['austen', await samples('austen-0920')],
      ['dickens', stretch(21, 28)],
      ['austen', await samples('austen-0930')],
      ['dickens', stretch(29, 38)],
    ])
  }
  const reference = (wave: Buffer) => `data:audio/wav;base64,${wave.toString('base64')}`

  test('separates two speakers, and names them by letters in order of appearance', async () => {
    const { truth, file } = await conversation()
    const { json } = await local.post('/diarize', form({ file }))
    const turns = json.turns as Turn[]
    expect(json.duration).toBeCloseTo((truth.at(-1)?.end ?? 0) + 0.3, 1)
    expect([...new Set(turns.map(({ speaker }) => speaker))]).toEqual(['A', 'B'])
    const error = speakerError(truth, turns)
    process.stdout.write(`speaker error ${(100 * error).toFixed(1)} %\n`)
    expect(error).toBeLessThan(0.1)
  })

  test('separates three speakers who answer each other without a pause', async () => {
    const cities = await samples('two-cities')
    const call = samplesOf((await local.post('/audio/decode', (await telephoneCall()).bytes)).bytes)
    const caller = call.slice(22 * RATE, 28 * RATE)
    const parts: [string, Int16Array][] = [
      ['austen', await samples('austen-0870')],
      ['caller', caller],
      ['dickens', cities.slice(RATE, 8 * RATE)],
      ['austen', await samples('austen-0880')],
      ['dickens', cities.slice(9 * RATE, 15 * RATE)],
      ['caller', caller],
      ['austen', await samples('austen-0920')],
      ['dickens', cities.slice(21 * RATE, 28 * RATE)],
    ]
    const { truth, file } = compose(parts, 0)
    const turns = (await local.post('/diarize', form({ file }))).json.turns as Turn[]
    expect(new Set(turns.map(({ speaker }) => speaker))).toEqual(new Set(['A', 'B', 'C']))
    const error = speakerError(truth, turns)
    process.stdout.write(`speaker error with three speakers ${(100 * error).toFixed(1)} %\n`)
    expect(error).toBeLessThan(0.05)
  })

  test('finds two speakers in a telephone call in which they interrupt each other', async () => {
    const { bytes, truth } = await telephoneCall()
    const turns = (await local.post('/diarize', form({ file: bytes }))).json.turns as Turn[]
    expect(new Set(turns.map(({ speaker }) => speaker)).size).toBe(2)
    const error = diarizationError(truth, turns)
    process.stdout.write(`diarization error of a telephone call ${(100 * error).toFixed(1)} %\n`)
    expect(error).toBeLessThan(0.25)
  })

  test('finds one speaker in a recording of 44 s in which one person reads', async () => {
    const turns = (await local.post('/diarize', form({ file: waveOf(await samples('two-cities')) }))).json
      .turns as Turn[]
    expect(new Set(turns.map(({ speaker }) => speaker)).size).toBe(1)
  })

  test('names a speaker after a known voice sample, and the other speaker by a letter', async () => {
    const { truth, file } = await conversation()
    const sample = waveOf(join([await samples('austen-0880'), await samples('austen-0930')]))
    const answer = await local.post(
      '/diarize',
      form({ file, 'known_speaker_names[]': 'Jane', 'known_speaker_references[]': reference(sample) }),
    )
    const turns = answer.json.turns as Turn[]
    expect([...new Set(turns.map(({ speaker }) => speaker))]).toEqual(['Jane', 'A'])
    const named = truth.map((turn) => ({ ...turn, speaker: turn.speaker === 'austen' ? 'Jane' : 'A' }))
    expect(speakerError(named, turns)).toBeLessThan(0.1)
  })

  test('does not use the name of a known speaker if the recording does not contain the voice', async () => {
    const { bytes } = await local.post('/audio/decode', clips?.['two-cities']?.bytes ?? Buffer.alloc(0))
    const sample = waveOf(samplesOf(bytes).slice(30 * RATE, 36 * RATE))
    const file = waveOf(await samples('austen-0870'))
    const fields = { 'known_speaker_names[]': 'Charles', 'known_speaker_references[]': reference(sample) }
    const { json } = await local.post('/diarize', form({ file, ...fields }))
    expect(new Set(json.turns.map(({ speaker }: Turn) => speaker))).toEqual(new Set(['A']))
  })

  test('does not use the names of two known speakers if a telephone call does not contain their voices', async () => {
    const reader = waveOf((await samples('two-cities')).slice(30 * RATE, 36 * RATE))
    const other = waveOf(await samples('austen-0870'))
    const fields = {
      'known_speaker_names[]': ['Charles', 'Jane'],
      'known_speaker_references[]': [reference(reader), reference(other)],
    }
    const { json } = await local.post('/diarize', form({ file: (await telephoneCall()).bytes, ...fields }))
    expect(new Set(json.turns.map(({ speaker }: Turn) => speaker))).toEqual(new Set(['A', 'B']))
  })

  test('returns no turns for silence', async () => {
    const { json } = await local.post('/diarize', form({ file: waveOf(silence(5)) }))
    expect(json).toEqual({ duration: 5, turns: [] })
  })

  test('returns turns that do not overlap and lie within the recording', async () => {
    const { file } = await conversation()
    const { json } = await local.post('/diarize', form({ file }))
    const times = (json.turns as Turn[]).flatMap(({ start, end }) => [start, end])
    expect(times).toEqual(times.toSorted((a, b) => a - b))
    expect(times.at(-1)).toBeLessThanOrEqual(json.duration)
  })

  test.each([
    ['1 s', () => reference(waveOf(silence(1)))],
    ['11 s', () => reference(waveOf(silence(11)))],
    ['not audio', () => `data:audio/wav;base64,${Buffer.from('hello').toString('base64')}`],
    ['not base64', () => 'data:audio/wav;base64,%%%'],
    ['a URL', () => 'https://example.com/voice.wav'],
  ])('refuses a reference sample with status 400 and the index of the sample: %s', async (_, make) => {
    const good = reference(waveOf(silence(3)))
    const answer = await local.post(
      '/diarize',
      form({
        file: waveOf(silence(3)),
        'known_speaker_names[]': ['a', 'b'],
        'known_speaker_references[]': [good, make()],
      }),
    )
    expect(answer.status).toBe(400)
    expect(answer.json.error).toMatchObject({ code: 'invalid_reference', index: 1 })
  })

  test('refuses a name without a reference sample, and more than four speakers, with invalid_value', async () => {
    const sample = reference(waveOf(silence(3)))
    const refused = async (names: string[], references: string[]) => {
      const fields = { 'known_speaker_names[]': names, 'known_speaker_references[]': references }
      return (await local.post('/diarize', form({ file: waveOf(silence(3)), ...fields }))).json.error.code
    }
    expect(await refused(['a', 'b'], [sample])).toBe('invalid_value')
    expect(await refused([...'abcde'], Array(5).fill(sample))).toBe('invalid_value')
  })
})

/** Joins the parts with a short pause between them. Also returns the correct speaker turns. */
function compose(
  parts: readonly (readonly [string, Int16Array])[],
  breathSeconds = 0.3,
): { truth: Turn[]; file: Buffer } {
  const pause = silence(breathSeconds)
  const truth: Turn[] = []
  let at = 0
  for (const [speaker, samples] of parts) {
    truth.push({ speaker, start: at, end: at + samples.length / RATE })
    at += (samples.length + pause.length) / RATE
  }
  return { truth, file: waveOf(join(parts.flatMap(([, samples]) => [samples, pause]))) }
}
