import type { CompletionLogprobs } from '#schemas/completions.ts'
import type { GenerateEvent, GenerateRequest, Usage } from '#schemas/kinds/generate.ts'
import type { ModelConfig, UpstreamConfig } from '#schemas/models.ts'
import { choicesOf, completesOf } from '#shared/engines/completions.ts'
import type { ChatEngine, GenerateOptions } from '#shared/engines/engine.ts'
import { affinityOf } from '#shared/engines/upstream/affinity.ts'
import { type AnswerDecoder, answerEvents } from '#shared/engines/upstream/answer.ts'
import type { Exchange } from '#shared/engines/upstream/exchange.ts'
import { bodyOf } from '#shared/engines/upstream/json.ts'
import { cacheSaltOf, keyOf, missingKeyOf } from '#shared/engines/upstream/key.ts'
import type { ModelPartition } from '#shared/engines/upstream/limit-partition.ts'
import { Upstream, type UpstreamCall } from '#shared/engines/upstream/upstream.ts'
import { ServiceError } from '#shared/lib/error.ts'
import type { WireChoice } from './choice.ts'
import { OpenAiDecoder } from './decode.ts'
import { defined, encodeOpenAi, maxTokens } from './encode.ts'
import { ResponsesDecoder } from './responses-decode.ts'
import { encodeResponses } from './responses-encode.ts'

/**
 * Opens a chat engine for a server with POST /chat/completions or POST /responses: vLLM, llama.cpp, Ollama, LocalAI, OpenAI. Raw prompts use POST
 * /completions.
 *
 * @param model A model whose engine has type `openai`.
 * @param env Environment with the key that `api_key_env` names. Without `api_key_env` no key is sent.
 * @param share Divides the servers' limits among this and other workers. Default: no sharing.
 */
export function openOpenAiEngine(
  model: ModelConfig,
  env: Record<string, string | undefined>,
  share?: ModelPartition,
): ChatEngine {
  if (model.engine.type !== 'openai') throw new Error(`model '${model.id}' does not run on an OpenAI-dialect upstream`)
  return new OpenAiEngine(model, model.engine, env, share)
}

interface Wire {
  readonly path: string
  readonly encode: (request: GenerateRequest, model: ModelConfig, config: UpstreamConfig) => object
  readonly open: (request: GenerateRequest) => AnswerDecoder
}

const WIRES: Readonly<Record<'chat' | 'responses' | 'completions', Wire>> = {
  chat: { path: '/chat/completions', encode: encodeOpenAi, open: (request) => new OpenAiDecoder(request) },
  responses: { path: '/responses', encode: encodeResponses, open: (request) => new ResponsesDecoder(request) },
  completions: { path: '/completions', encode: encodeCompletion, open: (request) => new CompletionDecoder(request) },
}

class OpenAiEngine implements ChatEngine {
  readonly #model: ModelConfig
  readonly #config: UpstreamConfig
  readonly #plainConfig: UpstreamConfig
  readonly #upstream: Upstream
  readonly #env: Record<string, string | undefined>
  #requestsUsage = true

  constructor(
    model: ModelConfig,
    config: UpstreamConfig,
    env: Record<string, string | undefined>,
    share?: ModelPartition,
  ) {
    this.#model = model
    this.#config = config
    this.#env = env
    this.#plainConfig = { ...config, force_usage: false }
    const key = keyOf(model, env)
    const headers: Record<string, string> = key ? { authorization: `Bearer ${key}` } : {}
    this.#upstream = new Upstream(model, config, headers, { missingKey: missingKeyOf(model, env), share })
  }

  get places(): number {
    return this.#upstream.permits
  }

  get completes(): ChatEngine['completes'] {
    return completesOf(this.#model)
  }

  generate(request: GenerateRequest, options: GenerateOptions): AsyncIterable<GenerateEvent> {
    const isRaw = request.completion !== undefined
    const { path, encode, open: openDecoder } = WIRES[isRaw ? 'completions' : this.#config.api]
    const headers = { 'idempotency-key': options.idempotencyKey }
    const cache_salt = cacheSaltOf(this.#model, this.#env, options.tenant ?? options.idempotencyKey)
    const open = async (config = this.#requestsUsage ? this.#config : this.#plainConfig) => ({
      path,
      headers,
      forwarded: request.headers,
      body: await bodyOf({ ...encode(request, this.#model, config), ...(cache_salt !== undefined && { cache_salt }) }),
      isStream: request.stream,
      signal: options.signal,
      trace: options,
      affinity: affinityOf(request, this.#model),
    })
    const upstream = { call: (call: UpstreamCall) => this.#call(request, call, () => open(this.#plainConfig)) }
    return answerEvents(upstream, isRaw ? countable(request) : request, open, openDecoder(request))
  }

  /** Makes a call that requests usage by `stream_options`. Some servers reject this field, so all calls after the first rejection omit it. */
  async #call(request: GenerateRequest, call: UpstreamCall, openPlain: () => Promise<UpstreamCall>): Promise<Exchange> {
    try {
      return await this.#upstream.call(call)
    } catch (error) {
      const isOurs = request.stream && this.#config.force_usage && request.extra?.stream_options === undefined
      if (!isOurs || !refusesUsage(error)) throw error
      const exchange = await this.#upstream.call(await openPlain())
      this.#requestsUsage = false
      return exchange
    }
  }

  close(): Promise<void> {
    return this.#upstream.close()
  }
}

function refusesUsage(error: unknown): boolean {
  if (!(error instanceof ServiceError) || error.status !== 400) return false
  return error.param === 'stream_options' || error.message.includes('stream_options')
}

/** Encodes the body of POST /completions for an upstream with OpenAI's API. The body has all prompts of a request, raw. */
function encodeCompletion(request: GenerateRequest, model: ModelConfig, config: UpstreamConfig): object {
  const { completion, turns, stop, n } = request
  const texts = turns.map(({ parts: [part] }) => (part?.type === 'text' ? part.text : ''))
  const prompts: readonly unknown[] = completion?.tokens ?? texts
  return defined({
    ...request.extra,
    model: config.model ?? model.id,
    // Some servers accept only a single prompt, so a list of one prompt is sent as a string.
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

/** Makes a request whose prompt text can be counted if the upstream reports no usage. Each token id is replaced with a short word of one token. */
function countable(request: GenerateRequest): GenerateRequest {
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

/** Reads completions, streamed or whole. Choices are converted to the form of chat completions and then read by the decoder for that form. */
class CompletionDecoder implements AnswerDecoder {
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

  end(out: GenerateEvent[]): Generator<undefined, void> {
    return this.#chat.end(out)
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
