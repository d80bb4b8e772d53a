import { GenerateEvent, GenerateRequest } from '#schemas/kinds/generate.ts'
import { ModelConfig } from '#schemas/models.ts'
import { openAnthropicEngine } from '#shared/engines/anthropic/anthropic.ts'
import type { ChatEngine, GenerateOptions } from '#shared/engines/engine.ts'
import { openLlamaEngine } from '#shared/engines/llama/llama.ts'
import { openOpenAiEngine } from '#shared/engines/openai/chat.ts'
import type { ServiceError } from '#shared/lib/error.ts'

export type Dialect = 'openai' | 'anthropic'

/** API key that an engine of {@link engineOn} sends to its upstream, unless the test sets another one. */
export const KEY = 'key-of-the-upstream'

/** Opens an engine for model `m1` on an upstream at `url` (without /v1). `engine` and `model` add to its configuration. */
export function engineOn(
  dialect: Dialect,
  url: string,
  engine: object = {},
  model: object = {},
  key = KEY,
): ChatEngine & AsyncDisposable {
  const config = ModelConfig.parse({
    id: 'm1',
    engine: { type: dialect, base_url: dialect === 'openai' ? `${url}/v1` : url, api_key_env: 'KEY', ...engine },
    ...model,
  })
  const opened =
    dialect === 'openai' ? openOpenAiEngine(config, { KEY: key }) : openAnthropicEngine(config, { KEY: key })
  return Object.assign(opened, { [Symbol.asyncDispose]: () => opened.close() })
}

/** Opens a llama engine. `weightsDir` contains the weights. `engine` adds to its configuration. */
export function llamaEngine(weights: string, weightsDir: string, engine: object = {}): ChatEngine & AsyncDisposable {
  const config = ModelConfig.parse({ id: 'm1', engine: { type: 'llama', weights, ...engine } })
  const opened = openLlamaEngine(config, { weightsDir })
  return Object.assign(opened, { [Symbol.asyncDispose]: () => opened.close() })
}

/** A streamed request with the prompt "Say hello."; `fields` override it. */
export function ask(fields: object = {}): GenerateRequest {
  const turns = [{ role: 'user', parts: [{ type: 'text', text: 'Say hello.' }] }]
  return GenerateRequest.parse({ dialect: 'openai', model: 'm1', stream: true, turns, ...fields })
}

/** Options that a worker passes to an engine with the request. */
export function options(signal: AbortSignal = new AbortController().signal): GenerateOptions {
  return { signal, idempotencyKey: 'job_1:1', traceparent: '00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01' }
}

/** All events of a call, each validated by its schema. */
export async function collect(engine: ChatEngine, request = ask(), signal?: AbortSignal): Promise<GenerateEvent[]> {
  const events: GenerateEvent[] = []
  for await (const event of engine.generate(request, options(signal))) events.push(GenerateEvent.parse(event))
  return events
}

/**
 * The error of a call.
 *
 * @throws Error if the call succeeds
 */
export async function failure(engine: ChatEngine, request = ask(), signal?: AbortSignal): Promise<ServiceError> {
  const events = await collect(engine, request, signal).catch((error: ServiceError) => error)
  if (Array.isArray(events)) throw new Error(`expected a failure, got ${JSON.stringify(events)}`)
  return events
}

/** The concatenated texts of one type of event. */
export function textOf(events: readonly GenerateEvent[], type: GenerateEvent['type'] = 'text'): string {
  return events.map((event) => (event.type === type && 'text' in event ? event.text : '')).join('')
}
