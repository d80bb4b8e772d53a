import { createOpenAICompatible } from '@ai-sdk/openai-compatible'
import { OpenAIEmbeddings } from '@langchain/openai'
import * as ai7 from 'ai'
import * as ai6 from 'ai-6'
import { createOpenAICompatible as createOpenAICompatible2 } from 'ai-sdk-openai-compatible-2'
import OpenAI from 'openai'
import OpenAI4 from 'openai-4'
import OpenAI6 from 'openai-6'
import { describe, expect, inject, it } from 'vitest'
import { z } from 'zod'
import { DIMENSIONS, tokensOf, vectorOf } from '../support/embeddings/embeddings.ts'
import { describeEmbeddings, MODEL } from '../support/embeddings/service.ts'
import { failureOf, UNICODE } from '../support/sdk.ts'
import { TEST_KEY } from '../support/stack.ts'

/**
 * Major versions of the `openai` package. The tests use only calls that have the same types in all versions.
 * The client of each version therefore has the type of the newest one.
 */
const SDKS = [
  { major: 7, Client: OpenAI },
  { major: 6, Client: OpenAI6 },
  { major: 4, Client: OpenAI4 },
] as unknown as { readonly major: number; readonly Client: typeof OpenAI }[]

/** Two generations of the Vercel AI SDK, each with its provider package. Both are typed as the newest one. */
const VERCEL = [
  { name: 'ai 7 with openai-compatible 3', ai: ai7, create: createOpenAICompatible },
  { name: 'ai 6 with openai-compatible 2', ai: ai6, create: createOpenAICompatible2 },
] as unknown as { readonly name: string; readonly ai: typeof ai7; readonly create: typeof createOpenAICompatible }[]

const TEXTS = ['one', 'two words', UNICODE]
const VECTORS = TEXTS.map((text) => vectorOf(text))
const TOKENS = TEXTS.reduce((sum, text) => sum + tokensOf(text), 0)

/** Schema of the response: every field, and no further field. */
const Answer = z.strictObject({
  object: z.literal('list'),
  data: z.array(
    z.strictObject({
      object: z.literal('embedding'),
      index: z.int(),
      embedding: z.array(z.number()).length(DIMENSIONS),
    }),
  ),
  model: z.literal(MODEL),
  usage: z.strictObject({
    prompt_tokens: z.literal(TOKENS),
    completion_tokens: z.literal(0),
    total_tokens: z.literal(TOKENS),
    prompt_tokens_details: z.null(),
    completion_tokens_details: z.null(),
  }),
})

/** Converts the vectors of a response to float32. */
const float32 = (vectors: readonly (readonly number[])[]) => vectors.map((vector) => Float32Array.from(vector))

describeEmbeddings('embeddings through official packages', inject('kafka'), (service) => {
  describe.each(SDKS)('the embeddings API of the openai package, version $major', ({ Client }) => {
    const open = () => new Client({ apiKey: TEST_KEY, baseURL: `${service.stack.url}/v1`, maxRetries: 0 })

    it.each([
      ['in base64, the default format of the package', {}],
      ['as arrays of numbers', { encoding_format: 'float' as const }],
    ])('returns the vectors %s', async (_, format) => {
      const answer = await open().embeddings.create({ model: MODEL, input: TEXTS, ...format })
      expect(float32(answer.data.map(({ embedding }) => embedding))).toEqual(VECTORS)
      Answer.parse(JSON.parse(JSON.stringify(answer)))
    })

    it('returns base64 if the caller requests it', async () => {
      const answer = await open().embeddings.create({ model: MODEL, input: 'one', encoding_format: 'base64' })
      const bytes = Buffer.from(answer.data[0]?.embedding as unknown as string, 'base64')
      expect(new Float32Array(new Uint8Array(bytes).buffer)).toEqual(VECTORS[0])
    })

    it('accepts token ids as input, and returns vectors of the requested dimensions', async () => {
      const answer = await open().embeddings.create({ model: MODEL, input: [[15339, 1917]], dimensions: 8 })
      expect(answer.data[0]?.embedding).toHaveLength(8)
      expect(service.embedder.calls.at(-1)).toEqual(['hello world'])
    })

    it('throws BadRequestError that names the invalid input', async () => {
      const failure = await failureOf(open().embeddings.create({ model: MODEL, input: ['a', ''] }))
      expect(failure).toBeInstanceOf(Client.BadRequestError)
      expect(failure).toMatchObject({ status: 400, code: 'empty_string', param: 'input[1]' })
    })

    it('makes concurrent calls, and each returns its own vectors', async () => {
      const client = open()
      const texts = Array.from({ length: 64 }, (_, i) => `text ${i}`)
      const answers = await Promise.all(texts.map((input) => client.embeddings.create({ model: MODEL, input })))
      expect(float32(answers.map(({ data }) => data[0]?.embedding ?? []))).toEqual(texts.map((text) => vectorOf(text)))
    })
  })

  it('OpenAIEmbeddings of LangChain returns the vectors of documents and of a query', async () => {
    const configuration = { baseURL: `${service.stack.url}/v1` }
    const embeddings = new OpenAIEmbeddings({
      model: MODEL,
      apiKey: TEST_KEY,
      maxRetries: 0,
      batchSize: 2,
      configuration,
    })
    expect(float32(await embeddings.embedDocuments(['one', 'two words']))).toEqual(VECTORS.slice(0, 2))
    expect(float32([await embeddings.embedQuery('one')])).toEqual(VECTORS.slice(0, 1))
  })

  it.each(VERCEL)('embed and embedMany of $name return the vectors of their texts', async ({ ai, create }) => {
    const provider = create({ name: 'sluice', baseURL: `${service.stack.url}/v1`, apiKey: TEST_KEY })
    const model = provider.embeddingModel(MODEL)
    const one = await ai.embed({ model, value: 'one', maxRetries: 0 })
    expect(float32([one.embedding])).toEqual(VECTORS.slice(0, 1))
    const many = await ai.embedMany({ model, values: TEXTS, maxRetries: 0 })
    expect(float32(many.embeddings)).toEqual(VECTORS)
    expect(many.usage.tokens).toBe(TOKENS)
  })
})
