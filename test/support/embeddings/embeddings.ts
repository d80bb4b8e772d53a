import { createHash } from 'node:crypto'
import { type Answer, type ScriptedUpstream, type SeenCall, startUpstream } from '../processes/upstream.ts'

/** Length of the vectors of {@link startEmbedder}. */
export const DIMENSIONS = 24

/** Behaviour of the embedder. */
export interface EmbedderOptions {
  readonly dimensions?: number
  /** Returns numbers although base64 was requested, as some servers do. */
  readonly isFloatOnly?: boolean
  /** Refuses `encoding_format`, as other servers do. */
  readonly refusesFormat?: boolean
  /** Leaves out usage. */
  readonly hasNoUsage?: boolean
  /** Reports tokens per text, as the local model server does. */
  readonly tellsEach?: boolean
  /** Awaited before each response. */
  readonly before?: (texts: readonly string[]) => Promise<void> | void
}

/** A real OpenAI-compatible server on 127.0.0.1 whose vectors depend only on the text. */
export interface Embedder extends AsyncDisposable {
  readonly upstream: ScriptedUpstream
  /** Texts of each call, in order of arrival. */
  readonly calls: readonly (readonly string[])[]
  /** Maximum concurrent calls so far. */
  readonly atOnceMax: number
}

/** Starts an embedder. A text with `REFUSE` in it is refused as too long, with its index in the call. */
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
  // The results are sent in reverse order, because clients must use the index.
  answer.json({ object: 'list', data: data.reverse(), model: body.model, ...(!options.hasNoUsage && { usage }) })
}

/** Tokens of a text at the embedder: its words plus one. */
export function tokensOf(text: string): number {
  return text.trim().split(/\s+/).length + 1
}

/** The vector of a text at the embedder: length 1, with all digits of float32. */
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
