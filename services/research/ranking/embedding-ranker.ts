import type { EmbedRequest } from '#schemas/kinds/embeddings.ts'
import type { Budget } from '#services/research/budget/budget.ts'
import type { Clock } from '#services/research/budget/clock.ts'
import { CHARS_PER_TOKEN, usageOf } from '#services/research/budget/usage.ts'
import { type CountedPassage, RRF_K } from '#services/research/question/passages.ts'
import type { Question } from '#services/research/question/question.ts'
import type { ChildEnd, ChildJob } from '#shared/kinds/composition.ts'
import { runYielding } from '#shared/lib/yielding.ts'

/**
 * Maximum passages that are embedded, in the order of the ranking by words. Maximum parts of the question that are embedded in addition to
 * the whole question.
 */
const PASSAGES_MAX = 64
const PARTS_MAX = 4
/** Maximum UTF-8 bytes of an embedded text: about 250 tokens of English, and fewer than 512 tokens in any other language. */
const TEXT_BYTES_MAX = 1_000
/** Maximum share of the run's remaining time, and maximum time in ms, for computing the embeddings. */
const TIME_SHARE = 0.2
const TIME_MS_MAX = 30_000

type Similarity = ReadonlyMap<CountedPassage, number>

/**
 * Ranks passages by embeddings in addition to words. One child job in the embeddings pool computes all vectors of a run. If the child job
 * fails, then passages are ranked by words only, and {@link caveat} contains the reason.
 */
export class EmbeddingRanker {
  readonly #clock: Clock
  readonly #budget: Budget
  readonly #model: string
  #similarity: Promise<Similarity | undefined> | undefined
  /** A sentence for the report that gives the reason why vectors were not used. Undefined if vectors were used or not requested yet. */
  caveat: string | undefined
  inputTokens = 0

  constructor(clock: Clock, budget: Budget, model: string) {
    this.#clock = clock
    this.#budget = budget
    this.#model = model
  }

  /**
   * Merges the rankings by words and by vectors through reciprocal rank fusion. A second call reuses the vectors of the first call.
   *
   * @param ranked Passages ranked by words, best first.
   * @returns The merged ranking. Undefined if vectors are not available
   * @throws The signal's reason
   */
  async rank(
    question: Question,
    ranked: readonly CountedPassage[],
    signal: AbortSignal,
  ): Promise<CountedPassage[] | undefined> {
    if (ranked.length < 2) return undefined
    this.#similarity ??= this.#ask(question, ranked.slice(0, PASSAGES_MAX), signal)
    const nearness = await this.#similarity
    return nearness && fused(ranked, nearness)
  }

  async #ask(question: Question, passages: readonly CountedPassage[], signal: AbortSignal) {
    if (await this.#clock.stop('embed')) return this.#without('the research had to end early')
    const asked = [question.text, ...question.clauses.slice(0, PARTS_MAX).map(({ text }) => text)]
    const inputs = [...asked, ...passages.map(textOf)].map(shortened)
    const tokens = Math.ceil(inputs.reduce((sum, { length }) => sum + length, 0) / CHARS_PER_TOKEN)
    if (!this.#budget.reserve({ tokens }))
      return this.#without('the token budget of the research is too small for embeddings')
    const end = await this.#embed(inputs)
    if (!end) return this.#without('the research had to end early')
    const { input, output } = usageOf(end)
    this.inputTokens += input
    this.#budget.settle({ tokens }, { tokens: input + output })
    if (end.state === 'expired') return this.#without('the embeddings were not ready in time')
    if (end.state !== 'completed') return this.#without(`the embeddings failed (${end.error.code})`)
    const cosines = await runYielding(similarityOf(end.result, asked.length, passages.length), signal)
    if (!cosines) return this.#without('the embeddings cannot be compared')
    return new Map(passages.map((passage, at) => [passage, cosines[at] ?? 0]))
  }

  async #embed(inputs: readonly string[]): Promise<ChildEnd | undefined> {
    const { composition } = this.#clock
    const [end] = await composition.waitFor([await composition.submit(this.#childOf(inputs))])
    // The decision not to use the vectors is a recorded step, so that a replay makes an equal decision.
    return (await this.#clock.stop('embedded')) ? undefined : end
  }

  #childOf(inputs: readonly string[]): ChildJob {
    const model = this.#model
    const body: EmbedRequest = { model, inputs: [...inputs] }
    const deadlineInMs = Math.min(TIME_MS_MAX, this.#clock.remainingMs * TIME_SHARE)
    return { key: 'embed', endpoint: '/v1/embeddings', kind: 'embed', pool: 'embeddings', model, body, deadlineInMs }
  }

  #without(reason: string): undefined {
    this.caveat = `Passages were ranked by words alone, because ${reason}.`
  }
}

function textOf({ source, heading, start, end }: CountedPassage): string {
  const above = [source.title, heading].filter((text) => text !== '')
  return [...above, source.text.slice(start, end)].join('\n')
}

function shortened(text: string): string {
  const { read } = new TextEncoder().encodeInto(text, new Uint8Array(TEXT_BYTES_MAX))
  return text.slice(0, read).toWellFormed()
}

/**
 * Merges the rankings by words and by cosine similarity through reciprocal rank fusion. Passages after the
 * first 64 have no vectors and keep the order by words.
 */
function fused(ranked: readonly CountedPassage[], nearness: Similarity): CountedPassage[] {
  const first = ranked.slice(0, PASSAGES_MAX)
  const near = first.filter((passage) => nearness.has(passage))
  near.sort((a, b) => (nearness.get(b) ?? 0) - (nearness.get(a) ?? 0))
  const scores = new Map(first.map((passage, rank) => [passage, 1 / (RRF_K + rank + 1)]))
  for (const [rank, passage] of near.entries()) scores.set(passage, (scores.get(passage) ?? 0) + 1 / (RRF_K + rank + 1))
  const joint = first.toSorted((a, b) => (scores.get(b) ?? 0) - (scores.get(a) ?? 0))
  return [...joint, ...ranked.slice(PASSAGES_MAX)]
}

/**
 * Computes the largest cosine similarity of each passage to one of the questions. Yields to the event loop between vectors.
 *
 * @param result Response of `POST /v1/embeddings` for the questions, followed by the passages.
 * @returns One cosine per passage. Undefined if a vector is missing or zero, or if the dimensions differ.
 */
function* similarityOf(result: unknown, questions: number, passages: number): Generator<void, number[] | undefined> {
  const data = (result as { data?: unknown } | null)?.data
  if (!Array.isArray(data) || data.length !== questions + passages) return undefined
  const vectors: Float64Array[] = []
  for (const [at, item] of data.entries()) {
    const vector = unitOf(item, at)
    if (!vector || vector.length !== (vectors[0] ?? vector).length) return undefined
    vectors.push(vector)
    yield
  }
  const asked = vectors.slice(0, questions)
  const nearness: number[] = []
  for (const vector of vectors.slice(questions)) {
    nearness.push(Math.max(...asked.map((question) => dot(question, vector))))
    yield
  }
  return nearness
}

function unitOf(item: { index?: unknown; embedding?: unknown } | null, at: number): Float64Array | undefined {
  const numbers = item?.embedding
  if (item?.index !== at || !Array.isArray(numbers)) return undefined
  if (!numbers.every((number) => typeof number === 'number')) return undefined
  const vector = Float64Array.from(numbers)
  const length = Math.sqrt(dot(vector, vector))
  return length > 0 && Number.isFinite(length) ? vector.map((number) => number / length) : undefined
}

function dot(a: Float64Array, b: Float64Array): number {
  let sum = 0
  for (let at = 0; at < a.length; at++) sum += (a[at] ?? 0) * (b[at] ?? 0)
  return sum
}
