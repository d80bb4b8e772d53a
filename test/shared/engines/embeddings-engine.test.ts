import { describe, expect, it } from 'vitest'
import { ModelConfig } from '#schemas/models.ts'
import { openOpenAiEmbeddings } from '#shared/engines/openai/embeddings.ts'
import { type EmbedderOptions, embedderModel, startEmbedder, vectorOf } from '../../support/embeddings/embeddings.ts'
import { type Script, startUpstream } from '../../support/processes/upstream.ts'
import { failureOf } from '../../support/sdk.ts'

const never = () => new AbortController().signal

/** Opens an embeddings engine that calls a scripted server. */
async function openScripted(script: Script, engine: object = {}) {
  const upstream = await startUpstream(script)
  const config = { type: 'openai', base_url: `${upstream.url}/v1`, ...engine }
  const model = ModelConfig.parse({ id: 'e1', pool: 'embeddings', engine: config })
  const opened = openOpenAiEmbeddings(model, { KEY: 'sk-upstream' })
  return {
    upstream,
    embed: (texts: string[], signal = never()) => opened.embed(texts, { signal }),
    async [Symbol.asyncDispose]() {
      await opened.close()
      await upstream[Symbol.asyncDispose]()
    },
  }
}

async function openOn(options: EmbedderOptions = {}) {
  const embedder = await startEmbedder(options)
  const opened = openOpenAiEmbeddings(ModelConfig.parse(embedderModel(embedder)), {})
  return {
    embedder,
    embed: (texts: string[], signal = never()) => opened.embed(texts, { signal }),
    async [Symbol.asyncDispose]() {
      await opened.close()
      await embedder[Symbol.asyncDispose]()
    },
  }
}

const TEXTS = ['one', 'two words', 'three']
const VECTORS = TEXTS.map((text) => vectorOf(text))

describe('the OpenAI-compatible embedding engine', () => {
  it('sends encoding_format base64, and the model name, key and headers of the catalogue entry', async () => {
    await using engine = await openScripted(
      (call, answer) => answer.json({ data: [{ index: 0, embedding: 'AACAPw==' }], model: call.body.model }),
      { model: 'org/upstream-name', api_key_env: 'KEY', headers: { 'X-Team': 'a' } },
    )
    expect(await engine.embed(['hello'])).toEqual({
      vectors: [Float32Array.of(1)],
      tokens: undefined,
      tokensEach: undefined,
    })
    const [call] = engine.upstream.calls
    expect(call).toMatchObject({
      path: '/v1/embeddings',
      headers: { authorization: 'Bearer sk-upstream', 'x-team': 'a', 'content-type': 'application/json' },
      body: { model: 'org/upstream-name', input: ['hello'], encoding_format: 'base64' },
    })
  })

  it.each([
    ['base64', {}],
    ['numbers instead of base64', { isFloatOnly: true }],
    ['no usage', { hasNoUsage: true }],
    ['a token count per text', { tellsEach: true }],
  ])('parses a response with %s', async (_, options: EmbedderOptions) => {
    await using engine = await openOn(options)
    expect(await engine.embed(TEXTS)).toEqual({
      vectors: VECTORS,
      tokens: options.hasNoUsage ? undefined : 7,
      tokensEach: options.tellsEach ? [2, 3, 2] : undefined,
    })
  })

  it('omits encoding_format after the server has refused it', async () => {
    await using engine = await openOn({ refusesFormat: true })
    const answers = await Promise.all([engine.embed(TEXTS), engine.embed(TEXTS)])
    for (const { vectors } of answers) expect(vectors).toEqual(VECTORS)
    await engine.embed(TEXTS)
    expect(engine.embedder.upstream.calls.filter(({ body }) => 'encoding_format' in body)).toHaveLength(2)
  })

  it.each([
    ['too few vectors', { data: [{ index: 0, embedding: [1] }] }],
    ['too many vectors', { data: [0, 1, 2].map((index) => ({ index, embedding: [1] })) }],
    ['a duplicate index', { data: [0, 0].map((index) => ({ index, embedding: [1] })) }],
    ['vectors of different lengths', { data: [[1], [1, 2]].map((embedding, index) => ({ index, embedding })) }],
    ['an empty vector', { data: [[], []].map((embedding, index) => ({ index, embedding })) }],
    ['null instead of a number', { data: [[1], [null]].map((embedding, index) => ({ index, embedding })) }],
    ['NaN', { data: ['AACAPw==', 'AADAfw=='].map((embedding, index) => ({ index, embedding })) }],
    ['an incomplete float32', { data: ['AACAPw==', 'AACA'].map((embedding, index) => ({ index, embedding })) }],
    ['invalid base64', { data: ['AACAPw==', '!!!!????'].map((embedding, index) => ({ index, embedding })) }],
    ['no data', { object: 'list' }],
    ['an error with status 200', { error: { message: 'It broke.', type: 'server_error' } }],
  ])('fails with the retryable upstream_error if the response has %s', async (_, body) => {
    await using engine = await openScripted((_call, answer) => answer.json(body))
    expect(await failureOf(engine.embed(['a', 'b']))).toMatchObject({ code: 'upstream_error' })
  })

  it('keeps the order of the response if the server omits indices', async () => {
    await using engine = await openScripted((_call, answer) =>
      answer.json({ data: [{ embedding: [1] }, { embedding: [2] }] }),
    )
    expect((await engine.embed(['a', 'b'])).vectors).toEqual([Float32Array.of(1), Float32Array.of(2)])
  })

  it.each([
    [400, { error: { message: 'Bad input.', code: null, param: 'input' } }, 'invalid_request', 'input'],
    [400, { message: "This model's maximum context length is 512 tokens." }, 'context_length_exceeded', 'input'],
    [413, { error: 'batch too large' }, 'request_too_large', null],
    [401, { error: { message: 'Wrong key sk-1.' } }, 'upstream_refused', null],
    [404, { error: { message: 'No such model.' } }, 'upstream_refused', null],
    [429, { error: { message: 'Slow down.' } }, 'overloaded', null],
    [500, 'oops', 'upstream_error', null],
  ])('maps status %i with %j to the error code %s', async (status, body, code, param) => {
    await using engine = await openScripted((_call, answer) => answer.json(body, status))
    expect(await failureOf(engine.embed(['a']))).toMatchObject({ code, param })
  })

  it('opens its circuit breaker after two failures in a row, and refuses calls with the code of the last failure', async () => {
    const script: Script = (_call, answer) => answer.json({}, 500)
    await using engine = await openScripted(script, { breaker: { failures: 2, reset_ms: 60_000 } })
    for (const _ of [1, 2, 3]) await failureOf(engine.embed(['a']))
    expect(engine.upstream.calls).toHaveLength(2)
    expect(await failureOf(engine.embed(['a']))).toMatchObject({ code: 'upstream_error' })
  })

  it('fails with upstream_timeout if the server never responds', async () => {
    await using engine = await openScripted(() => {}, { timeouts: { total_ms: 50 } })
    expect(await failureOf(engine.embed(['a']))).toMatchObject({ code: 'upstream_timeout' })
  })

  it('closes the connection of an aborted call', async () => {
    const leave = new AbortController()
    await using engine = await openScripted(() => leave.abort(new Error('disconnected')))
    expect(await failureOf(engine.embed(['a'], leave.signal))).toMatchObject({ message: 'disconnected' })
    await expect(engine.upstream.calls[0]?.closed).resolves.toEqual(expect.any(Number))
  })

  it('fails with upstream_error if the connection is cut or refused', async () => {
    await using engine = await openScripted((_call, answer) => answer.cut())
    expect(await failureOf(engine.embed(['a']))).toMatchObject({ code: 'upstream_error' })
    await engine.upstream[Symbol.asyncDispose]()
    expect(await failureOf(engine.embed(['a']))).toMatchObject({ code: 'upstream_error' })
  })
})
