import type { GenerateEvent, GenerateRequest } from '#schemas/generate.ts'
import type { ModelConfig, UpstreamConfig } from '#schemas/models.ts'
import type { ChatEngine, GenerateOptions } from '#shared/engines/chat.ts'
import { completesOf } from '#shared/engines/completions.ts'
import { type AnswerDecoder, answerEvents } from '#shared/engines/upstream/answer.ts'
import type { Exchange } from '#shared/engines/upstream/exchange.ts'
import { bodyOf } from '#shared/engines/upstream/json.ts'
import { keyOf, missingKeyOf } from '#shared/engines/upstream/key.ts'
import type { ModelPartition } from '#shared/engines/upstream/limit-partition.ts'
import { Upstream, type UpstreamCall } from '#shared/engines/upstream/upstream.ts'
import { ServiceError } from '#shared/lib/error.ts'
import { CompletionDecoder, countable, encodeCompletion } from './completions.ts'
import { OpenAiDecoder } from './decode.ts'
import { encodeOpenAi } from './encode.ts'
import { ResponsesDecoder } from './responses/decode.ts'
import { encodeResponses } from './responses/encode.ts'

/**
 * Opens a chat engine for a server with POST /chat/completions or POST /responses: vLLM, llama.cpp, Ollama, LocalAI, OpenAI. Raw prompts
 * use POST /completions.
 *
 * @param model A model whose engine has type `openai`.
 * @param env Environment with the key that `api_key_env` names. Without `api_key_env` no key is sent.
 * @param share Shares the servers' limits with other workers; default: no sharing.
 */
export function openOpenAiEngine(
  model: ModelConfig,
  env: Record<string, string | undefined>,
  share?: ModelPartition,
): ChatEngine {
  if (model.engine.type !== 'openai') throw new Error(`model '${model.id}' does not run on an OpenAI-dialect upstream`)
  return new OpenAiEngine(model, model.engine, env, share)
}

/** One of the APIs that generate text. */
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
  /** Configuration for a server that rejects `stream_options`. */
  readonly #plainConfig: UpstreamConfig
  readonly #upstream: Upstream
  #asksUsage = true

  constructor(
    model: ModelConfig,
    config: UpstreamConfig,
    env: Record<string, string | undefined>,
    share?: ModelPartition,
  ) {
    this.#model = model
    this.#config = config
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
    const headers = {
      'idempotency-key': options.idempotencyKey,
      ...(options.traceparent ? { traceparent: options.traceparent } : {}),
    }
    const open = async (config = this.#asksUsage ? this.#config : this.#plainConfig) => ({
      path,
      headers,
      forwarded: request.headers,
      body: await bodyOf(encode(request, this.#model, config)),
      isStream: request.stream,
      signal: options.signal,
    })
    const upstream = { call: (call: UpstreamCall) => this.#call(request, call, () => open(this.#plainConfig)) }
    return answerEvents(upstream, isRaw ? countable(request) : request, open, openDecoder(request))
  }

  /** Requests usage by `stream_options`, which some servers reject. After the first rejection, calls are sent without it. */
  async #call(request: GenerateRequest, call: UpstreamCall, openPlain: () => Promise<UpstreamCall>): Promise<Exchange> {
    try {
      return await this.#upstream.call(call)
    } catch (error) {
      const isOurs = request.stream && this.#config.force_usage && request.extra?.stream_options === undefined
      if (!isOurs || !refusesUsage(error)) throw error
      const exchange = await this.#upstream.call(await openPlain())
      this.#asksUsage = false
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
