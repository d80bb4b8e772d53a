import type { Dialect } from '#schemas/generate.ts'
import type { ModelConfig } from '#schemas/models.ts'

/*
 * Selects the unknown fields of a request that are sent to an upstream (`pass` of a model in models.yaml).
 *
 * Clients send new fields of an API before Sluice supports them. The default `pass: all` therefore sends every field except those below,
 * which address the engine or a gateway instead of the model.
 *
 * With such a field a caller could overtake other tenants inside the engine, or read another tenant's cache by timing. The caller could
 * also make the upstream fetch an internal address, or run code in the engine.
 */
const ENGINE_FIELDS: ReadonlySet<string> = new Set([
  // vLLM and SGLang: scheduling, cache isolation, cache transfer, code.
  ...['priority', 'cache_salt', 'kv_transfer_params', 'logits_processors', 'custom_logit_processor', 'custom_params'],
  ...['vllm_xargs', 'chat_template', 'lora_path', 'data_parallel_rank', 'request_id', 'rid', 'session_params'],
  ...['bootstrap_host', 'bootstrap_port', 'bootstrap_room', 'extra_key', 'return_hidden_states'],
  // LiteLLM and other gateways: destination and key of the call.
  ...['api_base', 'base_url', 'api_key', 'api_version', 'custom_llm_provider', 'user_config', 'extra_headers'],
  ...['extra_body', 'mock_response', 'fallbacks', 'proxy_server_request', 'litellm_params', 'callbacks'],
  // llama.cpp: slots of other callers.
  ...['id_slot', 'cache_prompt', 'slot_id', 'lora'],
  // Anthropic: servers that the upstream connects to.
  'mcp_servers',
])

/** Fields in the public references of the APIs, without those that have an internal form. */
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

/** The unknown fields of a request that the upstream of a model receives. */
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
