import type { ModelConfig, UpstreamConfig } from '#schemas/models.ts'
import { CALLS_MAX, type Embedded, type EmbeddingEngine } from '#shared/engines/embedding.ts'
import type { Decoder, WholeBounds } from '#shared/engines/upstream/decoder.ts'
import { answerError } from '#shared/engines/upstream/error.ts'
import { keyOf, missingKeyOf } from '#shared/engines/upstream/key.ts'
import { openReader } from '#shared/engines/upstream/readers.ts'
import type { ModelShare } from '#shared/engines/upstream/share.ts'
import { Upstream, type UpstreamOptions } from '#shared/engines/upstream/upstream.ts'
import { ServiceError } from '#shared/error.ts'
import { decodeEmbeddings } from './embeddings-decode.ts'

/**
 * An embedding engine on any server that speaks POST /embeddings: vLLM, TEI, Infinity, Ollama, LocalAI, OpenAI.
 *
 * @param model A model whose engine is of type `openai`.
 * @param env Where the key named by `api_key_env` is found. Where it names none none is sent.
 * @param share With which other workers its servers are shared, where the catalogue bounds them; default: none
 */
export function openOpenAiEmbeddings(
  model: ModelConfig,
  env: Record<string, string | undefined>,
  share?: ModelShare,
): EmbeddingEngine {
  const { engine } = model
  if (engine.type !== 'openai') throw new Error(`model '${model.id}' does not run on an OpenAI-dialect upstream`)
  const key = keyOf(model, env)
  const headers: Record<string, string> = key ? { authorization: `Bearer ${key}` } : {}
  return new OpenAiEmbeddings(model.id, { ...engine, concurrency: engine.concurrency ?? CALLS_MAX }, headers, {
    missingKey: missingKeyOf(model, env),
    ...(engine.concurrency !== undefined && { share }),
  })
}

/** Numbers of a vector, and what is said beside it. */
const NUMBERS_MAX = 8 * 1024
/** Bytes of a number as a server may write it: all digits of a double, and its comma. */
const NUMBER_BYTES_MAX = 24
/** Bytes of an answer in all: 2,048 vectors of 4,096 numbers in base64, or as numbers of eight characters each. */
const WHOLE_BYTES_MAX = 64 * 1024 * 1024

/** The adapter itself, for whoever speaks the dialect at another address. */
export class OpenAiEmbeddings implements EmbeddingEngine {
  readonly #id: string
  readonly #name: string
  readonly #upstream: Upstream
  /** Base64 is a third of the bytes, exact, and read without parsing numbers. */
  #asksBase64 = true

  constructor(id: string, config: UpstreamConfig, headers: Record<string, string>, options?: UpstreamOptions) {
    this.#id = id
    this.#name = config.model ?? id
    this.#upstream = new Upstream({ id }, config, headers, options)
  }

  async embed(texts: readonly string[], { signal }: { signal: AbortSignal }): Promise<Embedded> {
    const asksBase64 = this.#asksBase64
    try {
      return await this.#call(texts, asksBase64, signal)
    } catch (error) {
      if (!asksBase64 || !isAboutFormat(error)) throw aboutInput(error)
      this.#asksBase64 = false
    }
    return await this.embed(texts, { signal })
  }

  close(): Promise<void> {
    return this.#upstream.close()
  }

  async #call(texts: readonly string[], asksBase64: boolean, signal: AbortSignal): Promise<Embedded> {
    const asked = { model: this.#name, input: texts, ...(asksBase64 && { encoding_format: 'base64' }) }
    const body = JSON.stringify(asked)
    const exchange = await this.#upstream.call({ path: '/embeddings', headers: {}, body, isStream: false, signal })
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

/** What the answer to so many texts may hold: vectors as numbers at worst, and about as much again of what servers add. */
function boundsOf(texts: number): WholeBounds {
  const values = (texts + 4) * NUMBERS_MAX
  return { values, bytes: Math.min(values * NUMBER_BYTES_MAX, WHOLE_BYTES_MAX) }
}

/** Answers are whole. */
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
    throw answerError(this.#model, 'answered with a stream')
  }

  isEnd(): boolean {
    return false
  }

  end(): void {}
}

/** Some servers know numbers only, and say so. */
function isAboutFormat(error: unknown): boolean {
  if (!(error instanceof ServiceError) || error.status !== 400) return false
  return error.param === 'encoding_format' || error.message.includes('encoding_format')
}

/** Where nothing else is named, what was too long is the input: the name that chat has for it means nothing here. */
function aboutInput(error: unknown): unknown {
  if (!(error instanceof ServiceError) || error.code !== 'context_length_exceeded' || error.param !== 'messages') {
    return error
  }
  return new ServiceError(error.code, error.message, { cause: error.cause, param: 'input' })
}
