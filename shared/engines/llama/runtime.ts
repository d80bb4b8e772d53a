import { stat } from 'node:fs/promises'
import { availableParallelism } from 'node:os'
import type { Llama, LlamaContextSequence, LlamaModel } from 'node-llama-cpp'
import type { GenerateRequest } from '#schemas/generate.ts'
import type { ModelConfig } from '#schemas/models.ts'
import { Semaphore } from '#shared/capacity/semaphore.ts'
import { ServiceError } from '#shared/lib/error.ts'
import { type ChatFormat, openFormat } from './format.ts'
import { GrammarConverter } from './grammar/converter.ts'
import { SequencePool } from './sequences.ts'
import { longestTokenBytes } from './tokens.ts'

/** Tokens of a prompt evaluated in one native call. An abort waits for one such call, about 0.3 s on a slow core. */
export const PROMPT_CHUNK_TOKENS = 64

/** The module, an optional dependency that is loaded on first use: loading takes half a second and 50 MB. */
export type LlamaModule = typeof import('node-llama-cpp')

/** A loaded model with its sequences. The engine that opened it must close it with {@link closeRuntime}. */
export interface LlamaRuntime {
  readonly module: LlamaModule
  readonly llama: Llama
  readonly model: LlamaModel
  readonly format: ChatFormat
  readonly grammars: GrammarConverter
  /** System message for conversations without one. */
  readonly system: string | undefined
  /** One slot per sequence of {@link sequences}. A call takes a slot before its first sequence, and holds one sequence at a time. */
  readonly slots: Semaphore
  readonly sequences: SequencePool
  readonly contextTokens: number
  /** Bytes of text of the longest token; Infinity: unknown. */
  readonly tokenBytesMax: number
}

export interface RuntimeOptions {
  readonly contextTokens: number
  /** Number of sequences that generate concurrently. */
  readonly parallel: number
  readonly system?: string | undefined
  readonly template?: string | undefined
}

export interface LlamaCall {
  readonly config: ModelConfig
  readonly runtime: LlamaRuntime
  readonly request: GenerateRequest
  /** Project whose cached prompts may be reused; undefined: none. */
  readonly project: string | undefined
  readonly signal: AbortSignal
}

export interface SequenceCall extends LlamaCall {
  readonly sequence: LlamaContextSequence
}

/**
 * Loads a GGUF file with llama.cpp on the CPU.
 *
 * @throws ServiceError `model_loading` if the file, the optional package or memory is missing
 */
export async function openRuntime(
  file: string,
  { contextTokens, parallel, system, template }: RuntimeOptions,
): Promise<LlamaRuntime> {
  await stat(file).catch((cause) => {
    throw new ServiceError('model_loading', 'This worker does not have the model file.', { cause })
  })
  const module = await importModule()
  const llama = await module
    .getLlama({
      gpu: false,
      build: 'never',
      skipDownload: true,
      logLevel: module.LlamaLogLevel.error,
      maxThreads: threadCount(),
    })
    .catch(unloadable)
  let format: ChatFormat | undefined
  try {
    const model = await llama.loadModel({ modelPath: file })
    format = await openFormat(model, module.resolveChatWrapper, template)
    const context = await model.createContext({
      contextSize: contextTokens,
      sequences: parallel,
      batchSize: PROMPT_CHUNK_TOKENS * parallel,
      threads: threadCount(),
    })
    return {
      module,
      llama,
      model,
      format,
      grammars: new GrammarConverter(),
      system,
      slots: new Semaphore({ permits: parallel }),
      sequences: new SequencePool(Array.from({ length: parallel }, () => context.getSequence())),
      // llama.cpp keeps one position free. At the last one the library would begin to drop the prompt.
      contextTokens: Math.min(contextTokens, context.contextSize) - 1,
      tokenBytesMax: longestTokenBytes(model),
    }
  } catch (error) {
    await format?.close()
    await llama.dispose()
    return unloadable(error)
  }
}

export async function closeRuntime({ format, grammars, llama }: LlamaRuntime): Promise<void> {
  await format.close()
  await grammars.close()
  await llama.dispose()
}

/**
 * One core fewer than available, since the service needs one itself. Never more threads than cores, because llama.cpp's threads spin while
 * they wait: 4 threads on 2 cores generated 0.3 tokens a second, where 1 thread generates 46.
 */
function threadCount(): number {
  return Math.max(1, availableParallelism() - 1)
}

async function importModule(): Promise<LlamaModule> {
  try {
    return await import('node-llama-cpp')
  } catch (cause) {
    const fix = 'install it with: npm install --include=optional'
    throw new ServiceError('model_loading', `This model needs the optional package node-llama-cpp; ${fix}.`, { cause })
  }
}

function unloadable(cause: unknown): never {
  if (cause instanceof ServiceError) throw cause
  throw new ServiceError('model_loading', 'The model could not be loaded on this worker.', { cause })
}
