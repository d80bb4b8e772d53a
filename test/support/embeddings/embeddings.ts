import { createHash } from 'node:crypto'
import { type Answer, type ScriptedUpstream, type SeenCall, startUpstream } from '../processes/upstream.ts'

/** Length of the vectors of {@link startEmbedder}. */
export const DIMENSIONS = 24

export interface EmbedderOptions {
  readonly dimensions?: number
  /** The server returns vectors as arrays of numbers although base64 was requested. Some real servers do this. */
  readonly isFloatOnly?: boolean
  /** The server refuses requests with the field `encoding_format`. Some real servers do this. */
  readonly refusesFormat?: boolean
  readonly hasNoUsage?: boolean
  /** The server returns the number of tokens of each text, as the local model server does. */
  readonly tellsEach?: boolean
  /** Called for each request. The server responds when the returned promise has settled. */
  readonly before?: (texts: readonly string[]) => Promise<void> | void
}

/**
 * An HTTP server for tests with the OpenAI embeddings API. The vector of a text is computed from a hash of the text, so that tests can predict
 * it.
 */
export interface Embedder extends AsyncDisposable {
  readonly upstream: ScriptedUpstream
  /** Texts of each call, in order of arrival. */
  readonly calls: readonly (readonly string[])[]
  /** Maximum concurrent calls so far. */
  readonly atOnceMax: number
}

/** Starts an embedder. If a text contains `REFUSE`, then the call is refused with the error "too long" and the index of that text. */
export async function startEmbedder(options: EmbedderOptions = {}): Promise<Embedder> {
  const calls: string[][] = []
  let [atOnce, atOnceMax] = [0, 0]
  const upstream = await startUpstream(async (call, answer) => {
    calls.push(call.body.input as string[])
    atOnceMax = Math.max(atOnceMax, ++atOnce)
    await options.before?.(call.body.input as string[])
    atOnce--
    respond(call, answer, options)
  })
  return {
    upstream,
    calls,
    get atOnceMax() {
      return atOnceMax
    },
    [Symbol.asyncDispose]: () => upstream[Symbol.asyncDispose](),
  }
}

function respond({ body }: SeenCall, answer: Answer, options: EmbedderOptions): void {
  const texts = body.input as string[]
  if (options.refusesFormat && 'encoding_format' in body) {
    const detail = [{ loc: ['body', 'encoding_format'], msg: 'Extra inputs are not permitted' }]
    return answer.json({ detail }, 422)
  }
  const refused = texts.findIndex((text) => text.includes('REFUSE'))
  if (refused >= 0) {
    const message = `Input ${refused} has 9000 tokens; this model takes 512 tokens.`
    return answer.json(
      { error: { message, type: 'invalid_request_error', param: 'input', code: 'context_length_exceeded' } },
      400,
    )
  }
  const isBase64 = body.encoding_format === 'base64' && !options.isFloatOnly
  const data = texts.map((text, index) => {
    const vector = vectorOf(text, options.dimensions)
    const embedding = isBase64 ? Buffer.from(vector.buffer).toString('base64') : [...vector]
    return { object: 'embedding', index, embedding, ...(options.tellsEach && { tokens: tokensOf(text) }) }
  })
  const tokens = texts.reduce((sum, text) => sum + tokensOf(text), 0)
  const usage = { prompt_tokens: tokens, total_tokens: tokens }
  // The results are sent in reverse order, because clients must use the field `index`, not the order.
  answer.json({ object: 'list', data: data.reverse(), model: body.model, ...(!options.hasNoUsage && { usage }) })
}

/** Number of tokens of a text at the embedder. The rule is arbitrary: the number of words, plus one. */
export function tokensOf(text: string): number {
  return text.trim().split(/\s+/).length + 1
}

/** Vector that the embedder returns for a text. The vector has length 1, and uses the full precision of float32. */
export function vectorOf(text: string, dimensions = DIMENSIONS): Float32Array {
  const numbers = new Float64Array(dimensions)
  for (let i = 0; i < dimensions; i += 8) {
    const digest = createHash('sha256').update(`${i} ${text}`).digest()
    for (let j = 0; j < 8 && i + j < dimensions; j++) numbers[i + j] = digest.readInt32LE(j * 4) / 2 ** 31
  }
  const length = Math.hypot(...numbers)
  return Float32Array.from(numbers, (number) => number / length)
}

/** An entry of models.yaml for an embedder. */
export function embedderModel(embedder: Embedder, more: { readonly [field: string]: unknown } = {}): object {
  const { engine, embeddings, ...rest } = more as Record<string, object | undefined>
  return {
    id: 'embed-1',
    pool: 'embeddings',
    engine: { type: 'openai', base_url: `${embedder.upstream.url}/v1`, ...engine },
    limits: { context_tokens: 4_096 },
    embeddings: { dimensions: DIMENSIONS, ...embeddings },
    ...rest,
  }
}
