/*
 * Worker of the pool `inference`: text generation, token counts, moderation and speech.
 *
 * Each kind of job has one handler here, which returns events in the internal form. `generate` calls the engine of the
 * model. If the model fails before any output, then its fallbacks are tried (`fallback.ts`). The built-in tools of the
 * Responses API run in `hosted/`.
 */

import { z } from 'zod'
import { type GenerateEvent, GenerateRequest, Part } from '#schemas/kinds/generate.ts'
import {
  type ModerateEvent,
  type ModerateRequest,
  type ModerationInput,
  WORD_LIST,
} from '#schemas/kinds/moderations.ts'
import type { SpeakEvent, SpeakRequest } from '#schemas/kinds/speech.ts'
import { adaptRequest } from '#shared/engines/adapt.ts'
import type { ChatEngine, ModerationEngine, SpeechEngine } from '#shared/engines/engine.ts'
import { EngineRegistry, startModelSpan, tracedCall, unlisted } from '#shared/engines/engine-registry.ts'
import { countText, estimateInputTokens } from '#shared/engines/upstream/usage.ts'
import { modelsOf, startWorker } from '#shared/jobs/worker/worker.ts'
import { countTokens, generate } from '#shared/kinds/generate/generate.ts'
import { type AttemptContext, handle, type Progress } from '#shared/kinds/kind.ts'
import { moderate } from '#shared/kinds/moderate/moderate.ts'
import { speak } from '#shared/kinds/speak/speak.ts'
import { ServiceError } from '#shared/lib/error.ts'
import { tolerant } from '#shared/lib/tolerant.ts'
import { runYielding } from '#shared/lib/yielding.ts'
import type { ModelCatalogue } from '#shared/models/models.ts'
import type { EngineOpeners } from '#shared/ports/engines.ts'
import type { Ports, PrepareProgress } from '#shared/ports.ts'
import { inMemory, prepareInBackground } from '#shared/prepare-progress.ts'
import type { Service } from '#shared/process/lifecycle.ts'
import { countPrompt, generateWithFallback, isUpstream } from './fallback.ts'
import { type Generate, generateHosted } from './hosted/hosted.ts'
import { requirePublic, requirePublicUrls } from './remote-urls.ts'

/** Maximum moderation results per event. 64 results are about 80 KB of JSON. */
const PIECE_RESULTS = 64

/** Minimum interval between progress events, in ms (docs/internals/protocol.md, Job events). */
const PROGRESS_MS = 500
/** Estimated characters per token, for progress before the engine reports its count. */
const CHARS_PER_TOKEN = 4

/**
 * Maximum estimated tokens of a prompt that a model in this process counts exactly. The value exceeds any context window. For a larger prompt, the
 * number is estimated from its length, because tokenizing 31 MB of text takes half a minute.
 */
const COUNTED_TOKENS_MAX = 512 * 1024

/** Maximum turns and parts that are validated between two event-loop yields. Validating this many takes a few milliseconds. */
const PIECE_PARTS = 1_000

const Request = tolerant(GenerateRequest)
const Parts = tolerant(z.array(Part))

export async function startInference(ports: Ports): Promise<Service> {
  const openers = await ports.loadEngines()
  const engines = new EngineRegistry(ports.models.served, (model) => openers.openChatEngine(model))
  const moderators = new Moderators(ports.models.served, openers)
  const speakers = new EngineRegistry(ports.models.served, (model) => openers.openSpeechEngine(model))
  const parse = (body: unknown) => runYielding(readRequest(body))
  const kinds = {
    generate: handle(
      generate,
      (request, context) => {
        const ask: Generate = (asked, within) => generateWithFallback(engines, ports, asked, within)
        const events = request.hosted ? generateHosted(ask, request, context, ports.config) : ask(request, context)
        return context.onProgress ? withProgress(events, request, context.onProgress) : events
      },
      parse,
      true,
    ),
    count_tokens: handle(
      countTokens,
      async function* (request, context) {
        const isAway = isUpstream(ports, request.model)
        if (isAway) await requirePublicUrls(request, context.signal)
        const engine = engines.get(request.model)
        const model = ports.models.served.find(request.model)
        const asked = model ? adaptRequest(request, model).request : request
        const guess = isAway ? 0 : estimateInputTokens(asked)
        yield { input_tokens: guess > COUNTED_TOKENS_MAX ? guess : await countPrompt(engine, asked, context) }
      },
      parse,
    ),
    moderate: handle(moderate, (request, context) => moderators.run(request, context)),
    speak: handle(speak, (request, context) => speakWith(speakers, request, context, ports.models.served)),
  }
  const preparing = prepareInBackground(ports, 'inference', preloadOf(ports.models, engines))
  const slots = ports.config.inferenceSlots
  const placesOf = (model: string) => engines.find(model)?.places
  const own = () => {
    const own = modelsOf(ports.models.served, { pool: 'inference', kinds: Object.keys(kinds), slots, placesOf })
    // The word list for moderation needs no model, so each worker of the pool offers it, independent of the setting MODELS.
    return { ...own, models: new Set([...own.models, WORD_LIST]) }
  }
  const retire = async (untilOver: Promise<void>) => {
    await Promise.all([engines.retire(untilOver), moderators.retire(untilOver), speakers.retire(untilOver)])
  }
  const pool = { name: 'inference', slots, kinds, own, retire } as const
  return await startWorker(ports, pool, async () => {
    await preparing.stop()
    await engines.close()
    await moderators.close()
    await speakers.close()
  })
}

/**
 * Validates the body of a job. The generator yields after every {@link PIECE_PARTS} parts,
 * so that `runYielding` can return to the event loop.
 *
 * @throws ZodError if the body is not a valid request
 */
function* readRequest(body: unknown): Generator<undefined, GenerateRequest> {
  const turns = (body as { turns?: unknown } | null)?.turns
  if (!Array.isArray(turns)) return Request.parse(body)
  const request = Request.parse({ ...(body as object), turns: [] })
  let left = PIECE_PARTS
  for (const turn of turns) {
    const { parts } = turn as { parts?: unknown }
    const count = Array.isArray(parts) ? parts.length : 0
    const [read] = Request.shape.turns.parse([count > PIECE_PARTS ? { ...turn, parts: [] } : turn])
    if (read) request.turns.push(read)
    for (let at = 0; read && count > PIECE_PARTS && at < count; at += PIECE_PARTS) {
      yield
      for (const part of Parts.parse((parts as unknown[]).slice(at, at + PIECE_PARTS))) read.parts.push(part)
    }
    left -= 1 + count
    if (left > 0) continue
    left = PIECE_PARTS
    yield
  }
  return request
}

/** Yields the events unchanged. Publishes the estimated number of generated tokens as progress, with the percentage of the maximum. */
async function* withProgress(
  events: AsyncIterable<GenerateEvent>,
  request: GenerateRequest,
  onProgress: (progress: Progress) => void,
): AsyncGenerator<GenerateEvent> {
  let chars = 0
  let publishedAt = performance.now()
  for await (const event of events) {
    if ('text' in event && event.type !== 'native') chars += event.text.length
    if (chars > 0 && performance.now() - publishedAt >= PROGRESS_MS) {
      publishedAt = performance.now()
      const tokens = Math.ceil(chars / CHARS_PER_TOKEN)
      const most = request.max_tokens === undefined ? undefined : request.max_tokens * request.n
      const percent = most === undefined ? null : Math.min(99, Math.floor((100 * tokens) / most))
      onProgress({ phase: 'generating', percent, message: `About ${tokens} tokens` })
    }
    yield event
  }
}

/**
 * Returns a function that loads the models with `engine.preload` into memory, one after the other, once their files are on disk. A call for a model
 * that is being loaded waits for that load.
 */
function preloadOf({ served }: Pick<ModelCatalogue, 'served'>, engines: EngineRegistry<ChatEngine>) {
  return async (onProgress: PrepareProgress, signal: AbortSignal): Promise<void> => {
    for (const model of served.models) {
      if (model.engine.type !== 'llama' || !model.engine.preload) continue
      const what = inMemory(model.id)
      onProgress(what, 0, 'being loaded')
      await engines.get(model.id).preload?.(signal)
      onProgress(what, 1, 'loaded')
    }
  }
}

/**
 * Yields the audio as it is generated, then the usage. Speech servers report no usage, so the worker counts the tokens of the text.
 *
 * @throws The ServiceError of the engine
 */
async function* speakWith(
  engines: EngineRegistry<SpeechEngine>,
  request: SpeakRequest,
  context: AttemptContext,
  models: Ports['models']['served'],
): AsyncGenerator<SpeakEvent> {
  const engine = engines.get(request.model)
  const model = models.find(request.model) ?? unlisted(request.model)
  const span = startModelSpan({ operation: 'speech', model }, context)
  const { traceparent, onServer } = span ?? context
  try {
    for await (const bytes of engine.speak(request, { signal: context.signal, traceparent, onServer })) {
      const event = { type: 'audio' as const, audio: bytes.toString('base64') }
      span?.see(event)
      yield event
    }
  } catch (error) {
    span?.end(ServiceError.from(error).code)
    throw error
  } finally {
    span?.end()
  }
  const input_tokens = await countText(`${request.instructions ?? ''}${request.input}`)
  yield { type: 'usage', usage: { input_tokens, output_tokens: 0 } }
}

class Moderators {
  readonly #models: Ports['models']['served']
  readonly #engines: EngineRegistry<ModerationEngine>
  readonly #wordList: ModerationEngine

  constructor(models: Ports['models']['served'], openers: EngineOpeners) {
    this.#models = models
    this.#engines = new EngineRegistry(models, (model) => openers.openModerationEngine(model))
    this.#wordList = openers.openWordList()
  }

  async *run({ model, inputs }: ModerateRequest, context: AttemptContext): AsyncGenerator<ModerateEvent> {
    const isWordList = model === WORD_LIST && !this.#models.find(model)
    if (!isWordList) await requirePublic(imagesOf(inputs), 'input', context.signal)
    const engine = isWordList ? this.#wordList : this.#engines.get(model)
    const traced = { operation: 'moderation', model: this.#models.find(model) ?? unlisted(model) }
    const results = await tracedCall(traced, context, (options) => engine.moderate(inputs, options))
    for (let first = 0; first < results.length; first += PIECE_RESULTS) {
      yield { type: 'moderated', first, results: results.slice(first, first + PIECE_RESULTS) }
    }
  }

  retire(untilOver: Promise<void>): Promise<void> {
    return this.#engines.retire(untilOver)
  }

  async close(): Promise<void> {
    await this.#engines.close()
    await this.#wordList.close()
  }
}

function* imagesOf(inputs: readonly ModerationInput[]): Generator<string> {
  for (const input of inputs) {
    for (const part of typeof input === 'string' ? [] : input) if (part.type === 'image_url') yield part.image_url.url
  }
}
