/** Regression tests for attacks on the embeddings and transcription pools that succeeded in earlier versions. */
import { execFile } from 'node:child_process'
import { existsSync } from 'node:fs'
import { mkdtemp, rm, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { fileURLToPath } from 'node:url'
import { promisify } from 'node:util'
import { afterEach, describe, expect, it } from 'vitest'
import type { TranscribeEvent } from '#schemas/kinds/transcription.ts'
import { ModelConfig } from '#schemas/models.ts'
import { Batcher, type EmbedText } from '#shared/engines/batching/batcher.ts'
import { openLocalTranscription } from '#shared/engines/local/local.ts'
import { openOpenAiEmbeddings } from '#shared/engines/openai/embeddings.ts'
import { openOpenAiTranscription } from '#shared/engines/openai/transcript/transcription.ts'
import { encodeTranscript, TranscriptStream } from '#shared/kinds/transcribe/transcribe.ts'
import type { Environment } from '#shared/local-server/environment.ts'
import { loadModels } from '#shared/models/models.ts'
import { embedderModel, startEmbedder } from './support/embeddings/embeddings.ts'
import { startUpstream } from './support/processes/upstream.ts'
import { askTranscript, collectTranscript, eventsOf, localModel, speechModel } from './support/speech/calls.ts'
import { findEnvironment } from './support/speech/running.ts'
import { startSpeechServer } from './support/speech/server.ts'
import { silence, waveOf } from './support/speech/wave.ts'
import { startStack } from './support/stack.ts'

const environment = await findEnvironment()
const pathOf = (path: string) => fileURLToPath(new URL(path, import.meta.url))

interface Entry {
  readonly index: number
  readonly embedding: number[]
}

const BOUNDS = { inputsMax: 64, tokensMax: 10_000, waitMs: 1, callsMax: 4 }

let open: AsyncDisposableStack
afterEach(() => open.disposeAsync())

/**
 * Runs several embedding jobs concurrently, so that their texts are sent to the upstream in one request. If `POISON` is among the texts, then
 * `spoil` changes the upstream's response.
 */
async function embedAtOnce(texts: readonly string[], spoil: (entries: Entry[], place: number) => Entry[]) {
  open = new AsyncDisposableStack()
  const calls: string[][] = []
  const upstream = open.use(
    await startUpstream(({ body }, answer) => {
      const input = body.input as string[]
      calls.push(input)
      const entries = input.map((text, index) => ({ index, embedding: [text.length, 1] }))
      const place = input.indexOf('POISON')
      answer.json({ data: place < 0 ? entries : spoil(entries, place) })
    }),
  )
  const engine = { type: 'openai', base_url: `${upstream.url}/v1` }
  const model = ModelConfig.parse({ id: 'embed-1', pool: 'embeddings', engine })
  const batcher = new Batcher(openOpenAiEmbeddings(model, {}), BOUNDS)
  open.defer(() => batcher.close())
  const jobs = texts.map(async (text) => {
    const vectors: number[][] = []
    const { signal } = new AbortController()
    await batcher.embed([{ text, tokens: 1 }], signal, (_, vector) => void vectors.push([...vector]))
    return vectors
  })
  const ends = await Promise.allSettled(jobs)
  return { calls, ends }
}

describe('an invalid vector in the response of a shared upstream call', () => {
  it.each<[string, string, (entries: Entry[], place: number) => object[]]>([
    [
      'has no numbers, as from models in half precision',
      'input[0]',
      (entries, place) => entries.map((entry) => (entry.index === place ? { ...entry, embedding: [null, 1] } : entry)),
    ],
    [
      'has a number that is not finite',
      'input[0]',
      (entries, place) =>
        entries.map((entry) => ({
          ...entry,
          embedding: Buffer.from(
            Float32Array.of(entry.index === place ? Number.NaN : (entry.embedding[0] ?? 0), 1).buffer,
          ).toString('base64'),
        })),
    ],
    ['is missing', 'input', (entries, place) => entries.filter(({ index }) => index !== place)],
  ])('fails only the job that requested the vector, if the vector %s', async (_, param, spoil) => {
    const { calls, ends } = await embedAtOnce(['a', 'POISON', 'ccc'], spoil as never)
    expect(calls[0]).toEqual(['a', 'POISON', 'ccc'])
    expect(ends[0]).toEqual({ status: 'fulfilled', value: [[1, 1]] })
    expect(ends[1]).toMatchObject({ status: 'rejected', reason: { code: 'upstream_error', param } })
    expect(ends[2]).toEqual({ status: 'fulfilled', value: [[3, 1]] })
  })
})

describe('an input token that is not a safe integer', () => {
  it('is refused with 400 and its path, and does not count as a server error', async () => {
    open = new AsyncDisposableStack()
    const engine = { type: 'openai', base_url: 'http://127.0.0.1:9/v1' }
    const stack = open.use(await startStack({ models: [{ id: 'embed-1', pool: 'embeddings', engine }] }))
    const response = await stack.post('/v1/embeddings', { model: 'embed-1', input: [[1], [2, 2 ** 53]] })
    expect(response.status).toBe(400)
    expect(await response.json()).toMatchObject({
      error: { code: 'integer_above_max_value', param: 'input[1][1]', type: 'invalid_request_error' },
    })
  })
})

describe('a short text in a queue of many long texts', () => {
  it('is sent to the upstream together with at most ten of the long texts', async () => {
    open = new AsyncDisposableStack()
    const embedder = open.use(await startEmbedder())
    const catalogue = loadModels(pathOf('../models.yaml'))
    const { embeddings } = catalogue.find('all-minilm-l6-v2') as ModelConfig
    const { batch_inputs_max: inputsMax, batch_tokens_max: tokensMax } = embeddings
    const engine = openOpenAiEmbeddings(ModelConfig.parse(embedderModel(embedder)), {})
    const batcher = new Batcher(engine, { inputsMax, tokensMax, waitMs: 1, callsMax: 4 })
    open.defer(() => batcher.close())
    const embed = (texts: EmbedText[]) => batcher.embed(texts, new AbortController().signal, () => {})
    const long = Array.from({ length: 200 }, (_, index) => ({ text: `long ${index}`, tokens: 200 }))
    await Promise.all([embed(long), embed([{ text: 'tiny', tokens: 2 }])])
    const shared = embedder.calls.find((call) => call.includes('tiny')) ?? []
    expect(shared.length).toBeGreaterThan(1)
    expect(shared.length).toBeLessThanOrEqual(11)
  })
})

describe('the prompt tokens of a transcription', () => {
  const usage = { input_tokens: 33, output_tokens: 4, total_tokens: 37 }
  const input_token_details = { audio_tokens: 30, text_tokens: 3 }
  const frames = [
    { type: 'transcript.text.delta', delta: 'Hello.' },
    {
      type: 'transcript.text.done',
      text: 'Hello.',
      usage: { type: 'tokens', ...usage, input_token_details },
    },
  ]

  it.each(['json', 'stream'])('are not counted as audio tokens in the response format %s', async (form) => {
    open = new AsyncDisposableStack()
    const server = open.use(
      await startSpeechServer({
        '/v1/audio/transcriptions': (_, answer) => {
          answer.open()
          for (const frame of frames) answer.frame(frame)
          answer.end()
        },
      }),
    )
    const engine = openLocalTranscription(localModel(), () => server.connect())
    open.defer(() => engine.close())
    const events = await collectTranscript(engine, askTranscript({ prompt: 'Say hello.' }), { duration: 3 })
    expect(usageOf(events, form)).toMatchObject({ ...usage, input_token_details })
  })

  /** Returns the usage that a caller receives: in the response, or at the end of the stream. */
  function usageOf(events: TranscribeEvent[], form: string): unknown {
    const transcript = { format: 'json', words: false, segments: false, logprobs: false } as const
    const ids = { request_id: 'req_1', call_id: '1', created_at: 1, model: 's1' }
    const encode = { ...ids, include_usage: false, version: '', transcript }
    if (form === 'json') return (encodeTranscript(events, encode) as { usage: unknown }).usage
    const stream = new TranscriptStream(encode)
    for (const event of events) stream.push(event)
    return JSON.parse(stream.end().at(-1)?.data ?? '').usage
  }
})

describe('a transcript from an upstream with an invalid duration', () => {
  it.each([-1, 1e308, 'NaN'])('counts as zero seconds of audio if the duration is %j', async (duration) => {
    open = new AsyncDisposableStack()
    const answer = { text: 'Hello.', duration }
    const server = open.use(await startSpeechServer({ '/v1/audio/transcriptions': (_, to) => to.json(answer) }))
    const engine = openOpenAiTranscription(speechModel(server.url), {})
    open.defer(() => engine.close())
    const events = await collectTranscript(engine)
    expect(eventsOf(events, 'start')).toMatchObject([{ duration: 0, input_tokens: 0 }])
    expect(eventsOf(events, 'usage')).toMatchObject([{ usage: { input_tokens: 0 } }])
  })
})

describe.skipIf(!environment || !existsSync('/dev/full'))('a full disk during audio decoding', () => {
  it('is reported as a server error, not as an error of the audio file', async () => {
    open = new AsyncDisposableStack()
    const directory = await mkdtemp(join(tmpdir(), 'sluice-attack-'))
    open.defer(() => rm(directory, { recursive: true, force: true }))
    const file = join(directory, 'good.wav')
    await writeFile(file, waveOf(silence(30)))
    const { python, directory: prepared } = environment as Environment
    const script = [pathOf('./support/speech/full_disk.py'), pathOf('../shared/local-server/python')]
    const args = ['-I', '-B', ...script, join(prepared, 'site'), file]
    const { stdout } = await promisify(execFile)(python.executable, args)
    expect(JSON.parse(stdout)).toEqual({ status: 500, code: 'internal_error' })
  }, 60_000)
})
