import type { Dialect } from '#schemas/generate.ts'
import type { ModelConfig } from '#schemas/models.ts'

/*
 * Which unknown fields of a request an upstream gets (`pass` of a model in models.yaml).
 *
 * Clients send new fields of an API before Sluice knows them, so `pass: all`, the default, sends every field except those below.
 * These address the engine or a gateway instead of the model: a caller could overtake other tenants inside the engine, read
 * another tenant's cache by timing, make the upstream fetch an address of its own network, or run code in the engine.
 */
const ENGINE_FIELDS: ReadonlySet<string> = new Set([
  // vLLM and SGLang: scheduling, cache isolation, transfer of caches, code.
  ...['priority', 'cache_salt', 'kv_transfer_params', 'logits_processors', 'custom_logit_processor', 'custom_params'],
  ...['vllm_xargs', 'chat_template', 'lora_path', 'data_parallel_rank', 'request_id', 'rid', 'session_params'],
  ...['bootstrap_host', 'bootstrap_port', 'bootstrap_room', 'extra_key', 'return_hidden_states'],
  // LiteLLM and other gateways: where the call goes, and with which key.
  ...['api_base', 'base_url', 'api_key', 'api_version', 'custom_llm_provider', 'user_config', 'extra_headers'],
  ...['extra_body', 'mock_response', 'fallbacks', 'proxy_server_request', 'litellm_params', 'callbacks'],
  // llama.cpp: slots of other callers.
  ...['id_slot', 'cache_prompt', 'slot_id', 'lora'],
  // Anthropic: servers that the upstream connects to.
  'mcp_servers',
])

/** Fields that the public references of the APIs name, without those that have an internal form. */
const KNOWN_FIELDS: Readonly<Record<Dialect, ReadonlySet<string>>> = {
  openai: new Set([
    ...['audio', 'function_call', 'functions', 'moderation', 'prediction', 'prompt_cache_key', 'prompt_cache_options'],
    ...['prompt_cache_retention', 'reasoning', 'safety_identifier', 'service_tier', 'stream_options', 'verbosity'],
    ...['web_search_options', 'best_of', 'echo', 'suffix', 'tool_choice', 'modalities', 'top_k'],
  ]),
  anthropic: new Set([
    ...['cache_control', 'container', 'context_management', 'inference_geo', 'output_config', 'output_format'],
    ...['service_tier', 'speed', 'thinking', 'metadata', 'tool_choice', 'diagnostics', 'fallbacks'],
  ]),
  responses: new Set([
    ...['client_metadata', 'context_management', 'include', 'max_tool_calls', 'moderation', 'prompt'],
    ...['prompt_cache_key', 'prompt_cache_options', 'prompt_cache_retention', 'reasoning', 'safety_identifier'],
    ...['service_tier', 'text', 'tool_choice', 'truncation'],
  ]),
}

/** The unknown fields of a request that the upstream of a model gets. */
export function passedFields(
  extra: Readonly<Record<string, unknown>> | undefined,
  dialect: Dialect,
  { pass }: Pick<ModelConfig, 'pass'>,
): Record<string, unknown> | undefined {
  if (extra === undefined) return undefined
  const named = typeof pass === 'string' ? [] : pass
  const takesAll = pass === 'all' || named.includes('all')
  const isPassed = (field: string) =>
    named.includes(field) || KNOWN_FIELDS[dialect].has(field) || (takesAll && !ENGINE_FIELDS.has(field))
  const fields = Object.entries(extra).filter(([field]) => isPassed(field))
  return fields.length > 0 ? Object.fromEntries(fields) : undefined
}
