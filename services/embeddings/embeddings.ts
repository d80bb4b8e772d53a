import type { EmbedEvent, EmbedRequest } from '#schemas/embeddings.ts'
import type { ModelConfig } from '#schemas/models.ts'
import { Batcher } from '#shared/engines/batching/batcher.ts'
import { CALLS_MAX } from '#shared/engines/embedding.ts'
import { EngineRegistry } from '#shared/engines/engine-registry.ts'
import { addressesOf } from '#shared/engines/upstream/servers.ts'
import { modelsOf } from '#shared/jobs/worker/models.ts'
import { startWorker } from '#shared/jobs/worker/service.ts'
import { embed } from '#shared/kinds/embed.ts'
import { type AttemptContext, handle } from '#shared/kinds/kind.ts'
import { rerank } from '#shared/kinds/rerank.ts'
import type { EngineOpeners } from '#shared/ports/engines.ts'
import type { Ports } from '#shared/ports.ts'
import { prepareInBackground } from '#shared/prepare/progress.ts'
import type { Service } from '#shared/process/lifecycle.ts'
import { InputSemaphore } from './input-semaphore.ts'
import { Rerankers } from './rerank.ts'
import { textsOf } from './texts.ts'
import { Vectors } from './vectors.ts'

/** One engine per model of this worker, each behind a batcher. */
type Batchers = EngineRegistry<ReturnType<typeof openBatched>>

/** Starts one worker of the embeddings pool. Texts of many jobs share the calls of an engine. */
export async function startEmbeddings(ports: Ports): Promise<Service> {
  const openers = await ports.loadEngines()
  const batchers = new EngineRegistry(ports.models.served, (model) => openBatched(openers, model))
  const semaphore = new InputSemaphore()
  const embedOne = (request: EmbedRequest, context: AttemptContext) =>
    embedWithPermits(semaphore, batchers, request, context)
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

/** Opens the engine of a model behind a batcher. Closing it aborts all calls of the model. */
function openBatched(openers: EngineOpeners, model: ModelConfig) {
  const { embeddings, engine } = model
  const batcher = new Batcher(openers.openEmbeddingEngine(model), {
    inputsMax: embeddings.batch_inputs_max,
    tokensMax: embeddings.batch_tokens_max,
    waitMs: embeddings.batch_wait_ms,
    callsMax: callsOf(engine),
  })
  return { model, batcher, close: () => batcher.close() }
}

function callsOf(engine: ModelConfig['engine']): number {
  const each = ('concurrency' in engine ? engine.concurrency : undefined) ?? CALLS_MAX
  return 'headers' in engine ? each * addressesOf(engine).length : each
}

/** Embeds after the semaphore has admitted the inputs. */
async function* embedWithPermits(
  semaphore: InputSemaphore,
  batchers: Batchers,
  request: EmbedRequest,
  context: AttemptContext,
): AsyncGenerator<EmbedEvent> {
  const leave = await semaphore.enter(request.inputs.length, context.signal)
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
  { signal, onProgress }: AttemptContext,
): AsyncGenerator<EmbedEvent> {
  const { model, batcher } = batchers.get(name)
  const texts = await textsOf(inputs, model, signal)
  const vectors = new Vectors(texts.length, dimensions)
  signal.throwIfAborted()
  // Aborts the calls also if the consumer leaves. A plain listener is cheaper than `AbortSignal.any`, and a normal end creates no error.
  const left = new AbortController()
  const leave = () => left.abort(signal.reason)
  signal.addEventListener('abort', leave, { once: true })
  let wake = () => {}
  const ended = batcher.embed(texts, left.signal, (index, vector, tokens) => {
    vectors.put(index, vector, tokens)
    wake()
  })
  // `ended` is awaited below, possibly long after it was rejected. This handler prevents an unhandled rejection.
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
