import { readFile, stat } from 'node:fs/promises'
import { isAbsolute, join } from 'node:path'
import type { GenerateEvent, GenerateRequest } from '#schemas/kinds/generate.ts'
import type { ModelConfig } from '#schemas/models.ts'
import { ConfigError } from '#shared/config/config.ts'
import type { ChatEngine, GenerateOptions } from '#shared/engines/engine.ts'
import { abortable } from '#shared/lib/abortable.ts'
import { ServiceError } from '#shared/lib/error.ts'
import { BackgroundPreparation, type OnProgress } from '#shared/prepare/prepare.ts'
import { getWeightsState, isKnownWeights, prepareWeights } from '#shared/prepare/weights.ts'
import { answer } from './answer.ts'
import { describeAnswer, describeCall, refuseMedia, tokensOf } from './prompt.ts'
import { closeRuntime, type LlamaRuntime, openRuntime } from './runtime.ts'

const CLOSE_MS = 5_000
const TEMPLATE_BYTES_MAX = 1_048_576

export interface LlamaEngineOptions {
  readonly weightsDir: string
  /** Directory of the operator's own GGUF files. Default: weightsDir. */
  readonly modelsDir?: string | undefined
  /**
   * Whether a call prepares (downloads) built-in weights that are missing. False if another part of the service prepares all weights.
   * Default: true.
   */
  readonly prepare?: boolean | undefined
  /** The Python interpreter that prepares weights. Default: python3 of the PATH. */
  readonly python?: string | undefined
  readonly onProgress?: OnProgress | undefined
  /** Aborted when the process stops, so that no call waits for the preparation of weights any longer. */
  readonly stopping?: AbortSignal | undefined
}

/**
 * Opens a chat engine that runs a GGUF file in this process with llama.cpp (node-llama-cpp), on the CPU. The engine supports only text.
 *
 * The model is loaded by the first call or by `preload`. Up to `engine.parallel` calls generate concurrently, and the others wait. A
 * grammar enforces JSON and tool arguments (limits in grammar/grammar.ts). Tools are selected by tools.ts, at most one call per answer.
 *
 * @throws ConfigError if the configuration names neither a file nor built-in weights
 */
export function openLlamaEngine(model: ModelConfig, options: LlamaEngineOptions): ChatEngine {
  return new LlamaEngine(model, options)
}

class LlamaEngine implements ChatEngine {
  readonly completes = 'one'
  readonly #config: ModelConfig
  readonly #engine: Extract<ModelConfig['engine'], { type: 'llama' }>
  readonly #options: LlamaEngineOptions
  readonly #closing = new AbortController()
  #runtime: Promise<LlamaRuntime> | undefined
  readonly #preparation: BackgroundPreparation

  constructor(config: ModelConfig, options: LlamaEngineOptions) {
    if (config.engine.type !== 'llama')
      throw new ConfigError([`models: ${config.id}: engine.type must be llama; got ${config.engine.type}`])
    const { file, weights } = config.engine
    if (file === undefined && (weights === undefined || !isKnownWeights(weights))) {
      throw new ConfigError([
        `models: ${config.id}: set engine.file to a GGUF file, or engine.weights to the name of built-in weights; got ${weights ?? 'neither'}`,
      ])
    }
    this.#config = config
    this.#engine = config.engine
    this.#options = options
    this.#preparation = new BackgroundPreparation(`The model ${config.id}`)
  }

  async *generate(request: GenerateRequest, options: GenerateOptions): AsyncGenerator<GenerateEvent> {
    refuseMedia(request)
    const signal = AbortSignal.any([options.signal, this.#closing.signal])
    const runtime = await this.#load(signal)
    await runtime.slots.take(signal)
    try {
      yield* answer({ config: this.#config, runtime, request, project: options.tenant, signal })
    } finally {
      runtime.slots.release()
    }
  }

  /**
   * Counts the tokens of the prompt. If the template does not support tools, then the prompt of a call describes only the called tool. That tool is
   * not yet known, so the first tool is counted.
   */
  async countTokens(request: GenerateRequest, options: GenerateOptions): Promise<number> {
    const signal = AbortSignal.any([options.signal, this.#closing.signal])
    const runtime = await this.#load(signal)
    const [tool] = runtime.format.tools ? [] : request.tools
    const conversation = tool ? describeCall(runtime, request, tool) : describeAnswer(runtime, request)
    return (await tokensOf(runtime, await runtime.format.write(conversation, signal), signal)).length
  }

  async preload(signal: AbortSignal): Promise<void> {
    await this.#load(AbortSignal.any([signal, this.#closing.signal]))
  }

  async close(): Promise<void> {
    this.#closing.abort(
      new ServiceError('overloaded', 'The worker is shutting down.', { retryAfterMs: 1_000, reason: 'draining' }),
    )
    await this.#preparation.settled()
    const runtime = await this.#runtime?.catch(() => undefined)
    this.#runtime = undefined
    if (!runtime) return
    await takeAll(runtime, this.#engine.parallel)
    await closeRuntime(runtime)
  }

  async #load(signal: AbortSignal): Promise<LlamaRuntime> {
    signal.throwIfAborted()
    this.#runtime ??= this.#open().catch((error) => {
      this.#runtime = undefined
      throw error
    })
    return await abortable(this.#runtime, signal)
  }

  async #open(): Promise<LlamaRuntime> {
    const { context_tokens: contextTokens, parallel, system, chat_template } = this.#engine
    const template = chat_template === undefined ? undefined : await readTemplate(this.#ownFile(chat_template))
    return await openRuntime(await this.#findFile(), { contextTokens, parallel, system, template })
  }

  async #findFile(): Promise<string> {
    const { file, weights = '' } = this.#engine
    if (file !== undefined) return this.#ownFile(file)
    const { weightsDir, prepare: isOwn = true, stopping } = this.#options
    const state = () => getWeightsState(weights, weightsDir)
    const prepare = isOwn ? () => this.#prepare(weights) : undefined
    const signal = stopping ? AbortSignal.any([this.#closing.signal, stopping]) : this.#closing.signal
    return await this.#preparation.wait({ state, prepare }, signal)
  }

  #ownFile(file: string): string {
    const { weightsDir, modelsDir = weightsDir } = this.#options
    return isAbsolute(file) ? file : join(modelsDir, file)
  }

  async #prepare(weights: string): Promise<void> {
    const { weightsDir, python, onProgress } = this.#options
    await prepareWeights(weights, weightsDir, { python, signal: this.#closing.signal, onProgress })
  }
}

async function readTemplate(file: string): Promise<string> {
  const { size } = await stat(file).catch(() => ({ size: 0 }))
  if (size === 0 || size > TEMPLATE_BYTES_MAX) {
    const message = `The file of engine.chat_template is missing, empty, or larger than ${TEMPLATE_BYTES_MAX} bytes.`
    throw new ServiceError('model_loading', message)
  }
  return await readFile(file, 'utf8')
}

/**
 * Waits for the end of all running calls, by taking their slots. The wait is bounded by {@link CLOSE_MS}, because a caller may stop reading without
 * cancelling its call.
 */
async function takeAll(runtime: LlamaRuntime, count: number): Promise<void> {
  const signal = AbortSignal.timeout(CLOSE_MS)
  for (let i = 0; i < count; i++) await runtime.slots.take(signal).catch(() => undefined)
}
