import { setImmediate as nextTurn } from 'node:timers/promises'
import type { EncodeContext } from '#schemas/job.ts'
import { type EmbedEvent, EmbedRequest, INPUTS_MAX } from '#schemas/kinds/embeddings.ts'
import { answerBytesMax } from '#shared/engines/batching/limits.ts'
import { JsonText } from '#shared/json/write.ts'
import type { Answer } from '#shared/kinds/answer.ts'
import type { Kind } from '#shared/kinds/kind.ts'
import { ServiceError } from '#shared/lib/error.ts'
import { shortNumbers, vectorFromBase64 } from '#shared/lib/vector.ts'

const PIECE_CHARS_MAX = 64 * 1024

export const embed: Kind<EmbedRequest, EmbedEvent> = {
  name: 'embed',
  pool: 'embeddings',
  request: EmbedRequest,
  answerBytesMax: answerBytesMax(INPUTS_MAX),
  merge: mergeEmbedEvents,
  isOutput: () => true,
  answer: () => embeddingsAnswer,
}

export function mergeEmbedEvents(a: EmbedEvent, b: EmbedEvent): EmbedEvent | undefined {
  if (a.type !== 'vectors' || b.type !== 'vectors' || a.first + a.vectors.length !== b.first) return undefined
  if (charsOf(a.vectors) + charsOf(b.vectors) > PIECE_CHARS_MAX) return undefined
  return { ...a, vectors: [...a.vectors, ...b.vectors] }
}

function charsOf(texts: readonly string[]): number {
  let chars = 0
  for (const text of texts) chars += text.length
  return chars
}

const embeddingsAnswer: Answer<EmbedEvent> = { whole: encodeEmbeddings, write: writeEmbeddings }

export function encodeEmbeddings(events: readonly EmbedEvent[], context: EncodeContext): object {
  const { vectors, usage } = gather(events)
  const isBase64 = context.encoding_format === 'base64'
  const data = vectors.map((vector, index) => {
    return { object: 'embedding', index, embedding: isBase64 ? vector : numbersOf(vector) }
  })
  return { object: 'list', data, model: context.model, usage }
}

const YIELD_INTERVAL_MS = 5

/**
 * Returns the answer of {@link encodeEmbeddings} as JSON text. Serializing the numbers of the largest answer takes half a second, so this function
 * yields to the event loop.
 *
 * @throws ServiceError `upstream_error` if vectors or usage are missing
 */
export async function writeEmbeddings(events: readonly EmbedEvent[], context: EncodeContext): Promise<JsonText> {
  const { vectors, usage } = gather(events)
  const isBase64 = context.encoding_format === 'base64'
  const data: string[] = []
  let yieldAt = performance.now() + YIELD_INTERVAL_MS
  for (const [index, vector] of vectors.entries()) {
    const embedding = isBase64 ? `"${vector}"` : JSON.stringify(numbersOf(vector))
    data.push(`{"object":"embedding","index":${index},"embedding":${embedding}}`)
    if (performance.now() < yieldAt) continue
    await nextTurn()
    yieldAt = performance.now() + YIELD_INTERVAL_MS
  }
  const rest = `"model":${JSON.stringify(context.model)},"usage":${JSON.stringify(usage)}`
  return new JsonText(`{"object":"list","data":[${data.join(',')}],${rest}}`)
}

export function gather(events: readonly EmbedEvent[]): {
  vectors: string[]
  usage: { readonly total_tokens: number }
} {
  const vectors: string[] = []
  let tokens: number | undefined
  for (const event of events) {
    if (event.type === 'usage') tokens = event.usage.input_tokens
    else if (event.type === 'vectors') {
      if (event.first !== vectors.length) throw incomplete()
      vectors.push(...event.vectors)
    }
  }
  if (tokens === undefined || vectors.length === 0) throw incomplete()
  return { vectors, usage: promptUsage(tokens) }
}

/** Returns the usage of a call that has only input tokens. */
export function promptUsage(tokens: number) {
  const details = { prompt_tokens_details: null, completion_tokens_details: null }
  return { prompt_tokens: tokens, completion_tokens: 0, total_tokens: tokens, ...details }
}

function numbersOf(text: string): number[] {
  const vector = vectorFromBase64(text)
  if (!vector) throw incomplete()
  return shortNumbers(vector)
}

export function incomplete(): ServiceError {
  return new ServiceError('upstream_error', 'The model stopped before it returned all embeddings.')
}
