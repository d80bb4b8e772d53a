/** Attacks on the embeddings and transcription pools that once worked. */
import { afterEach, describe, expect, it } from 'vitest'
import { ModelConfig } from '#schemas/models.ts'
import { Batcher } from '#shared/engines/embed-batcher.ts'
import { openOpenAiEmbeddings } from '#shared/engines/embed-openai.ts'
import { startStack } from './stack.ts'
import { startUpstream } from './support/upstream.ts'

interface Entry {
  readonly index: number
  readonly embedding: number[]
}

const BOUNDS = { inputsMax: 64, tokensMax: 10_000, waitMs: 1, callsMax: 4 }

let open: AsyncDisposableStack
afterEach(() => open.disposeAsync())

/** Embeds texts of several jobs that come at once. The upstream's answer is spoilt while `POISON` is among its texts. */
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

describe('a text that spoils the answer of a call harms only its own job', () => {
  it.each<[string, string, (entries: Entry[], place: number) => object[]]>([
    [
      'when its vector holds no numbers, as models in half precision give',
      'input[0]',
      (entries, place) => entries.map((entry) => (entry.index === place ? { ...entry, embedding: [null, 1] } : entry)),
    ],
    [
      'when its vector is not finite',
      'input[0]',
      (entries, place) =>
        entries.map((entry) => ({
          ...entry,
          embedding: Buffer.from(
            Float32Array.of(entry.index === place ? Number.NaN : (entry.embedding[0] ?? 0), 1).buffer,
          ).toString('base64'),
        })),
    ],
    ['when its vector is missing', 'input', (entries, place) => entries.filter(({ index }) => index !== place)],
  ])('%s', async (_, param, spoil) => {
    const { calls, ends } = await embedAtOnce(['a', 'POISON', 'ccc'], spoil as never)
    expect(calls[0]).toEqual(['a', 'POISON', 'ccc'])
    expect(ends[0]).toEqual({ status: 'fulfilled', value: [[1, 1]] })
    expect(ends[1]).toMatchObject({ status: 'rejected', reason: { code: 'upstream_error', param } })
    expect(ends[2]).toEqual({ status: 'fulfilled', value: [[3, 1]] })
  })
})

describe('a token that is no safe integer', () => {
  it('is refused by its path, and is no failure of the service', async () => {
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
