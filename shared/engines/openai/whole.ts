import { z } from 'zod'
import type { ModerationResult } from '#schemas/kinds/moderations.ts'
import type { ModelConfig } from '#schemas/models.ts'
import {
  type EngineOptions,
  eachCategory,
  type ModerationEngine,
  type Ranked,
  type RerankCall,
  type RerankEngine,
} from '#shared/engines/engine.ts'
import { answerError } from '#shared/engines/upstream/error.ts'
import type { Decoder } from '#shared/engines/upstream/json.ts'
import { keyOf, missingKeyOf } from '#shared/engines/upstream/key.ts'
import type { ModelPartition } from '#shared/engines/upstream/limit-partition.ts'
import { openReader } from '#shared/engines/upstream/readers.ts'
import { Upstream } from '#shared/engines/upstream/upstream.ts'

/**
 * Maximum bytes of an answer, without the texts of the request that the answer repeats. For these texts, {@link ESCAPE_FACTOR} times the size of the
 * request is added. JSON escapes may lengthen each byte to that many bytes. The maximum exists because parsing blocks the event loop.
 */
const RESULTS_BYTES_MAX = 2 * 1024 * 1024
const ESCAPE_FACTOR = 6

class WholeCalls {
  readonly name: string
  readonly #id: string
  readonly #upstream: Upstream

  constructor(model: ModelConfig, env: Record<string, string | undefined>, share?: ModelPartition) {
    const { id, engine } = model
    if (engine.type !== 'openai') throw new Error(`model '${id}' does not run on an OpenAI-dialect upstream`)
    const key = keyOf(model, env)
    const headers: Record<string, string> = key ? { authorization: `Bearer ${key}` } : {}
    this.#id = id
    this.name = engine.model ?? id
    this.#upstream = new Upstream(model, engine, headers, {
      missingKey: missingKeyOf(model, env),
      ...(engine.concurrency !== undefined && { share }),
    })
  }

  async call<T>(path: string, asked: object, options: EngineOptions, read: (body: unknown) => T): Promise<T> {
    const body = JSON.stringify(asked)
    const exchange = await this.#upstream.call({
      path,
      headers: {},
      body,
      isStream: false,
      signal: options.signal,
      trace: options,
    })
    try {
      const found: T[] = []
      const bounds = { bytes: RESULTS_BYTES_MAX + ESCAPE_FACTOR * body.length }
      const reader = openReader(exchange, new WholeDecoder(this.#id, read), bounds)
      for (let isOver = false; !isOver; ) {
        await exchange.waitForBytes()
        isOver = await reader.read(exchange.take(), found)
      }
      exchange.release(true)
      return found[0] as T
    } finally {
      exchange.release(false)
    }
  }

  close(): Promise<void> {
    return this.#upstream.close()
  }
}

/**
 * Returns the number of `results` in an answer, or NaN if there is no list. The number is checked before any result is parsed, because there may be a
 * million.
 */
function resultsIn(body: unknown): number {
  const { results } = body as { results?: unknown }
  return Array.isArray(results) ? results.length : Number.NaN
}

class WholeDecoder<T> implements Decoder<T> {
  readonly isDone = false
  readonly #model: string
  readonly #read: (body: unknown) => T

  constructor(model: string, read: (body: unknown) => T) {
    this.#model = model
    this.#read = read
  }

  whole(body: Record<string, unknown>, out: T[]): undefined {
    out.push(this.#read(body))
  }

  frame(): void {
    throw answerError(this.#model, 'responded with a stream')
  }

  isEnd(): boolean {
    return false
  }

  end(): undefined {}
}

const ModerationsAnswer = z.object({
  results: z.array(
    z.object({
      flagged: z.boolean(),
      categories: z.record(z.string(), z.boolean().nullable()),
      category_scores: z.record(z.string(), z.number().nullable()),
      category_applied_input_types: z.record(z.string(), z.array(z.enum(['text', 'image']))).nullish(),
    }),
  ),
})
type ModerationAnswer = z.infer<typeof ModerationsAnswer>['results'][number]

/** Opens a moderation engine for a server with POST /moderations: OpenAI, LocalAI, guard models behind this API. */
export function openOpenAiModeration(
  model: ModelConfig,
  env: Record<string, string | undefined>,
  share?: ModelPartition,
): ModerationEngine {
  const calls = new WholeCalls(model, env, share)
  return {
    async moderate(inputs, options) {
      // An input is a text or a list of parts. A list of parts is always the only input of its request, and is sent without an enclosing list.
      const [first] = inputs
      const asked = { model: calls.name, input: typeof first === 'object' ? first : inputs }
      return await calls.call('/moderations', asked, options, (body) => resultsOf(model.id, body, inputs.length))
    },
    close: () => calls.close(),
  }
}

function resultsOf(model: string, body: unknown, count: number): ModerationResult[] {
  if (resultsIn(body) !== count) throw answerError(model, `did not return one result for each of ${count} inputs`)
  const { data: answer } = ModerationsAnswer.safeParse(body)
  if (!answer) throw answerError(model, 'sent a response in an unknown format')
  return answer.results.map(resultOf)
}

function resultOf({
  flagged,
  categories,
  category_scores,
  category_applied_input_types,
}: ModerationAnswer): ModerationResult {
  return {
    flagged,
    categories: eachCategory((category) => categories[category] ?? null),
    category_scores: eachCategory((category) => category_scores[category] ?? 0),
    category_applied_input_types: eachCategory((category) => category_applied_input_types?.[category] ?? []),
  }
}

const Count = z.int().min(0).optional().catch(undefined)

const RerankAnswer = z.object({
  results: z.array(z.object({ index: z.int().min(0), relevance_score: z.number() })),
  usage: z.object({ prompt_tokens: Count, total_tokens: Count }).nullish().catch(undefined),
  meta: z
    .object({ tokens: z.object({ input_tokens: Count }).nullish() })
    .nullish()
    .catch(undefined),
})

/**
 * Opens a reranking engine for a server with the POST /rerank of Cohere, Jina and vLLM. llama.cpp, LocalAI and Infinity also support this
 * API.
 */
export function openUpstreamRerank(
  model: ModelConfig,
  env: Record<string, string | undefined>,
  share?: ModelPartition,
): RerankEngine {
  const calls = new WholeCalls(model, env, share)
  return {
    async rerank(call, options) {
      const { query, documents, top_n } = call
      const asked = { model: calls.name, query, documents, top_n: Math.min(top_n, documents.length) }
      return await calls.call('/rerank', asked, options, (body) => rankedOf(model.id, body, call))
    },
    close: () => calls.close(),
  }
}

function rankedOf(model: string, body: unknown, { documents, top_n }: RerankCall): Ranked {
  if (resultsIn(body) > documents.length) throw answerError(model, `ranked more than ${documents.length} documents`)
  const { data: answer } = RerankAnswer.safeParse(body)
  if (!answer) throw answerError(model, 'sent a response in an unknown format')
  const { results, usage, meta } = answer
  const places = new Set(results.map(({ index }) => index))
  const isSound = places.size === results.length && results.every(({ index }) => index < documents.length)
  const wanted = Math.min(top_n, documents.length)
  if (!isSound || results.length < wanted) {
    throw answerError(model, `did not rank ${wanted} of ${documents.length} documents`)
  }
  const sorted = results.toSorted((a, b) => b.relevance_score - a.relevance_score || a.index - b.index)
  const tokens = usage?.prompt_tokens ?? usage?.total_tokens ?? meta?.tokens?.input_tokens
  return { results: sorted.slice(0, wanted), tokens }
}
