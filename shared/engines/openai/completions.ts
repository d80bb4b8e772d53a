import type { CompletionLogprobs } from '#schemas/completions.ts'
import type { GenerateEvent, GenerateRequest, Usage } from '#schemas/generate.ts'
import type { ModelConfig, UpstreamConfig } from '#schemas/models.ts'
import { choicesOf } from '#shared/engines/completions.ts'
import type { AnswerDecoder } from '#shared/engines/upstream/answer.ts'
import type { WireChoice } from './choice.ts'
import { OpenAiDecoder } from './decode.ts'
import { defined, maxTokens } from './encode.ts'

/** The body of POST /completions for an upstream with OpenAI's API: all prompts of a request, raw. */
export function encodeCompletion(request: GenerateRequest, model: ModelConfig, config: UpstreamConfig): object {
  const { completion, turns, stop, n } = request
  const texts = turns.map(({ parts: [part] }) => (part?.type === 'text' ? part.text : ''))
  const prompts: readonly unknown[] = completion?.tokens ?? texts
  return defined({
    ...request.extra,
    model: config.model ?? model.id,
    // Some servers accept no list.
    prompt: prompts.length === 1 ? prompts[0] : prompts,
    suffix: completion?.suffix,
    echo: completion?.echo || undefined,
    best_of: completion?.best_of,
    n: n > 1 ? n : undefined,
    max_tokens: maxTokens(request, model),
    stop: stop.length > 0 ? stop : undefined,
    temperature: request.temperature,
    top_p: request.top_p,
    presence_penalty: request.presence_penalty,
    frequency_penalty: request.frequency_penalty,
    logit_bias: request.logit_bias,
    seed: request.seed,
    logprobs: request.logprobs ? (request.top_logprobs ?? 0) : undefined,
    user: request.user,
    stream: request.stream,
    stream_options: request.stream && config.force_usage ? { include_usage: true } : undefined,
  })
}

/** A request whose prompts can be counted if the upstream reports no usage. Each token id is replaced with a short word of one token. */
export function countable(request: GenerateRequest): GenerateRequest {
  const { tokens } = request.completion ?? {}
  if (!tokens) return request
  const text = ' a'.repeat(tokens.reduce((sum, prompt) => sum + prompt.length, 0))
  return { ...request, turns: [{ role: 'user', parts: [{ type: 'text', text }] }] }
}

interface WireText {
  index?: number
  text?: string | null
  logprobs?: Partial<CompletionLogprobs> | null
  finish_reason?: string | null
  stop_reason?: unknown
  content_filter_results?: Record<string, unknown> | null
}

/** Reads completions, streamed or whole. Choices are converted to the form of chat completions. */
export class CompletionDecoder implements AnswerDecoder {
  readonly #chat: OpenAiDecoder

  constructor(request: GenerateRequest) {
    this.#chat = new OpenAiDecoder({ ...countable(request), n: choicesOf(request) })
  }

  get isDone(): boolean {
    return this.#chat.isDone
  }

  get isComplete(): boolean {
    return this.#chat.isComplete
  }

  get usage(): Partial<Usage> | undefined {
    return this.#chat.usage
  }

  isEnd(data: string): boolean {
    return this.#chat.isEnd(data)
  }

  frame(data: Record<string, unknown>, out: GenerateEvent[]): void {
    this.#chat.frame(asChat(data), out)
  }

  whole(body: Record<string, unknown>, out: GenerateEvent[]): undefined {
    this.#chat.whole(asChat(body), out)
  }

  end(out: GenerateEvent[]): void {
    this.#chat.end(out)
  }
}

function asChat(data: Record<string, unknown>): Record<string, unknown> {
  const choices = Array.isArray(data.choices) ? (data.choices as WireText[]).map(asChatChoice) : undefined
  return { ...data, choices }
}

function asChatChoice({ text, logprobs, ...rest }: WireText): WireChoice {
  return { ...rest, delta: { content: text ?? '' }, logprobs: logprobs ? { content: [...listed(logprobs)] } : null }
}

function* listed({ tokens = [], token_logprobs: own = [], top_logprobs: tops }: Partial<CompletionLogprobs>) {
  for (const [index, token] of tokens.entries()) {
    const top_logprobs = Object.entries(tops?.[index] ?? {}).map(([token, logprob]) => ({ token, logprob }))
    yield { token, logprob: own[index] ?? null, top_logprobs }
  }
}
