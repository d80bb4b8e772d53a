import { setImmediate as nextTurn } from 'node:timers/promises'
import { type EmbedEvent, type EmbedInput, type EmbedRequest, TOKENS_MAX } from '#schemas/kinds/embeddings.ts'
import type { ModelConfig } from '#schemas/models.ts'
import { Semaphore } from '#shared/capacity/semaphore.ts'
import { Batcher, type EmbedText } from '#shared/engines/batching/batcher.ts'
import { estimateTokens, inputsTooLong, inputTooLong } from '#shared/engines/batching/limits.ts'
import { CALLS_MAX } from '#shared/engines/engine.ts'
import { EngineRegistry, tracedCall } from '#shared/engines/engine-registry.ts'
import { countTokens, decodeTokens } from '#shared/engines/tokenizer/tokenizer.ts'
import { addressesOf } from '#shared/engines/upstream/servers.ts'
import { modelsOf, startWorker } from '#shared/jobs/worker/worker.ts'
import { embed } from '#shared/kinds/embed/embed.ts'
import { type AttemptContext, handle } from '#shared/kinds/kind.ts'
import { rerank } from '#shared/kinds/rerank/rerank.ts'
import { ServiceError } from '#shared/lib/error.ts'
import { vectorToBase64 } from '#shared/lib/vector.ts'
import type { EngineOpeners } from '#shared/ports/engines.ts'
import type { Ports } from '#shared/ports.ts'
import { prepareInBackground } from '#shared/prepare-progress.ts'
import type { Service } from '#shared/process/lifecycle.ts'
import { Rerankers } from './rerank.ts'

/** Maximum base64 characters of the vectors in one event: half of the maximum size of an event in JSON. */
const PIECE_CHARS = 256 * 1024

/** Maximum time in ms between event-loop yields while inputs are checked. */
const YIELD_INTERVAL_MS = 5

/** Maximum inputs whose vectors a worker keeps in memory at once: 16 jobs of maximum size, or about 540 MB at 3,072 dimensions. */
export const INPUTS_HELD_MAX = 16 * 2_048

/** Maximum inputs of a job that needs no permits. The memory of such jobs is bounded by the number of slots of the worker. */
const SMALL_MAX = 32

/** Maximum links from the trace span of a batch to the spans of its calls. */
const BATCH_LINKS_MAX = 128

type Batchers = EngineRegistry<ReturnType<typeof openBatched>>

/** Starts one worker of the embeddings pool. Inputs of many jobs are sent to an engine in shared calls. */
export async function startEmbeddings(ports: Ports): Promise<Service> {
  const openers = await ports.loadEngines()
  const batchers = new EngineRegistry(ports.models.served, (model) => openBatched(openers, model))
  const permits = new Semaphore({ permits: INPUTS_HELD_MAX })
  const embedOne = (request: EmbedRequest, context: AttemptContext) =>
    embedWithPermits(permits, batchers, request, context)
  const rerankers = new Rerankers(ports.models.served, openers, embedOne)
  const kinds = {
    embed: handle(embed, embedOne),
    rerank: handle(rerank, (request, context) => rerankers.run(request, context)),
  }
  const slots = ports.config.embeddingsSlots
  const asked = { pool: 'embeddings', kinds: Object.keys(kinds), slots, isBatched: true } as const
  const own = () => modelsOf(ports.models.served, asked)
  const retire = async (untilOver: Promise<void>) => {
    await Promise.all([batchers.retire(untilOver), rerankers.retire(untilOver)])
  }
  const definition = { name: 'embeddings', slots, kinds, own, retire } as const
  const preparing = prepareInBackground(ports, 'embeddings')
  return await startWorker(ports, definition, async () => {
    await preparing.stop()
    await batchers.close()
    await rerankers.close()
  })
}

/** Opens the engine of a model together with its batcher. Closing them aborts all calls of the model. */
function openBatched(openers: EngineOpeners, model: ModelConfig) {
  const { embeddings, engine } = model
  const batcher = new Batcher(openers.openEmbeddingEngine(model), {
    inputsMax: embeddings.batch_inputs_max,
    tokensMax: embeddings.batch_tokens_max,
    waitMs: embeddings.batch_wait_ms,
    callsMax: callsOf(engine),
    // The span of a batch is a child of the first call's span. Links connect the span to the spans
    // of the other calls, up to {@link BATCH_LINKS_MAX}.
    traced: (calls, options, run) => {
      const links = calls.slice(1, BATCH_LINKS_MAX).map(({ traceparent }) => traceparent)
      return tracedCall({ operation: 'embeddings', model, links }, options, run)
    },
  })
  return { model, batcher, close: () => batcher.close() }
}

function callsOf(engine: ModelConfig['engine']): number {
  const each = ('concurrency' in engine ? engine.concurrency : undefined) ?? CALLS_MAX
  return 'headers' in engine ? each * addressesOf(engine).length : each
}

async function* embedWithPermits(
  permits: Semaphore,
  batchers: Batchers,
  request: EmbedRequest,
  context: AttemptContext,
): AsyncGenerator<EmbedEvent> {
  const leave = await takePermits(permits, request.inputs.length, context.signal)
  try {
    yield* embedAll(batchers, request, context)
  } finally {
    leave()
  }
}

/** Yields vectors in the order of the inputs as soon as they are ready, then the usage. */
async function* embedAll(
  batchers: Batchers,
  { model: name, inputs, dimensions }: EmbedRequest,
  context: AttemptContext,
): AsyncGenerator<EmbedEvent> {
  const { signal, onProgress } = context
  const { model, batcher } = batchers.get(name)
  const texts = await textsOf(inputs, model, signal)
  const vectors = new Vectors(texts.length, dimensions)
  signal.throwIfAborted()
  // The calls have their own abort controller, because the consumer may stop reading without aborting `signal`. A plain
  // listener forwards an abort of `signal`, which is cheaper than `AbortSignal.any`.
  const left = new AbortController()
  const leave = () => left.abort(signal.reason)
  signal.addEventListener('abort', leave, { once: true })
  let wake = () => {}
  const onVector = (index: number, vector: Float32Array, tokens: number) => {
    vectors.put(index, vector, tokens)
    wake()
  }
  const ended = batcher.embed(texts, left.signal, onVector, context)
  // `ended` may be awaited long after its rejection, so this handler prevents an unhandled rejection.
  ended.catch(() => {})
  try {
    while (vectors.count < texts.length) {
      await Promise.race([ended, new Promise<void>((resolve) => (wake = resolve))])
      onProgress?.(progressOf(vectors.count, texts.length))
      yield* vectors.take()
    }
    yield* vectors.take()
    await ended
    yield vectors.usage()
  } finally {
    signal.removeEventListener('abort', leave)
    if (vectors.count < texts.length) leave()
  }
}

function progressOf(done: number, all: number) {
  return { phase: 'embedding', percent: Math.floor((100 * done) / all), message: `${done} of ${all} inputs` }
}

/**
 * Takes one permit per input of a large job. The permits bound the memory for the vectors of hundreds of jobs.
 *
 * Large jobs start in order of arrival, as soon as enough permits are free. Small jobs start at once.
 */
export async function takePermits(permits: Semaphore, inputs: number, signal: AbortSignal): Promise<() => void> {
  if (inputs <= SMALL_MAX) return () => {}
  await permits.take(signal, inputs)
  return () => permits.release(inputs)
}

/**
 * Returns the texts of a job. Inputs of token ids are decoded, and the lengths of all inputs are checked.
 *
 * A token has at least one byte. A text with fewer bytes than the limit of tokens is therefore short enough, and is not
 * tokenized. Most texts are of this kind.
 *
 * @throws ServiceError `context_length_exceeded`. `invalid_value` for unknown token ids
 * @throws The reason of the signal, if the signal aborts
 */
async function textsOf(inputs: readonly EmbedInput[], model: ModelConfig, signal: AbortSignal): Promise<EmbedText[]> {
  const texts: EmbedText[] = []
  const counter = new Counter(inputs, model)
  let yieldAt = performance.now() + YIELD_INTERVAL_MS
  for (const [index, input] of inputs.entries()) {
    signal.throwIfAborted()
    const { length } = inputs
    const text = typeof input === 'string' ? input : await decode(input, length > 1 ? index : undefined, model, signal)
    await counter.check(input, index, signal)
    texts.push({ text, tokens: typeof input === 'string' ? estimateTokens(text) : input.length })
    if (performance.now() < yieldAt) continue
    await nextTurn()
    yieldAt = performance.now() + YIELD_INTERVAL_MS
  }
  return texts
}

/** @param index Position of the input, for error messages. Undefined for the only input of a request */
async function decode(
  ids: readonly number[],
  index: number | undefined,
  { embeddings }: ModelConfig,
  signal: AbortSignal,
): Promise<string> {
  const pathOf = (place: number) => (index === undefined ? 'input' : `input[${index}][${place}]`)
  return await decodeTokens(embeddings.token_encoding, ids, signal, pathOf)
}

/** Checks the tokens of each input, and of all inputs together. Tokens are counted only if the input has enough bytes to exceed a limit. */
class Counter {
  readonly #model: ModelConfig
  /** Maximum tokens of one input. Undefined for local engines, whose own tokenizer refuses longer inputs. */
  readonly #most: number | undefined
  /** Whether all inputs together may have more than {@link TOKENS_MAX} tokens. If so, the tokens of every input are counted. */
  readonly #countsAll: boolean
  #sum = 0

  constructor(inputs: readonly EmbedInput[], model: ModelConfig) {
    this.#model = model
    this.#most = model.engine.type === 'local' ? undefined : model.limits.context_tokens
    this.#countsAll = inputs.reduce((sum, input) => sum + tokensAtMost(input), 0) > TOKENS_MAX
  }

  async check(input: EmbedInput, index: number, signal: AbortSignal): Promise<void> {
    const most = this.#most ?? Number.POSITIVE_INFINITY
    if (!this.#countsAll && tokensAtMost(input) <= most) return
    const tokens = typeof input === 'string' ? await this.#count(input, signal) : input.length
    if (tokens > most) throw inputTooLong(index, tokens, most)
    this.#sum += tokens
    if (this.#countsAll && this.#sum > TOKENS_MAX) throw inputsTooLong()
  }

  async #count(text: string, signal: AbortSignal): Promise<number> {
    return await countTokens(this.#model.embeddings.token_encoding, text, signal, TOKENS_MAX)
  }
}

/** Returns an upper bound of the tokens of an input: its number of bytes, because a token has at least one byte. */
function tokensAtMost(input: EmbedInput): number {
  return typeof input === 'string' ? Buffer.byteLength(input) : input.length
}

/** Collects the vectors of one job, which arrive in any order, and emits them in the order of its inputs. */
class Vectors {
  readonly #dimensions: number | undefined
  readonly #vectors: (string | undefined)[]
  #tokens = 0
  #count = 0
  #emitted = 0

  /** @param dimensions Length to which vectors are truncated. Truncated vectors are normalised again. */
  constructor(inputs: number, dimensions: number | undefined) {
    this.#vectors = new Array(inputs)
    this.#dimensions = dimensions
  }

  get count(): number {
    return this.#count
  }

  /** @throws ServiceError `unsupported_value` if the vector is shorter than the requested dimensions */
  put(index: number, vector: Float32Array, tokens: number): void {
    this.#vectors[index] = vectorToBase64(this.#dimensions === undefined ? vector : shorten(vector, this.#dimensions))
    this.#tokens += tokens
    this.#count++
  }

  /**
   * Emits vectors in the order of the inputs, up to the first input whose vector is missing. Each event has as many vectors as
   * {@link PIECE_CHARS} allows. An event with fewer vectors is emitted only at the end of the job.
   */
  *take(): Generator<EmbedEvent> {
    for (;;) {
      const first = this.#emitted
      const vectors = this.#nextPiece()
      if (!vectors) return
      this.#emitted += vectors.length
      yield { type: 'vectors', first, vectors }
    }
  }

  /** Returns the last event of a job. Called when all vectors have arrived. */
  usage(): EmbedEvent {
    return { type: 'usage', usage: { input_tokens: this.#tokens, output_tokens: 0 } }
  }

  #nextPiece(): string[] | undefined {
    const piece: string[] = []
    let chars = 0
    for (let at = this.#emitted; at < this.#vectors.length; at++) {
      const vector = this.#vectors[at]
      if (vector === undefined) break
      if (chars + vector.length > PIECE_CHARS && piece.length > 0) return this.#without(piece)
      piece.push(vector)
      chars += vector.length
    }
    const isLast = this.#emitted + piece.length === this.#vectors.length
    return isLast && piece.length > 0 ? this.#without(piece) : undefined
  }

  #without(piece: string[]): string[] {
    this.#vectors.fill(undefined, this.#emitted, this.#emitted + piece.length)
    return piece
  }
}

/** Returns the first `dimensions` numbers, normalised again. Models that support shortening are trained for it (Matryoshka embeddings). */
function shorten(vector: Float32Array, dimensions: number): Float32Array {
  if (dimensions === vector.length) return vector
  if (dimensions > vector.length) {
    const message = `Invalid 'dimensions': the vectors of this model have ${vector.length} numbers.`
    throw new ServiceError('unsupported_value', message, { param: 'dimensions' })
  }
  const short = vector.slice(0, dimensions)
  const length = Math.sqrt(short.reduce((sum, number) => sum + number * number, 0))
  return length === 0 ? short : short.map((number) => number / length)
}
