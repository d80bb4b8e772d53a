import type { EmbedEvent, EmbedRequest } from '#schemas/kinds/embeddings.ts'
import type { RerankEvent, RerankRequest } from '#schemas/kinds/rerank.ts'
import { estimateTokens } from '#shared/engines/batching/limits.ts'
import type { RankedDocument, RerankEngine } from '#shared/engines/engine.ts'
import { EngineRegistry, tracedCall, unlisted } from '#shared/engines/engine-registry.ts'
import { gather, incomplete } from '#shared/kinds/embed/embed.ts'
import type { AttemptContext } from '#shared/kinds/kind.ts'
import { aboutDocuments } from '#shared/kinds/rerank/rerank.ts'
import { vectorFromBase64 } from '#shared/lib/vector.ts'
import { runYielding } from '#shared/lib/yielding.ts'
import type { EngineOpeners } from '#shared/ports/engines.ts'
import type { Ports } from '#shared/ports.ts'

type Embed = (request: EmbedRequest, context: AttemptContext) => AsyncIterable<EmbedEvent>

/** Reranks documents with a reranking model, or by the similarity of their embeddings to that of the query. */
export class Rerankers {
  readonly #models: Ports['models']['served']
  readonly #engines: EngineRegistry<RerankEngine>
  readonly #embed: Embed

  constructor(models: Ports['models']['served'], openers: EngineOpeners, embed: Embed) {
    this.#models = models
    this.#engines = new EngineRegistry(models, (model) => openers.openRerankEngine(model))
    this.#embed = embed
  }

  async *run(request: RerankRequest, context: AttemptContext): AsyncGenerator<RerankEvent> {
    const ranks = this.#models.find(request.model)?.task === 'rerank'
    const { results, tokens } = ranks ? await this.#ask(request, context) : await this.#compare(request, context)
    yield { type: 'ranked', results }
    yield { type: 'usage', usage: { input_tokens: tokens, output_tokens: 0 } }
  }

  retire(untilOver: Promise<void>): Promise<void> {
    return this.#engines.retire(untilOver)
  }

  close(): Promise<void> {
    return this.#engines.close()
  }

  async #ask({ model: name, ...call }: RerankRequest, context: AttemptContext) {
    const engine = this.#engines.get(name)
    const traced = { operation: 'rerank', model: this.#models.find(name) ?? unlisted(name) }
    const { results, tokens } = await tracedCall(traced, context, (options) => engine.rerank(call, options))
    return { results: [...results], tokens: tokens ?? guessAll([call.query, ...call.documents]) }
  }

  async #compare({ model, query, documents, top_n }: RerankRequest, context: AttemptContext) {
    const events: EmbedEvent[] = []
    try {
      for await (const event of this.#embed({ model, inputs: [...documents, query] }, context)) events.push(event)
    } catch (error) {
      throw aboutDocuments(error, documents.length)
    }
    const { vectors, usage } = gather(events)
    const results = await runYielding(rank(vectors), context.signal)
    return { results: results.slice(0, top_n), tokens: usage.total_tokens }
  }
}

function guessAll(texts: readonly string[]): number {
  return texts.reduce((sum, text) => sum + estimateTokens(text), 0)
}

/**
 * Ranks documents by cosine similarity to the query. The generator yields after each document, and `runYielding` then returns to the event
 * loop from time to time. Otherwise a job with 2,048 documents would block the event loop.
 *
 * @param vectors Vectors of the documents, then the vector of the query.
 * @throws ServiceError `upstream_error` if a vector is missing or has another length
 */
function* rank(vectors: readonly string[]): Generator<undefined, RankedDocument[]> {
  const query = unitOf(vectors.at(-1) ?? '')
  const found: RankedDocument[] = []
  for (const [index, vector] of vectors.slice(0, -1).entries()) {
    found.push({ index, relevance_score: dot(query, unitOf(vector)) })
    yield
  }
  // The sort is stable, so documents with equal scores keep their order.
  return found.sort((a, b) => b.relevance_score - a.relevance_score)
}

/** Scales a vector to length 1. A zero vector stays unchanged, and its similarity to all other vectors is 0. */
function unitOf(text: string): Float64Array {
  const vector = vectorFromBase64(text)
  if (!vector) throw incomplete()
  const numbers = Float64Array.from(vector)
  const length = Math.hypot(...numbers)
  return length > 0 ? numbers.map((number) => number / length) : numbers
}

function dot(a: Float64Array, b: Float64Array): number {
  if (a.length !== b.length) throw incomplete()
  let sum = 0
  for (let at = 0; at < a.length; at++) sum += (a[at] ?? 0) * (b[at] ?? 0)
  return Math.max(-1, Math.min(1, sum))
}
