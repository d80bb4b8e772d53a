import { stat } from 'node:fs/promises'
import { availableParallelism } from 'node:os'
import type { Llama, LlamaContextSequence, LlamaModel, Token } from 'node-llama-cpp'
import type { GenerateRequest } from '#schemas/kinds/generate.ts'
import type { ModelConfig } from '#schemas/models.ts'
import { Semaphore } from '#shared/capacity/semaphore.ts'
import { contextExceeded } from '#shared/engines/stop.ts'
import { cutAfter } from '#shared/engines/token-cuts.ts'
import { ServiceError } from '#shared/lib/error.ts'
import { type ChatFormat, openFormat, type Prompt } from './format.ts'
import { GrammarConverter } from './grammar/converter.ts'

/** Number of prompt tokens that one native call evaluates. An abort waits for at most one such call, which takes about 0.3 s on a slow core. */
export const PROMPT_CHUNK_TOKENS = 64

/** The module node-llama-cpp, an optional dependency. Loading it takes 0.5 s and 50 MB, so it is loaded on first use. */
type LlamaModule = typeof import('node-llama-cpp')

export interface LlamaRuntime {
  readonly module: LlamaModule
  readonly llama: Llama
  readonly model: LlamaModel
  readonly format: ChatFormat
  readonly grammars: GrammarConverter
  readonly system: string | undefined
  /**
   * One slot per sequence. A sequence is a part of the context for one conversation. A call acquires a slot before its first sequence, and holds only
   * one sequence at a time.
   */
  readonly slots: Semaphore
  readonly sequences: SequencePool
  readonly contextTokens: number
  /** Maximum bytes of text that one token represents. Infinity if unknown. */
  readonly tokenBytesMax: number
}

interface RuntimeOptions {
  readonly contextTokens: number
  readonly parallel: number
  readonly system?: string | undefined
  readonly template?: string | undefined
}

export interface LlamaCall {
  readonly config: ModelConfig
  readonly runtime: LlamaRuntime
  readonly request: GenerateRequest
  /** Project whose cached prompts the call may reuse. Undefined if the call reuses none. */
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
      contextTokens: Math.min(contextTokens, context.contextSize) - RESERVED_TOKENS,
      tokenBytesMax: longestTokenBytes(model),
    }
  } catch (error) {
    await format?.close()
    await llama.dispose()
    return unloadable(error)
  }
}

/** One position of the context always stays free, because the library drops tokens of the prompt when the context is full. */
const RESERVED_TOKENS = 1

/** Creates the error of a prompt that is too long. The message states the context length that the list of models also shows. */
export function promptTooLong({ contextTokens }: LlamaRuntime, tokens: number | string): ServiceError {
  return contextExceeded(contextTokens + RESERVED_TOKENS, tokens)
}

export async function closeRuntime({ format, grammars, llama }: LlamaRuntime): Promise<void> {
  await format.close()
  await grammars.close()
  await llama.dispose()
}

/**
 * Number of threads: one fewer than the available cores, which leaves a core to the service. Waiting threads of llama.cpp spin, so more threads than
 * cores are slow. On 2 cores, 4 threads generated 0.3 tokens per second, and 1 thread generated 46.
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

/**
 * The sequences of a context. Each sequence still contains the tokens of its last call, so the sequences are the prompt cache.
 *
 * A prompt takes the free sequence with the longest common prefix and evaluates only the rest. A sequence belongs to the project of its last call,
 * and only that project reuses its tokens. Otherwise a project could detect by the time to the first token whether another project had sent an equal
 * prompt. Before another project uses the sequence, it is cleared.
 *
 * Example: a chat of 1,200 tokens returns with the answer and a question of 20 tokens. The sequence already has all tokens except these 20.
 */
export class SequencePool {
  readonly #free: OwnedSequence[]

  constructor(sequences: readonly LlamaContextSequence[]) {
    this.#free = sequences.map((sequence) => ({ sequence, owner: undefined }))
  }

  /**
   * Takes the best free sequence for a prompt. The first choice is the project's sequence with the longest common prefix. The second is a sequence
   * that belongs to no project, and the third is the least recently used one. The caller returns the sequence with {@link put}.
   *
   * The caller must hold a slot. There are as many slots as sequences, so a sequence is always free.
   *
   * @param project Project id. If undefined, then this call reuses no tokens, and later calls do not reuse its tokens
   */
  async take(project: string | undefined, prompt: readonly Token[]): Promise<OwnedSequence> {
    const chosen = this.#choose(project, prompt)
    this.#free.splice(this.#free.indexOf(chosen), 1)
    if (chosen.owner === undefined || chosen.owner !== project) {
      chosen.owner = undefined
      try {
        await chosen.sequence.clearHistory()
      } catch (error) {
        this.#free.push(chosen)
        throw error
      }
      chosen.owner = project
    }
    return chosen
  }

  put(owned: OwnedSequence): void {
    this.#free.push(owned)
  }

  #choose(project: string | undefined, prompt: readonly Token[]): OwnedSequence {
    let best: OwnedSequence | undefined
    let longest = 0
    for (const one of this.#free) {
      if (project === undefined || one.owner !== project) continue
      const shared = sharedTokens(one.sequence, prompt)
      if (shared <= longest || !isWorthSharing(shared, one.sequence, prompt)) continue
      best = one
      longest = shared
    }
    const chosen = best ?? this.#free.find(({ owner }) => owner === undefined) ?? this.#free[0]
    if (!chosen) throw new Error('All sequences of the llama context are in use. The caller must hold a slot.')
    return chosen
  }
}

/**
 * A sequence and the project that owns its tokens. If an evaluation fails, then the caller removes the owner, because the content of the sequence is
 * unknown.
 */
interface OwnedSequence {
  readonly sequence: LlamaContextSequence
  owner: string | undefined
}

/** Returns how many tokens of a prompt need no evaluation. The last token is always evaluated, because the answer is sampled from its logits. */
export function sharedTokens(sequence: LlamaContextSequence, prompt: readonly Token[]): number {
  return Math.min(sequence.compareContextTokens(prompt as Token[]).firstDifferentIndex, prompt.length - 1)
}

/**
 * Whether a prompt should overwrite a sequence with a common prefix. A short prefix, such as a system turn, does not justify overwriting a long chat.
 */
function isWorthSharing(shared: number, { nextTokenIndex }: LlamaContextSequence, prompt: readonly Token[]): boolean {
  return 2 * shared >= Math.min(prompt.length, nextTokenIndex)
}

/**
 * Characters that are tokenized in one step, which takes about 5 ms. If a text has no token boundary, then a step may have up to four times as many.
 */
const PIECE_CHARS = 4_096
const PIECE_CHARS_MAX = 16_384

/**
 * Tokenizes a prompt for a GGUF model. The library needs one to three microseconds per character, and a prompt may have 30 million characters. Must
 * be run by `runYielding`.
 *
 * @returns The tokens that llama.cpp returns for the whole text. A run of more than 16,384 characters without a space or a full stop may have one or
 * two tokens more
 */
export function* tokenizePrompt(model: LlamaModel, prompt: Prompt): Generator<undefined, Token[]> {
  const tokens: Token[] = []
  for (const piece of prompt) {
    if (typeof piece === 'string') yield* addPlain(model, piece, tokens)
    else tokens.push(piece)
    yield
  }
  return tokens
}

export function* tokenizeRaw(model: LlamaModel, text: string): Generator<undefined, Token[]> {
  const tokens: Token[] = []
  yield* addPlain(model, text, tokens, true)
  return tokens
}

/** Adds the tokens of a text. Some vocabularies insert a space before a text, which must happen only before the first piece. */
function* addPlain(model: LlamaModel, text: string, tokens: Token[], readsMarks = false): Generator<undefined, void> {
  for (let at = 0; at < text.length; ) {
    const end = cutAfter(text, at, PIECE_CHARS, PIECE_CHARS_MAX)
    const trim = at > 0 || readsMarks ? 'trimLeadingSpace' : undefined
    for (const token of model.tokenize(text.slice(at, end), readsMarks, trim)) tokens.push(token)
    at = end
    yield
  }
}

/**
 * Returns a lower bound of the number of tokens that is quick to compute. A text that is far too long is rejected by this bound, without
 * tokenization.
 */
export function leastTokens(prompt: Prompt, tokenBytesMax: number): number {
  let bytes = 0
  for (const piece of prompt) if (typeof piece === 'string') bytes += Buffer.byteLength(piece)
  return Math.ceil(bytes / tokenBytesMax)
}

/**
 * Returns an upper bound of the bytes of text of a model's longest token. The vocabularies WordPiece and Unigram drop spaces before they split a
 * text, so the bytes of their tokens give no bound. In this case the result is Infinity.
 */
function longestTokenBytes(model: LlamaModel): number {
  const { model: kind, tokens } = model.fileInfo.metadata.tokenizer?.ggml ?? {}
  if (!tokens || (kind !== 'gpt2' && kind !== 'llama')) return Number.POSITIVE_INFINITY
  // A stored token is at least as long as its text, so the longest stored token gives an upper bound. A gpt2 vocabulary
  // stores each byte as one or two bytes, and a llama vocabulary stores a space as three.
  return tokens.reduce((most, token) => Math.max(most, Buffer.byteLength(token)), 1)
}
