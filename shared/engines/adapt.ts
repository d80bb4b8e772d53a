import { createHash } from 'node:crypto'
import type { Dialect, GenerateEvent, GenerateRequest, Part, Tool, Turn } from '#schemas/kinds/generate.ts'
import type { ModelConfig } from '#schemas/models.ts'
import { objectIn } from '#shared/json/object.ts'
import { isOpenAiServer } from './upstream/servers.ts'

/*
 * Selects the unknown fields of a request that are sent to an upstream (`pass` of a model in models.yaml).
 *
 * Clients send new fields of an API before Sluice supports them. The default `pass: all` therefore sends every unknown field, except the
 * fields below, which address the engine or a gateway instead of the model.
 *
 * With these fields, a caller could overtake other tenants inside the engine, or detect by timing whether another tenant sent the same
 * prompt. The caller could also make the upstream fetch an internal address or run code in the engine.
 */
const ENGINE_FIELDS: ReadonlySet<string> = new Set([
  // Fields of vLLM and SGLang that control scheduling, isolate or transfer the prompt cache, or run code.
  ...['priority', 'cache_salt', 'kv_transfer_params', 'logits_processors', 'custom_logit_processor', 'custom_params'],
  ...['vllm_xargs', 'chat_template', 'lora_path', 'data_parallel_rank', 'request_id', 'rid', 'session_params'],
  ...['bootstrap_host', 'bootstrap_port', 'bootstrap_room', 'extra_key', 'return_hidden_states'],
  // Fields of LiteLLM and other gateways that change the destination or the key of the call.
  ...['api_base', 'base_url', 'api_key', 'api_version', 'custom_llm_provider', 'user_config', 'extra_headers'],
  ...['extra_body', 'mock_response', 'fallbacks', 'proxy_server_request', 'litellm_params', 'callbacks'],
  // Fields of llama.cpp that select an adapter, or a slot whose cache may contain prompts of other callers.
  ...['id_slot', 'cache_prompt', 'slot_id', 'lora'],
  // Field of the Messages API: servers to which the upstream would connect.
  'mcp_servers',
])

/**
 * Documented request fields of each API that the internal form does not represent. These fields are always sent, even if `pass` does not select them.
 */
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

/**
 * Adapts a request to the engine of one model, and the engine's events to the caller.
 *
 * A request may contain fields and parts of one API, in `extra` and `native` (schemas/kinds/generate.ts). A model may have fallbacks of other APIs. A
 * worker therefore adapts the request right before it calls a model:
 *
 * 1. Native tools, content blocks and items of another dialect are replaced with their substitutes or removed.
 * 2. Unknown fields that address the engine instead of the model are removed ({@link passedFields}).
 * 3. Tool names that the upstream would reject are shortened: `mcp__a_long_server__a_long_tool` → `mcp__a_long_ser_1b2c3d4e`.
 *
 * Events are adapted in reverse. Tool names become those of the caller again, and calls of a substitute function become calls of the custom tool. The
 * event `start` names the model by the alias that the caller used.
 */
export interface AdaptedRequest {
  readonly request: GenerateRequest
  /** Converts one engine event into the caller's events. Undefined if no conversion is needed. */
  readonly restore: ((event: GenerateEvent) => readonly GenerateEvent[]) | undefined
}

const TOOL_NAMES: Readonly<Record<Dialect, { readonly charsMax: number }>> = {
  openai: { charsMax: 64 },
  responses: { charsMax: 64 },
  anthropic: { charsMax: 128 },
}
const HASH_CHARS = 8

export function adaptRequest(request: GenerateRequest, model: ModelConfig): AdaptedRequest {
  const dialect = dialectOf(request, model)
  const isSame = dialect === request.dialect
  const isNamed = request.named !== undefined && request.model === model.id
  const { extra } = request
  let adapted = extra && isSame ? { ...request, extra: passedFields(extra, dialect, model) } : request
  if (!isSame && dialect !== undefined) adapted = withSharedFields(adapted, dialect)
  // In chat completions, only OpenAI's own servers support custom tools. Other servers receive them as functions.
  const keepsCustom = isSame && (dialect !== 'openai' || isOpenAi(model))
  if (!isSame || !keepsCustom) adapted = withoutNative(adapted, isSame)
  const isRestoring = adapted.tools.some(isRestored)
  // Engines in this process accept every tool name, so no names are shortened for them.
  const names = dialect !== undefined || isRestoring ? new ToolNames(adapted, dialect) : undefined
  if (names?.areChanged) adapted = names.rename(adapted)
  const calls = names && (names.areChanged || isRestoring) ? new CallRestorer(names) : undefined
  if (!calls && !isNamed) return { request: adapted, restore: undefined }
  return {
    request: adapted,
    restore: (event) => {
      if (isNamed && event.type === 'start') return [{ ...event, model: request.named as string }]
      return calls ? calls.restore(event) : [event]
    },
  }
}

/** The API of a model's upstream. Undefined for engines that run inside the worker. */
export function dialectOf(request: Pick<GenerateRequest, 'completion'>, { engine }: ModelConfig): Dialect | undefined {
  if (engine.type === 'anthropic') return 'anthropic'
  if (engine.type !== 'openai') return undefined
  return engine.api === 'responses' && !request.completion ? 'responses' : 'openai'
}

function isOpenAi({ engine }: ModelConfig): boolean {
  return engine.type === 'openai' && isOpenAiServer(engine)
}

const SHARED_FIELDS = [
  'service_tier',
  'prompt_cache_key',
  'prompt_cache_retention',
  'prompt_cache_options',
  'safety_identifier',
] as const

function withSharedFields(request: GenerateRequest, dialect: Dialect): GenerateRequest {
  const { extra } = request
  const turns = request.turns.some(hasExtra) ? request.turns.map(withoutExtra) : request.turns
  const tools = request.tools.some((tool) => tool.extra) ? request.tools.map(plainTool) : request.tools
  if (!extra && turns === request.turns && tools === request.tools) return request
  const isOpenAi = request.dialect !== 'anthropic' && dialect !== 'anthropic'
  return { ...request, turns, tools, extra: extra && isOpenAi ? sharedFields(extra, dialect) : undefined }
}

/**
 * Moves fields that several APIs support under different names to the place that the upstream's API requires. For example, `verbosity` is a field of
 * `text` in the Responses API.
 */
function sharedFields(extra: Readonly<Record<string, unknown>>, dialect: Dialect): Record<string, unknown> {
  const shared = Object.fromEntries(SHARED_FIELDS.flatMap((name) => (name in extra ? [[name, extra[name]]] : [])))
  const { verbosity } = dialect === 'responses' ? extra : ((extra.text ?? {}) as Record<string, unknown>)
  if (verbosity === undefined) return shared
  return { ...shared, ...(dialect === 'responses' ? { text: { verbosity } } : { verbosity }) }
}

function hasExtra(turn: Turn): boolean {
  return turn.extra !== undefined || turn.parts.some((part) => 'extra' in part && part.extra !== undefined)
}

function withoutExtra(turn: Turn): Turn {
  if (!hasExtra(turn)) return turn
  const parts = turn.parts.map((part): Part => ('extra' in part && part.extra ? { ...part, extra: undefined } : part))
  return { ...turn, parts, extra: undefined }
}

function plainTool(tool: Tool): Tool {
  return tool.extra ? { ...tool, extra: undefined } : tool
}

function isRestored({ native, custom, namespace, called }: Tool): boolean {
  return native === undefined && (custom === true || namespace !== undefined || called !== undefined)
}

/**
 * @param isSame Whether caller and upstream use the same dialect. If true, then native parts (content that only this dialect has) are kept,
 * and only custom tools are replaced
 */
function withoutNative(request: GenerateRequest, isSame: boolean): GenerateRequest {
  const hasNative = ({ native, native_only, custom }: Tool) =>
    custom || (!isSame && (native !== undefined || native_only))
  const tools = request.tools.some(hasNative)
    ? request.tools.flatMap((tool) => {
        if (!hasNative(tool)) return [tool]
        return tool.native_only ? [] : [{ ...tool, native: undefined }]
      })
    : request.tools
  const turns = request.turns.some(needsSubstitutes)
    ? request.turns.flatMap((turn) => substitute(turn, isSame))
    : request.turns
  if (tools === request.tools && turns === request.turns) return request
  const { tool_choice: choice } = request
  const isLeftOut = choice?.type === 'tool' && !tools.some(({ name }) => name === choice.name)
  if (tools.length > 0) return { ...request, tools, turns, ...(isLeftOut && { tool_choice: undefined }) }
  // If all tools were removed, then a tool choice would be invalid, so the choice is removed too.
  const { tool_choice: _choice, allowed_tools: _allowed, parallel_tool_calls: _parallel, ...rest } = request
  return { ...rest, tools, turns }
}

function needsSubstitutes(turn: Turn): boolean {
  if (turn.role === 'tool' && turn.custom) return true
  return turn.parts.some((part) => part.type === 'native' || (part.type === 'tool_call' && part.custom))
}

function substitute(turn: Turn, isSame: boolean): Turn[] {
  if (!needsSubstitutes(turn)) return [turn]
  const parts = turn.parts.flatMap((part): Part[] => {
    if (part.type === 'tool_call' && part.custom) return [{ ...part, custom: undefined, extra: undefined }]
    if (part.type !== 'native' || isSame) return [part]
    return part.text === undefined || part.text === '' ? [] : [{ type: 'text', text: part.text }]
  })
  if (turn.role === 'tool') return [{ ...turn, parts, custom: undefined }]
  return parts.length === 0 ? [] : [{ ...turn, parts }]
}

class ToolNames {
  readonly areChanged: boolean
  readonly #charsMax: number | undefined
  readonly #sent = new Map<string, string>()
  readonly #tools = new Map<string, Tool>()

  constructor({ tools, turns }: GenerateRequest, dialect: Dialect | undefined) {
    this.#charsMax = dialect && TOOL_NAMES[dialect].charsMax
    for (const tool of tools) {
      // A native tool, which only one API defines, keeps its own name. Calls of this tool in earlier turns must keep that name too.
      if (tool.native !== undefined && !tool.native_only) this.#sent.set(tool.name, tool.name)
      const name = tool.native === undefined ? this.sentName(tool.name) : tool.name
      this.#tools.set(name, tool)
    }
    // Earlier turns may contain calls of tools that the request no longer offers. Names of such tools are shortened too.
    for (const { parts } of turns) for (const part of parts) if (part.type === 'tool_call') this.sentName(part.name)
    this.areChanged = [...this.#sent].some(([from, to]) => from !== to)
  }

  sentName(name: string): string {
    const known = this.#sent.get(name)
    if (known !== undefined) return known
    const sent = this.#isTaken(name) ? name : this.#shorten(name)
    this.#sent.set(name, sent)
    return sent
  }

  findTool(sentName: string): Tool | undefined {
    return this.#tools.get(sentName)
  }

  rename(request: GenerateRequest): GenerateRequest {
    const { tool_choice: choice, allowed_tools } = request
    return {
      ...request,
      tools: request.tools.map((tool) =>
        tool.native === undefined ? { ...tool, name: this.sentName(tool.name) } : tool,
      ),
      turns: request.turns.map((turn) =>
        turn.role === 'assistant' ? { ...turn, parts: this.#renameCalls(turn.parts) } : turn,
      ),
      ...(choice?.type === 'tool' && { tool_choice: { ...choice, name: this.sentName(choice.name) } }),
      ...(allowed_tools && { allowed_tools: allowed_tools.map((name) => this.sentName(name)) }),
    }
  }

  #renameCalls(parts: Part[]): Part[] {
    return parts.map((part) => (part.type === 'tool_call' ? { ...part, name: this.sentName(part.name) } : part))
  }

  #isTaken(name: string): boolean {
    return this.#charsMax === undefined || (name.length <= this.#charsMax && /^[A-Za-z0-9_-]+$/.test(name))
  }

  #shorten(name: string): string {
    const hash = createHash('sha256').update(name).digest('hex').slice(0, HASH_CHARS)
    const words = name.replaceAll(/[^A-Za-z0-9_-]/g, '_')
    return `${words.slice(0, (this.#charsMax ?? words.length) - HASH_CHARS - 1)}_${hash}`
  }
}

class CallRestorer {
  readonly #names: ToolNames
  /**
   * Arguments of custom-tool calls, by choice and call. The free text can be extracted only from complete JSON, so the arguments are buffered until
   * then.
   */
  readonly #held = new Map<string, Extract<GenerateEvent, { type: 'tool_arguments' }>>()

  constructor(names: ToolNames) {
    this.#names = names
  }

  restore(event: GenerateEvent): readonly GenerateEvent[] {
    if (event.type === 'tool_call') return [this.#call(event)]
    if (event.type === 'tool_arguments') {
      const key = `${event.choice}.${event.call}`
      const held = this.#held.get(key)
      if (!held) return [event]
      this.#held.set(key, { ...held, text: held.text + event.text })
      return []
    }
    return event.type === 'finish' ? [...this.#release(event.choice), event] : [event]
  }

  #call(event: Extract<GenerateEvent, { type: 'tool_call' }>): GenerateEvent {
    const tool = this.#names.findTool(event.name)
    if (!tool || tool.native !== undefined) return event
    const { choice, call } = event
    if (tool.custom) this.#held.set(`${choice}.${call}`, { type: 'tool_arguments', choice, call, text: '' })
    return {
      ...event,
      name: tool.called ?? tool.name,
      ...(tool.custom && { custom: true }),
      ...(tool.namespace !== undefined && { extra: { ...event.extra, namespace: tool.namespace } }),
    }
  }

  *#release(choice: number): Generator<GenerateEvent> {
    for (const [key, held] of this.#held) {
      if (held.choice !== choice) continue
      this.#held.delete(key)
      yield { ...held, text: customInput(held.text) }
    }
  }
}

export function customInput(json: string): string {
  const { input } = objectIn(json) ?? {}
  return typeof input === 'string' ? input : json
}

function passedFields(
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
