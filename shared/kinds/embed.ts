import { type EmbedEvent, EmbedRequest, INPUTS_MAX } from '#schemas/embeddings.ts'
import { answerBytesMax } from '#shared/engines/batching/limits.ts'
import { embeddingsAnswer } from '#shared/protocols/embeddings/embeddings.ts'
import type { Kind } from './kind.ts'

/** Maximum base64 characters of merged vectors. Far below the limit of one event, 512 KiB of JSON. */
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

/** Merges consecutive vectors up to {@link PIECE_CHARS_MAX}; undefined: keep the events separate. */
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
