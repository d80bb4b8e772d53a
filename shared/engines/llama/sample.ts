import { randomInt } from 'node:crypto'
import type { LlamaContextSequence, LlamaGrammar, SequenceEvaluateOptions, Token } from 'node-llama-cpp'
import type { GenerateRequest } from '#schemas/kinds/generate.ts'
import { ServiceError } from '#shared/lib/error.ts'
import { type LlamaRuntime, PROMPT_CHUNK_TOKENS, sharedTokens } from './runtime.ts'

// Sampling values that the makers of SmolLM2 recommend. At OpenAI's default temperature of 1, this small model writes incoherent text.
const TEMPERATURE = 0.2
const TOP_P = 0.9
const PENALTY_WINDOW = 256

export type SamplingRequest = Partial<
  Pick<
    GenerateRequest,
    | 'temperature'
    | 'top_p'
    | 'top_k'
    | 'seed'
    | 'presence_penalty'
    | 'frequency_penalty'
    | 'logit_bias'
    | 'logprobs'
    | 'extra'
  >
>

export interface Sampling {
  readonly options: SequenceEvaluateOptions
  readonly wantsProbabilities: boolean
  readonly generated: Token[]
}

export interface Sampled {
  readonly token: Token
  /**
   * Probability of every token of the vocabulary, highest first. Undefined unless the caller requests log
   * probabilities.
   */
  readonly probabilities?: ReadonlyMap<Token, number> | undefined
}

/**
 * Converts the sampling fields of a request. The field `min_p` is also supported, as in vLLM and llama.cpp.
 *
 * @param choice Index of the choice. Each choice has a different seed
 * @throws ServiceError `invalid_value` for a logit_bias with an unknown token
 */
export function openSampling(
  runtime: LlamaRuntime,
  request: SamplingRequest,
  grammar: LlamaGrammar | undefined,
  choice = 0,
): Sampling {
  const { module, model } = runtime
  const generated: Token[] = []
  const seed = request.seed === undefined ? randomInt(2 ** 32) : Number(BigInt.asUintN(32, BigInt(request.seed)))
  const minP = request.extra?.min_p
  const { presence_penalty: presencePenalty, frequency_penalty: frequencyPenalty } = request
  const options: SequenceEvaluateOptions = {
    temperature: request.temperature ?? TEMPERATURE,
    topP: request.top_p ?? TOP_P,
    topK: request.top_k ?? 0,
    minP: typeof minP === 'number' ? minP : 0,
    seed: (seed + choice) % 2 ** 32,
    tokenBias: readLogitBias(runtime, request.logit_bias),
    grammarEvaluationState: grammar && new module.LlamaGrammarEvaluationState({ model, grammar }),
  }
  if (presencePenalty || frequencyPenalty) {
    const punishTokens = () => generated.slice(-PENALTY_WINDOW)
    const penalties = { presencePenalty: presencePenalty ?? 0, frequencyPenalty: frequencyPenalty ?? 0 }
    options.repeatPenalty = { punishTokens, maxPunishTokens: PENALTY_WINDOW, penalty: 1, ...penalties }
  }
  return { options, wantsProbabilities: request.logprobs ?? false, generated }
}

/**
 * Evaluates a prompt except its last token. The prompt is evaluated in chunks, so that an abort waits for at most one chunk. Tokens that the sequence
 * already contains are reused.
 *
 * @returns Number of reused tokens
 */
export async function readPrompt(
  sequence: LlamaContextSequence,
  prompt: readonly Token[],
  signal: AbortSignal,
): Promise<number> {
  const cached = await rewind(sequence, sharedTokens(sequence, prompt))
  for (let at = cached; at < prompt.length - 1; at += PROMPT_CHUNK_TOKENS) {
    signal.throwIfAborted()
    const chunk = prompt.slice(at, Math.min(at + PROMPT_CHUNK_TOKENS, prompt.length - 1))
    await sequence.evaluateWithoutGeneratingNewTokens(chunk)
  }
  return cached
}

async function rewind(sequence: LlamaContextSequence, length: number): Promise<number> {
  const { nextTokenIndex } = sequence
  if (length === nextTokenIndex) return length
  // Recurrent models and models with sliding windows cannot return to an earlier state. To reuse a prefix, the library
  // would evaluate the whole prefix again in one call that cannot be aborted. The sequence is therefore cleared.
  if (length === 0 || sequence.needsCheckpoints) {
    await sequence.clearHistory()
    return 0
  }
  await sequence.eraseContextTokenRanges([{ start: length, end: nextTokenIndex }])
  return length
}

/**
 * Samples tokens after a prompt until the model ends its turn, the grammar is complete, or the consumer leaves the loop. The sequence then contains
 * the prompt and the answer, so the next turn of the conversation can continue there.
 */
export async function* sample(
  sequence: LlamaContextSequence,
  prompt: readonly Token[],
  sampling: Sampling,
  signal: AbortSignal,
): AsyncGenerator<Sampled> {
  await readPrompt(sequence, prompt, signal)
  const last = prompt.slice(-1)
  const metadata = { probabilities: sampling.wantsProbabilities }
  for await (const sampled of sequence.evaluateWithMetadata(last, metadata, sampling.options)) {
    signal.throwIfAborted()
    sampling.generated.push(sampled.token)
    yield sampled
  }
}

function readLogitBias({ module, model }: LlamaRuntime, bias: GenerateRequest['logit_bias']) {
  if (!bias) return undefined
  const tokenBias = new module.TokenBias(model.tokenizer)
  const vocabulary = model.fileInfo.metadata.tokenizer.ggml.tokens.length
  for (const [key, value] of Object.entries(bias)) {
    const id = Number(key)
    if (!Number.isInteger(id) || id < 0 || id >= vocabulary) {
      const problem = `Invalid 'logit_bias': ${key} is not a token of this model (0 to ${vocabulary - 1}).`
      throw new ServiceError('invalid_value', problem, { param: 'logit_bias' })
    }
    tokenBias.set(id as Token, { logit: value })
  }
  return tokenBias
}
