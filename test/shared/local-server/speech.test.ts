import { afterAll, describe, expect, test } from 'vitest'
import { findEnvironment, form, openServer, type StreamEvent } from '../../support/speech/running.ts'
import { findSpeech, wordErrorRate } from '../../support/speech/speech.ts'
import { join, oddWaves, samplesOf, silence, waveOf } from '../../support/speech/wave.ts'

const environment = await findEnvironment()
const clips = environment && (await findSpeech())
const model = 'whisper-tiny.en'
const path = '/v1/audio/transcriptions'

describe.skipIf(!clips)('transcription by the local model server', { timeout: 120_000 }, () => {
  const local = openServer()
  afterAll(() => local[Symbol.asyncDispose]())
  const clip = (name: string) => {
    const found = clips?.[name]
    if (!found) throw new Error(`no clip ${name}`)
    return found
  }
  const transcribe = async (file: Buffer, fields: Record<string, string | string[]> = {}) => {
    const { status, json } = await local.post(path, form({ ...fields, model, file }))
    expect(json.error).toBeUndefined()
    expect(status).toBe(200)
    return json
  }
  const collect = async (fields: Record<string, string | string[] | Buffer>) => {
    const events: StreamEvent[] = []
    for await (const event of local.events(path, form({ ...fields, model, stream: 'true' }))) events.push(event)
    return events
  }

  test('has a word error rate below 5 % for 205 words of human speech', async () => {
    const all = Object.values(clips ?? {})
    const texts: string[] = []
    for (const { bytes } of all) texts.push((await transcribe(bytes)).text)
    const rate = wordErrorRate(all, texts)
    process.stdout.write(`word error rate ${(100 * rate).toFixed(1)} %\n`)
    expect(rate).toBeLessThan(0.05)
  })

  test.each(['opposite phase', 'some samples that are not numbers'])(
    'transcribes a file with %s correctly',
    async (kind) => {
      const [, file = Buffer.alloc(0)] = oddWaves(clip('beckett').bytes).find(([name]) => name === kind) ?? []
      expect(wordErrorRate([clip('beckett')], [(await transcribe(file)).text])).toBeLessThan(0.1)
    },
  )

  test.each([
    ['one word', 'word '.repeat(100)],
    ['words without a blank', 'word,'.repeat(300)],
    ['a phrase', 'one two three four five six seven eight nine '.repeat(40)],
  ])('returns a transcript without the text of a repetitive prompt: %s', async (_, prompt) => {
    for (const name of ['austen-0870', 'austen-0890']) {
      const { text, segments } = await transcribe(clip(name).bytes, { prompt, response_format: 'verbose_json' })
      expect(wordErrorRate([clip(name)], [text])).toBeLessThan(0.2)
      expect(new Set(segments.map(({ temperature }: { temperature: number }) => temperature))).toEqual(new Set([0]))
    }
  })

  test('returns words with ascending times, whose concatenation is the text', async () => {
    const answer = await transcribe(clip('beckett').bytes, {
      response_format: 'verbose_json',
      'timestamp_granularities[]': ['word', 'segment'],
    })
    const words = answer.words as { word: string; start: number; end: number }[]
    expect(words.map(({ word }) => word).join(' ')).toBe(answer.text)
    const times = words.flatMap(({ start, end }) => [start, end])
    expect(times).toEqual(times.toSorted((a, b) => a - b))
    expect(times.at(-1)).toBeLessThanOrEqual(answer.duration)
    expect(Object.keys(answer.segments[0])).toEqual(
      'id seek start end text tokens temperature avg_logprob compression_ratio no_speech_prob'.split(' '),
    )
  })

  test('returns segments and no words for verbose_json without granularities', async () => {
    const answer = await transcribe(clip('austen-0880').bytes, { response_format: 'verbose_json' })
    expect(answer.segments).toHaveLength(1)
    expect(answer.segments[0].end).toBeLessThanOrEqual(answer.duration)
    expect(answer).not.toHaveProperty('words')
  })

  test('streams progress, text deltas and segments, and then the end event', async () => {
    const events = await collect({
      file: clip('two-cities').bytes,
      'timestamp_granularities[]': 'word',
      'include[]': 'logprobs',
    })
    const of = (type: string) => events.filter((event) => event.type === type)
    const done = events.at(-1)
    const text = of('transcript.text.delta').map(({ delta }) => delta)
    expect(text.join('')).toBe(done?.text)
    expect(text.length).toBeGreaterThan(3)
    const segments = of('sluice.segment').map(({ segment }) => segment)
    expect(segments.map(({ id }) => id)).toEqual(segments.map((_, index) => index))
    expect(segments.every(({ text, words }) => words.map((w: { word: string }) => w.word).join('') === text)).toBe(true)
    const seconds = of('sluice.progress').map((event) => event.seconds)
    expect(seconds).toEqual(seconds.toSorted((a, b) => a - b))
    expect(seconds.at(-1)).toBeCloseTo(44.374, 2)
    expect(done).toMatchObject({ type: 'transcript.text.done', language: 'en', usage: { input_tokens: 450 } })
    const bytes = done?.logprobs.flatMap((token: { bytes: number[] }) => token.bytes)
    expect(Buffer.from(bytes).toString().trim()).toBe(done?.text)
  })

  test('returns times relative to the whole file, and streams text before all audio is processed', async () => {
    const speech = await local.post('/audio/decode', clip('beckett').bytes)
    const samples = samplesOf(speech.bytes)
    // Three clips with minutes of silence between them. The recording spans several blocks of two minutes, in which the server reads audio.
    const file = waveOf(join([samples, silence(250), samples, silence(500), samples]))
    const events = await collect({ file, 'timestamp_granularities[]': 'word' })
    const segments = events.filter(({ type }) => type === 'sluice.segment').map(({ segment }) => segment)
    const length = samples.length / 16_000
    const starts = segments.filter(({ text }) => text.startsWith(' Ever tried')).map(({ start }) => start)
    expect(starts.map((start) => Math.round(start / 5))).toEqual(
      [0, length + 250, 2 * length + 750].map((at) => Math.round(at / 5)),
    )
    const texts = events.findIndex(({ type }) => type === 'transcript.text.delta')
    const later = events.slice(texts).filter(({ type }) => type === 'sluice.progress')
    expect(later.length).toBeGreaterThan(3)
  })

  test('returns an empty text for silence, noise and a single tone', async () => {
    const noise = Int16Array.from({ length: 80_000 }, (_, n) => ((n * 7_919 * 104_729) % 4_001) - 2_000)
    const tone = Int16Array.from({ length: 80_000 }, (_, n) => 8_000 * Math.sin(n / 6))
    for (const samples of [silence(20), noise, tone]) {
      const answer = await transcribe(waveOf(samples))
      expect(answer.text).toBe('')
      expect(answer.usage.output_tokens).toBe(0)
    }
  })

  test('spells names as in the prompt', async () => {
    const { bytes } = clip('austen-0870')
    expect((await transcribe(bytes)).text).toContain('Dashwood')
    const { text, usage } = await transcribe(bytes, { prompt: 'A talk about Jon Dashwoode and his family.' })
    expect(text).toContain('Dashwoode')
    expect(usage.input_token_details.text_tokens).toBeGreaterThan(5)
  })

  test('truncates a prompt of 500 names, and treats control tokens in a prompt as text', async () => {
    const names = Array.from({ length: 500 }, (_, index) => `young man ${index}`)
    const prompt = `<|endoftext|><|notimestamps|> ${names.join(', ')}`
    const answer = await transcribe(clip('austen-0880').bytes, { prompt })
    expect(answer.usage.input_token_details.text_tokens).toBe(216)
  })

  test('uses the requested temperature, and starts at 0 by default', async () => {
    const fields = { response_format: 'verbose_json' }
    const at = async (temperature: string) =>
      (await transcribe(clip('austen-0880').bytes, { ...fields, temperature })).segments[0].temperature
    expect([await at('0.4'), await at('0')]).toEqual([0.4, 0])
  })

  test('splits speech by the voice detection settings of the request', async () => {
    const { bytes } = clip('beckett')
    const deaf = await transcribe(bytes, { vad: '{"threshold":1}' })
    expect(deaf.text).toBe('')
    const usual = await transcribe(bytes, {
      vad: '{"threshold":0.5,"silence_duration_ms":200,"prefix_padding_ms":300}',
    })
    expect(usual.text).toContain('fail better'.slice(5))
  })

  test.each([
    [{ language: 'de' }, 'unsupported_value', 'language'],
    [{ response_format: 'srt' }, 'unsupported_value', 'response_format'],
    [{ temperature: '1.5' }, 'invalid_value', 'temperature'],
    [{ temperature: 'nan' }, 'invalid_value', 'temperature'],
    [{ vad: '[]' }, 'invalid_value', 'vad'],
    [{ vad: '{"threshold":"high"}' }, 'invalid_value', 'vad.threshold'],
  ])('refuses %j with status 400', async (fields, code, param) => {
    const answer = await local.post(path, form({ ...fields, model, file: clip('austen-0880').bytes }))
    expect(answer.status).toBe(400)
    expect(answer.json.error).toMatchObject({ code, param })
  })

  test('refuses an unknown model with status 404, a missing file with 400 and a non-form body with 415', async () => {
    const other = await local.post(path, form({ model: 'whisper-1', file: clip('beckett').bytes }))
    expect([other.status, other.json.error.code]).toEqual([404, 'model_not_found'])
    const none = await local.post(path, form({ model }))
    expect([none.status, none.json.error.param]).toEqual([400, 'file'])
    expect((await local.post(path, { model })).status).toBe(415)
  })
})
