import type { ModelConfig, ModelInfo, Support } from '#schemas/models.ts'

/** A model in the words of the messages format, under its id or one of its aliases. */
export function modelInfoOf(model: ModelConfig, name: string): ModelInfo {
  const { created, limits } = model
  return {
    id: name,
    type: 'model',
    display_name: name,
    created_at: new Date(created * 1_000).toISOString().replace('.000Z', 'Z'),
    lifecycle: 'active',
    line: null,
    deprecated_at: null,
    retires_at: null,
    max_input_tokens: limits.context_tokens ?? null,
    max_tokens: limits.max_output_tokens ?? null,
    capabilities: capabilitiesOf(model),
  }
}

/** What this service does not do for any model is not supported, whatever the model could. */
function capabilitiesOf({ pool, capabilities }: ModelConfig): ModelInfo['capabilities'] {
  const { images, files, json, reasoning } = capabilities
  const isText = pool === 'inference'
  const no = { supported: false }
  const when = (isAble: boolean): Support => ({ supported: isText && isAble })
  const thinks = when(reasoning)
  return {
    batch: no,
    citations: no,
    code_execution: no,
    context_management: {
      ...no,
      clear_thinking_20251015: null,
      clear_tool_uses_20250919: null,
      compact_20260112: null,
    },
    effort: { ...thinks, low: thinks, medium: thinks, high: thinks, xhigh: thinks, max: thinks },
    image_input: when(images),
    pdf_input: when(files),
    server_tools: { ...no, code_execution: no, web_search: no },
    structured_outputs: when(json),
    thinking: { ...thinks, types: { adaptive: thinks, between_tools: thinks, disabled: thinks, enabled: thinks } },
  }
}
