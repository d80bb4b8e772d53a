import { z } from 'zod'
import type { ModelConfig, UpstreamConfig } from '#schemas/models.ts'
import { CALLS_MAX, type Embedded, type EmbeddingEngine, type EngineOptions } from '#shared/engines/engine.ts'
import { answerError } from '#shared/engines/upstream/error.ts'
import type { Decoder, WholeBounds } from '#shared/engines/upstream/json.ts'
import { keyOf, missingKeyOf } from '#shared/engines/upstream/key.ts'
import type { ModelPartition } from '#shared/engines/upstream/limit-partition.ts'
import { openReader } from '#shared/engines/upstream/readers.ts'
import { Upstream, type UpstreamOptions } from '#shared/engines/upstream/upstream.ts'
import { ServiceError } from '#shared/lib/error.ts'
import { vectorFromBase64 } from '#shared/lib/vector.ts'

const Answer = z.object({
  data: z.array(
    z.object({
      index: z.int().min(0).optional(),
      embedding: z.unknown(),
      tokens: z
        .int()
        .min(0)
        .optional()
        .describe('Number of tokens of this text. Only the local model server sends this field.'),
    }),
  ),
  usage: z
    .object({ prompt_tokens: z.int().min(0).optional(), total_tokens: z.int().min(0).optional() })
    .nullish()
    .catch(undefined),
})

/** Opens an embedding engine for a server with POST /embeddings: vLLM, TEI, Infinity, Ollama, LocalAI, OpenAI. */
export function openOpenAiEmbeddings(
  model: ModelConfig,
  env: Record<string, string | undefined>,
  share?: ModelPartition,
): EmbeddingEngine {
  const { engine } = model
  if (engine.type !== 'openai') throw new Error(`model '${model.id}' does not run on an OpenAI-dialect upstream`)
  const key = keyOf(model, env)
  const headers: Record<string, string> = key ? { authorization: `Bearer ${key}` } : {}
  return new OpenAiEmbeddings(model, { ...engine, concurrency: engine.concurrency ?? CALLS_MAX }, headers, {
    missingKey: missingKeyOf(model, env),
    ...(engine.concurrency !== undefined && { share }),
  })
}

const NUMBERS_MAX = 8 * 1024
/** Maximum bytes of a vector's number in JSON: all digits of a double, and a comma. */
const NUMBER_BYTES_MAX = 24
/** Maximum bytes of an answer. 2,048 vectors of 4,096 numbers fit, either in base64 or in JSON with eight characters per number. */
const WHOLE_BYTES_MAX = 64 * 1024 * 1024

export class OpenAiEmbeddings implements EmbeddingEngine {
  readonly #id: string
  readonly #name: string
  readonly #upstream: Upstream
  /** Whether vectors are requested in base64, which is exact and a third as long as JSON numbers. False after the server has rejected base64. */
  #requestsBase64 = true

  constructor(model: ModelConfig, config: UpstreamConfig, headers: Record<string, string>, options?: UpstreamOptions) {
    this.#id = model.id
    this.#name = config.model ?? model.id
    this.#upstream = new Upstream(model, config, headers, options)
  }

  async embed(texts: readonly string[], options: EngineOptions): Promise<Embedded> {
    const requestsBase64 = this.#requestsBase64
    try {
      return await this.#call(texts, requestsBase64, options)
    } catch (error) {
      if (!requestsBase64 || !isAboutFormat(error)) throw withInputParam(error)
      this.#requestsBase64 = false
    }
    return await this.embed(texts, options)
  }

  close(): Promise<void> {
    return this.#upstream.close()
  }

  async #call(texts: readonly string[], requestsBase64: boolean, options: EngineOptions): Promise<Embedded> {
    const asked = { model: this.#name, input: texts, ...(requestsBase64 && { encoding_format: 'base64' }) }
    const body = JSON.stringify(asked)
    const call = { path: '/embeddings', headers: {}, body, isStream: false, signal: options.signal, trace: options }
    const exchange = await this.#upstream.call(call)
    try {
      const found: Embedded[] = []
      const reader = openReader(exchange, new EmbeddingsDecoder(this.#id, texts.length), boundsOf(texts.length))
      for (let isOver = false; !isOver; ) {
        await exchange.waitForBytes()
        isOver = await reader.read(exchange.take(), found)
      }
      exchange.release(true)
      return found[0] as Embedded
    } finally {
      exchange.release(false)
    }
  }
}

function boundsOf(texts: number): WholeBounds {
  const values = (texts + 4) * NUMBERS_MAX
  return { values, bytes: Math.min(values * NUMBER_BYTES_MAX, WHOLE_BYTES_MAX) }
}

class EmbeddingsDecoder implements Decoder<Embedded> {
  readonly isDone = false
  readonly #model: string
  readonly #count: number

  constructor(model: string, count: number) {
    this.#model = model
    this.#count = count
  }

  *whole(body: Record<string, unknown>, out: Embedded[]): Generator<undefined, void> {
    out.push(yield* decodeEmbeddings(this.#model, body, this.#count))
  }

  frame(): void {
    throw answerError(this.#model, 'responded with a stream')
  }

  isEnd(): boolean {
    return false
  }

  end(): undefined {}
}

function isAboutFormat(error: unknown): boolean {
  if (!(error instanceof ServiceError) || error.status !== 400) return false
  return error.param === 'encoding_format' || error.message.includes('encoding_format')
}

function withInputParam(error: unknown): unknown {
  if (!(error instanceof ServiceError) || error.code !== 'context_length_exceeded' || error.param !== 'messages') {
    return error
  }
  return new ServiceError(error.code, error.message, { cause: error.cause, param: 'input' })
}

type Entry = z.infer<typeof Answer>['data'][number]

/**
 * Reads the answer of a server with OpenAI's API. The vectors are base64 or numbers, in any order. Must be run by `runYielding`.
 *
 * @throws ServiceError `upstream_error` unless there is one valid vector per text. `param` names the text with the invalid vector. If any text may be
 * the cause, then `param` is `input`
 */
function* decodeEmbeddings(
  model: string,
  body: Record<string, unknown>,
  count: number,
): Generator<undefined, Embedded> {
  // The count is checked before any entry is parsed, because the answer may have a million entries.
  if (Array.isArray(body.data) && body.data.length !== count) throw wrongCount(model, count)
  const { data: answer } = Answer.safeParse(body)
  if (!answer) throw unusable(model, 'sent a response in an unknown format')
  const entries = inOrder(answer.data, count)
  if (!entries) throw wrongCount(model, count)
  const vectors: Float32Array[] = []
  for (const [place, { embedding }] of entries.entries()) {
    vectors.push(vectorOf(model, embedding, `input[${place}]`))
    yield
  }
  const size = vectors[0]?.length
  if (vectors.some((vector) => vector.length !== size)) throw unusable(model, 'returned vectors of different lengths')
  const each = entries.map(({ tokens }) => tokens).filter((tokens) => tokens !== undefined)
  return {
    vectors,
    tokens: answer.usage?.prompt_tokens ?? answer.usage?.total_tokens,
    tokensEach: each.length === count ? each : undefined,
  }
}

function inOrder(data: readonly Entry[], count: number): Entry[] | undefined {
  const entries = new Array<Entry>(count)
  for (const [place, entry] of data.entries()) {
    const index = entry.index ?? place
    if (index >= count || entries[index]) return undefined
    entries[index] = entry
  }
  return data.length === count ? entries : undefined
}

function vectorOf(model: string, embedding: unknown, param: string): Float32Array {
  const vector = typeof embedding === 'string' ? vectorFromBase64(embedding) : vectorFromNumbers(embedding)
  if (!vector || vector.length === 0) throw unusable(model, 'returned an invalid vector', param)
  // Infinity and NaN have no JSON form, and no distance to other vectors. Models in half precision produce these values by overflow.
  if (!vector.every(Number.isFinite)) throw unusable(model, 'returned a vector with numbers that are not finite', param)
  return vector
}

/**
 * Converts JSON numbers to a vector. Validation by a schema library would take longer than all other work on an answer.
 */
function vectorFromNumbers(embedding: unknown): Float32Array | undefined {
  if (!Array.isArray(embedding) || !embedding.every((number) => typeof number === 'number')) return undefined
  return Float32Array.from(embedding)
}

function wrongCount(model: string, count: number): ServiceError {
  return unusable(model, `did not return one vector for each of ${count} texts`)
}

function unusable(model: string, what: string, param = 'input'): ServiceError {
  return new ServiceError('upstream_error', `The upstream of model '${model}' ${what}.`, { param })
}
