import type { GenerateEvent, GenerateRequest } from '#schemas/generate.ts'
import type { ModelConfig, UpstreamConfig } from '#schemas/models.ts'
import type { ChatEngine, GenerateOptions } from '#shared/engines/chat.ts'
import { answerEvents } from '#shared/engines/upstream/answer.ts'
import { keyOf, missingKeyOf } from '#shared/engines/upstream/key.ts'
import type { ModelShare } from '#shared/engines/upstream/share.ts'
import { Upstream } from '#shared/engines/upstream/upstream.ts'
import { ResponsesDecoder } from './decode.ts'
import { encodeResponses } from './encode.ts'

/**
 * A chat engine on any server that speaks POST /responses: OpenAI, vLLM, and what follows the Open Responses specification.
 *
 * @param model A model whose engine is of type `openai`, and is asked by its API `responses`.
 * @param env Where the key named by `api_key_env` is found. Where it names none none is sent.
 * @param share With which other workers its servers are shared; default: none
 */
export function openResponsesEngine(
  model: ModelConfig,
  env: Record<string, string | undefined>,
  share?: ModelShare,
): ChatEngine {
  if (model.engine.type !== 'openai') throw new Error(`model '${model.id}' does not run on an OpenAI-dialect upstream`)
  return new ResponsesEngine(model, model.engine, env, share)
}

class ResponsesEngine implements ChatEngine {
  readonly #model: ModelConfig
  readonly #config: UpstreamConfig
  readonly #upstream: Upstream

  constructor(model: ModelConfig, config: UpstreamConfig, env: Record<string, string | undefined>, share?: ModelShare) {
    this.#model = model
    this.#config = config
    const key = keyOf(model, env)
    const headers: Record<string, string> = key ? { authorization: `Bearer ${key}` } : {}
    this.#upstream = new Upstream(model, config, headers, { missingKey: missingKeyOf(model, env), share })
  }

  get places(): number {
    return this.#upstream.places
  }

  generate(request: GenerateRequest, options: GenerateOptions): AsyncIterable<GenerateEvent> {
    const { idempotencyKey, traceparent, signal } = options
    const open = () => ({
      path: '/responses',
      headers: { 'idempotency-key': idempotencyKey, ...(traceparent ? { traceparent } : {}) },
      body: JSON.stringify(encodeResponses(request, this.#model, this.#config)),
      isStream: request.stream,
      signal,
    })
    return answerEvents(this.#upstream, request, open, new ResponsesDecoder(request))
  }

  close(): Promise<void> {
    return this.#upstream.close()
  }
}
