import type { GenerateEvent, GenerateRequest } from '#schemas/kinds/generate.ts'
import type { ModelConfig, UpstreamConfig } from '#schemas/models.ts'
import type { ChatEngine, GenerateOptions } from '#shared/engines/engine.ts'
import { affinityOf } from '#shared/engines/upstream/affinity.ts'
import { answerEvents } from '#shared/engines/upstream/answer.ts'
import { bodyOf } from '#shared/engines/upstream/json.ts'
import { keyOf, missingKeyOf } from '#shared/engines/upstream/key.ts'
import type { ModelPartition } from '#shared/engines/upstream/limit-partition.ts'
import { Upstream, type UpstreamCall } from '#shared/engines/upstream/upstream.ts'
import { ServiceError } from '#shared/lib/error.ts'
import { AnthropicDecoder } from './decode.ts'
import { encodeAnthropic, encodeCount } from './encode.ts'

/** Value of `anthropic-version` if the caller sent none. Callers of chat completions never send one. Upstreams support old versions for years. */
const VERSION = '2023-06-01'

const COUNT_MAX = 64 * 1024
const COUNT_MS = 10_000

/**
 * Opens a chat engine for a server with POST /v1/messages.
 *
 * @param model A model whose engine has type `anthropic`.
 * @param env Environment with the key that `api_key_env` names. Without `api_key_env` no key is sent.
 * @param share Divides the servers' limits among this and other workers. Default: no sharing.
 */
export function openAnthropicEngine(
  model: ModelConfig,
  env: Record<string, string | undefined>,
  share?: ModelPartition,
): ChatEngine {
  if (model.engine.type !== 'anthropic') throw new Error(`model '${model.id}' does not run on an Anthropic upstream`)
  return new AnthropicEngine(model, model.engine, env, share)
}

class AnthropicEngine implements ChatEngine {
  readonly #model: ModelConfig
  readonly #config: UpstreamConfig
  readonly #upstream: Upstream
  /**
   * Whether the catalogue sets `anthropic-version`, which then replaces the version of every call. Beta features of the catalogue, in contrast, are
   * added to those of the caller.
   */
  readonly #isVersionSet: boolean
  readonly #betas: string | undefined

  constructor(
    model: ModelConfig,
    config: UpstreamConfig,
    env: Record<string, string | undefined>,
    share?: ModelPartition,
  ) {
    this.#model = model
    this.#config = config
    const key = keyOf(model, env)
    const headers = { 'anthropic-version': VERSION, ...(key ? { 'x-api-key': key } : {}) }
    this.#upstream = new Upstream(model, config, headers, { missingKey: missingKeyOf(model, env), share })
    const set = new Map(Object.entries(config.headers).map(([name, value]) => [name.toLowerCase(), value]))
    this.#isVersionSet = set.has('anthropic-version')
    this.#betas = set.get('anthropic-beta')
  }

  get places(): number {
    return this.#upstream.permits
  }

  generate(request: GenerateRequest, options: GenerateOptions): AsyncIterable<GenerateEvent> {
    const open = async () => {
      const body = encodeAnthropic(request, this.#model, this.#config)
      return await this.#call('/v1/messages', request, body, options)
    }
    return answerEvents(this.#upstream, request, open, new AnthropicDecoder(request))
  }

  /**
   * Counts the prompt's tokens. Returns undefined if the upstream fails, and the caller then estimates the tokens. Only errors about the request are
   * thrown.
   */
  async countTokens(request: GenerateRequest, options: GenerateOptions): Promise<number | undefined> {
    const body = encodeCount(request, this.#model, this.#config)
    const within = { ...options, signal: AbortSignal.any([options.signal, AbortSignal.timeout(COUNT_MS)]) }
    try {
      const exchange = await this.#upstream.call(await this.#call('/v1/messages/count_tokens', request, body, within))
      const { input_tokens } = JSON.parse(await exchange.text(COUNT_MAX)) as { input_tokens?: unknown }
      return typeof input_tokens === 'number' ? input_tokens : undefined
    } catch (error) {
      options.signal.throwIfAborted()
      if (error instanceof ServiceError && error.status === 400) throw error
      return undefined
    }
  }

  close(): Promise<void> {
    return this.#upstream.close()
  }

  async #call(path: string, request: GenerateRequest, body: object, options: GenerateOptions): Promise<UpstreamCall> {
    const { signal } = options
    const headers = this.#headersOf(request)
    const affinity = affinityOf(request, this.#model)
    const { headers: forwarded, stream: isStream } = request
    return { path, headers, forwarded, body: await bodyOf(body), isStream, signal, trace: options, affinity }
  }

  #headersOf({ anthropic }: GenerateRequest): Record<string, string> {
    const { version, beta } = anthropic ?? {}
    return {
      ...(version !== undefined && !this.#isVersionSet && { 'anthropic-version': version }),
      ...(beta !== undefined && { 'anthropic-beta': this.#betas === undefined ? beta : `${this.#betas},${beta}` }),
    }
  }
}
