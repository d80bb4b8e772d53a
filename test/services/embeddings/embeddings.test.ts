import { describe, expect, inject, it } from 'vitest'
import { DIMENSIONS, embedderModel, startEmbedder, tokensOf, vectorOf } from '../../support/embeddings/embeddings.ts'
import { type Stack, type StackOptions, startStack, until } from '../../support/stack.ts'
import { openWs } from '../../support/ws.ts'

interface List {
  object: string
  data: { object: string; index: number; embedding: number[] | string }[]
  model: string
  usage: Record<string, unknown>
}

const MODES: { mode: string; options: () => StackOptions }[] = [
  { mode: 'embedded', options: () => ({}) },
  { mode: 'Kafka', options: () => ({ kafka: inject('kafka') ?? undefined }) },
]

async function embed(stack: Stack, input: unknown, more: object = {}): Promise<List> {
  const response = await stack.post('/v1/embeddings', { model: 'embed-1', input, ...more })
  expect(response.status).toBe(200)
  return (await response.json()) as List
}

/** Returns the number of job attempts that currently run in the embeddings pool. */
async function running(stack: Stack): Promise<number> {
  const text = await (await stack.get('/metrics')).text()
  return Number(/^sluice_pool_running\{pool="embeddings"\} (\d+)/m.exec(text)?.[1])
}

const floatsOf = (list: List) => list.data.map(({ embedding }) => Float32Array.from(embedding as number[]))

for (const { mode, options } of MODES) {
  describe.skipIf(mode === 'Kafka' && !inject('kafka'))(`the embeddings endpoint, ${mode}`, () => {
    it('an embeddings call returns a vector for a text', async () => {
      await using embedder = await startEmbedder()
      await using stack = await startStack({ ...options(), models: [embedderModel(embedder)] })
      const tokens = tokensOf('hello over there')
      expect(await embed(stack, 'hello over there')).toEqual({
        object: 'list',
        data: [{ object: 'embedding', index: 0, embedding: expect.any(Array) }],
        model: 'embed-1',
        usage: {
          prompt_tokens: tokens,
          completion_tokens: 0,
          total_tokens: tokens,
          prompt_tokens_details: null,
          completion_tokens_details: null,
        },
      })
    })

    it('an embeddings call returns the same float32 values as numbers and as base64', async () => {
      await using embedder = await startEmbedder()
      await using stack = await startStack({ ...options(), models: [embedderModel(embedder)] })
      const [numbers] = floatsOf(await embed(stack, 'some text'))
      const { data } = await embed(stack, 'some text', { encoding_format: 'base64' })
      const bytes = Buffer.from(data[0]?.embedding as string, 'base64')
      expect(numbers).toEqual(vectorOf('some text'))
      expect(new Float32Array(new Uint8Array(bytes).buffer)).toEqual(numbers)
    })

    it('an embeddings call with many inputs returns the vectors in order, even if the inputs need several upstream calls', async () => {
      await using embedder = await startEmbedder()
      const model = embedderModel(embedder, { embeddings: { batch_inputs_max: 50 } })
      await using stack = await startStack({ ...options(), models: [model] })
      const texts = Array.from({ length: 333 }, (_, i) => `text ${i}`)
      const list = await embed(stack, texts)
      expect(list.data.map(({ index }) => index)).toEqual(texts.map((_, i) => i))
      expect(floatsOf(list)).toEqual(texts.map((text) => vectorOf(text)))
      expect(list.usage.prompt_tokens).toBe(texts.length * 3)
      expect(embedder.calls).toHaveLength(7)
    })

    it.each([
      ['by a synchronous call', {}],
      ['by a durable job', { 'idempotency-key': 'largest' }],
    ])('the largest possible embeddings response is returned %s', async (_, headers) => {
      await using embedder = await startEmbedder({ dimensions: 3_072 })
      const model = embedderModel(embedder, { embeddings: { dimensions: 3_072 } })
      await using stack = await startStack({ ...options(), models: [model] })
      const input = Array.from({ length: 2_048 }, (_, i) => `${i % 7}`)
      const body = { model: 'embed-1', input, encoding_format: 'base64' }
      const { data } = (await (await stack.post('/v1/embeddings', body, { headers })).json()) as List
      expect(data).toHaveLength(2_048)
      expect(data[2_047]?.embedding).toBe(Buffer.from(vectorOf('3', 3_072).buffer).toString('base64'))
    })

    it('embeddings calls of concurrent callers share upstream calls, which contain each text once', async () => {
      const gate = Promise.withResolvers<void>()
      await using embedder = await startEmbedder({ before: () => gate.promise })
      const model = embedderModel(embedder, { engine: { concurrency: 1 } })
      await using stack = await startStack({ ...options(), models: [model] })
      const texts = Array.from({ length: 40 }, (_, i) => `text ${i % 20}`)
      const answers = [embed(stack, 'first')]
      await until(() => embedder.calls.length === 1)
      answers.push(...texts.map((text) => embed(stack, text)))
      await until(async () => (await running(stack)) === 41)
      gate.resolve()
      const vectors = (await Promise.all(answers)).flatMap(floatsOf)
      expect(vectors).toEqual(['first', ...texts].map((text) => vectorOf(text)))
      expect(embedder.calls[1]?.toSorted()).toEqual(texts.slice(0, 20).toSorted())
      expect(embedder.calls).toHaveLength(2)
    })

    it('a durable embeddings job stores a response that is equal to the response of a synchronous call', async () => {
      await using embedder = await startEmbedder()
      await using stack = await startStack({ ...options(), models: [embedderModel(embedder)] })
      const body = { model: 'embed-1', input: ['one', 'two'], encoding_format: 'base64' }
      const submitted = await stack.post('/v1/jobs', { endpoint: '/v1/embeddings', body })
      expect(submitted.status).toBe(202)
      const { id } = (await submitted.json()) as { id: string }
      const job = await (await stack.get(`/v1/jobs/${id}?wait=20`)).json()
      expect(job).toMatchObject({ status: 'completed', endpoint: '/v1/embeddings', usage: { prompt_tokens: 4 } })
      const plain = await embed(stack, body.input, { encoding_format: 'base64' })
      expect(await (await stack.get(`/v1/jobs/${id}/result`)).json()).toEqual(plain)
    })

    it('a durable embeddings job reports its progress', async () => {
      const gate = Promise.withResolvers<void>()
      await using embedder = await startEmbedder({
        before: (texts) => (texts.includes('3') ? gate.promise : undefined),
      })
      const model = embedderModel(embedder, { engine: { concurrency: 1 }, embeddings: { batch_inputs_max: 1 } })
      await using stack = await startStack({ ...options(), models: [model] })
      const headers = { prefer: 'respond-async' }
      const body = { model: 'embed-1', input: ['1', '2', '3', '4'] }
      const { id } = (await (await stack.post('/v1/embeddings', body, { headers })).json()) as { id: string }
      const { progress } = await until(async () => {
        const job = (await (await stack.get(`/v1/jobs/${id}`)).json()) as { progress: { percent: number } | null }
        return job.progress && job
      })
      expect(progress).toMatchObject({ phase: 'embedding', percent: 50, message: '2 of 4 inputs' })
      gate.resolve()
    })

    it('an embeddings call returns the response over a WebSocket', async () => {
      await using embedder = await startEmbedder()
      await using stack = await startStack({ ...options(), models: [embedderModel(embedder)] })
      const body = { model: 'embed-1', input: 'hello' }
      using client = await openWs(stack)
      client.send({ type: 'request.create', id: 'r1', endpoint: '/v1/embeddings', body })
      expect(await client.end('r1')).toMatchObject({ type: 'request.completed', body: await embed(stack, 'hello') })
    })

    it('an embeddings call closes the upstream call if the caller disconnects', async () => {
      await using embedder = await startEmbedder({ before: () => new Promise(() => {}) })
      await using stack = await startStack({ ...options(), models: [embedderModel(embedder)] })
      const leave = new AbortController()
      const call = stack.post('/v1/embeddings', { model: 'embed-1', input: 'x' }, { signal: leave.signal })
      call.catch(() => {})
      await until(() => embedder.upstream.calls.length === 1)
      leave.abort()
      await expect(embedder.upstream.calls[0]?.closed).resolves.toEqual(expect.any(Number))
    })
  })
}

describe('the embeddings endpoint of a configured model', () => {
  it('truncates and renormalises vectors if the model can shorten them', async () => {
    await using embedder = await startEmbedder()
    await using stack = await startStack({ models: [embedderModel(embedder, { embeddings: { can_shorten: true } })] })
    const [short] = floatsOf(await embed(stack, 'some text', { dimensions: 8 }))
    const start = vectorOf('some text').slice(0, 8)
    const length = Math.hypot(...start)
    expect(short).toHaveLength(8)
    expect(Math.hypot(...(short as Float32Array))).toBeCloseTo(1, 6)
    for (const [i, number] of start.entries()) expect(short?.[i]).toBeCloseTo(number / length, 6)
  })

  it('accepts the native dimensions of a model that cannot shorten vectors', async () => {
    await using embedder = await startEmbedder()
    await using stack = await startStack({ models: [embedderModel(embedder)] })
    expect(floatsOf(await embed(stack, 'x', { dimensions: DIMENSIONS }))).toEqual([vectorOf('x')])
  })

  it('decodes token ids in one array or in several arrays', async () => {
    await using embedder = await startEmbedder()
    await using stack = await startStack({ models: [embedderModel(embedder)] })
    // In the encoding cl100k_base, 15339 and 1917 are "hello" and " world". The token 159 is an incomplete UTF-8 character, so it is
    // decoded as U+FFFD.
    const hello = [15339, 1917]
    expect(floatsOf(await embed(stack, hello))).toEqual([vectorOf('hello world')])
    expect(floatsOf(await embed(stack, [hello, [15339]]))).toEqual([vectorOf('hello world'), vectorOf('hello')])
    expect(floatsOf(await embed(stack, [[15339, 159]]))).toHaveLength(1)
    expect(embedder.calls.at(-1)).toEqual(['hello\uFFFD'])
  })

  it('decodes token ids with the encoding that the model catalogue names', async () => {
    await using embedder = await startEmbedder()
    const model = embedderModel(embedder, { embeddings: { token_encoding: 'o200k_base' } })
    await using stack = await startStack({ models: [model] })
    await embed(stack, [24912, 2375])
    expect(embedder.calls).toEqual([['hello world']])
  })

  it('uses the token counts of the server for each caller of a shared upstream call', async () => {
    await using embedder = await startEmbedder({ tellsEach: true })
    await using stack = await startStack({ models: [embedderModel(embedder, { engine: { concurrency: 1 } })] })
    const texts = Array.from({ length: 30 }, (_, i) => 'word '.repeat(i + 1))
    const lists = await Promise.all(texts.map((text) => embed(stack, text)))
    expect(embedder.calls.length).toBeLessThan(30)
    expect(lists.map(({ usage }) => usage.prompt_tokens)).toEqual(texts.map(tokensOf))
  })

  it('returns the correct vectors of texts with special tokens, NUL and emoji', async () => {
    await using embedder = await startEmbedder()
    await using stack = await startStack({ models: [embedderModel(embedder)] })
    const odd = ['<|endoftext|>', 'a\u0000b', '👩‍👩‍👧 ß\n', ' ', '日本語'.repeat(600)]
    expect(floatsOf(await embed(stack, odd))).toEqual(odd.map((text) => vectorOf(text)))
  })
})
