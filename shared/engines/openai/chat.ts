import type { GenerateEvent, GenerateRequest } from '#schemas/generate.ts'
import type { ModelConfig, UpstreamConfig } from '#schemas/models.ts'
import type { ChatEngine, GenerateOptions } from '#shared/engines/chat.ts'
import { completesOf } from '#shared/engines/completions.ts'
import { answerEvents } from '#shared/engines/upstream/answer.ts'
import { keyOf, missingKeyOf } from '#shared/engines/upstream/key.ts'
import type { ModelShare } from '#shared/engines/upstream/share.ts'
import { Upstream } from '#shared/engines/upstream/upstream.ts'
import { CompletionDecoder, countable, encodeCompletion } from './completions.ts'
import { OpenAiDecoder } from './decode.ts'
import { encodeOpenAi } from './encode.ts'

/**
 * A chat engine on any server that speaks POST /chat/completions, and POST /completions for raw prompts: vLLM, llama.cpp, Ollama, LocalAI, OpenAI.
 *
 * @param model A model whose engine is of type `openai`.
 * @param env Where the key named by `api_key_env` is found. Where it names none none is sent.
 * @param share With which other workers its servers are shared; default: none
 */
export function openOpenAiEngine(
  model: ModelConfig,
  env: Record<string, string | undefined>,
  share?: ModelShare,
): ChatEngine {
  if (model.engine.type !== 'openai') throw new Error(`model '${model.id}' does not run on an OpenAI-dialect upstream`)
  return new OpenAiEngine(model, model.engine, env, share)
}

class OpenAiEngine implements ChatEngine {
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

  get completes(): ChatEngine['completes'] {
    return completesOf(this.#model)
  }

  generate(request: GenerateRequest, options: GenerateOptions): AsyncIterable<GenerateEvent> {
    const headers = {
      'idempotency-key': options.idempotencyKey,
      ...(options.traceparent ? { traceparent: options.traceparent } : {}),
    }
    const isRaw = request.completion !== undefined
    const encode = isRaw ? encodeCompletion : encodeOpenAi
    const open = () => ({
      path: isRaw ? '/completions' : '/chat/completions',
      headers,
      body: JSON.stringify(encode(request, this.#model, this.#config)),
      isStream: request.stream,
      signal: options.signal,
    })
    const decoder = isRaw ? new CompletionDecoder(request) : new OpenAiDecoder(request)
    return answerEvents(this.#upstream, isRaw ? countable(request) : request, open, decoder)
  }

  close(): Promise<void> {
    return this.#upstream.close()
  }
}
