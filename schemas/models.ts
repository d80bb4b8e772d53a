import { z } from 'zod'
import { hasModels, type ModelPool, PoolName } from './job.ts'
import { Price } from './price.ts'

const Timeouts = z.strictObject({
  connect_ms: z.int().min(1).default(5_000).describe('Timeout until the connection is open, in milliseconds'),
  first_token_ms: z
    .int()
    .min(1)
    .default(120_000)
    .describe('Timeout from the request to the first byte of the response, in milliseconds'),
  between_tokens_ms: z.int().min(1).default(30_000).describe('Timeout between two chunks of a stream, in milliseconds'),
  total_ms: z.int().min(1).default(600_000).describe('Timeout of the whole call, in milliseconds'),
})
export type Timeouts = z.infer<typeof Timeouts>

/** Base URL of an upstream server. A query in this URL, such as `?api-version=2024-10-21`, is appended to the URL of each call. */
const BaseUrl = z.url().refine((url) => !URL.canParse(url) || isBase(new URL(url)), {
  error: 'Expected an http or https URL without user, password and fragment; put a key in api_key_env or headers',
})

function isBase({ protocol, username, password, hash }: URL): boolean {
  return /^https?:$/.test(protocol) && username + password + hash === ''
}

/** Headers that are never forwarded: hop-by-hop headers and credentials of the client. */
const RESERVED_HEADERS: ReadonlySet<string> = new Set([
  ...['authorization', 'x-api-key', 'api-key', 'cookie', 'proxy-authorization', 'host', 'connection', 'upgrade'],
  ...['content-length', 'content-type', 'content-encoding', 'transfer-encoding', 'accept', 'accept-encoding', 'te'],
  ...['keep-alive', 'expect', 'idempotency-key', 'trailer'],
])
const HeaderName = z
  .string()
  .regex(/^[a-z0-9][a-z0-9_-]{0,63}$/, 'Expected the name of a header in lower case')
  .refine((name) => !RESERVED_HEADERS.has(name), 'This header is never forwarded; remove it from the list')

export const EngineConfig = z.discriminatedUnion('type', [
  z.strictObject({
    type: z.enum(['openai', 'anthropic']).describe('API of the upstream server'),
    base_url: BaseUrl.optional().describe(
      'URL of the server. openai: with /v1, such as http://127.0.0.1:8000/v1. anthropic: without /v1, such as https://host',
    ),
    api_key_env: z
      .string()
      .regex(/^[A-Za-z_][A-Za-z0-9_]*$/, 'Expected the name of an environment variable, such as VLLM_API_KEY')
      .optional()
      .describe('Name of the environment variable with the API key'),
    model: z.string().optional().describe('Model name on the upstream server. Default: the model id'),
    base_urls: z
      .array(z.union([BaseUrl, z.strictObject({ url: BaseUrl, weight: z.number().min(0.01).max(100).default(1) })]))
      .min(1)
      .max(64)
      .optional()
      .describe('Several servers instead of base_url. Each is a URL, or { url, weight } to divide the calls by weight'),
    headers: z.record(z.string(), z.string()).default({}).describe('Additional request headers'),
    timeouts: Timeouts.prefault({}),
    concurrency: z.int().min(1).optional().describe('Maximum concurrent requests of all workers per server'),
    breaker: z
      .strictObject({
        failures: z.int().min(1).default(5).describe('Consecutive failures that open the circuit breaker'),
        reset_ms: z
          .int()
          .min(1)
          .default(10_000)
          .describe('Time until an open circuit breaker allows a trial call, in milliseconds'),
      })
      .prefault({}),
    api: z
      .enum(['chat', 'responses'])
      .default('chat')
      .describe('openai: API for text generation. chat: POST /chat/completions. responses: POST /responses'),
    cache_salt_env: z
      .string()
      .regex(/^[A-Za-z_][A-Za-z0-9_]*$/, 'Expected the name of an environment variable, such as CACHE_SALT_SECRET')
      .optional()
      .describe(
        'openai: name of the environment variable with a secret. Each call then has a cache_salt of its project, so that projects ' +
          'share no prefix cache (vLLM, SGLang)',
      ),
    force_usage: z
      .boolean()
      .default(true)
      .describe('Send stream_options.include_usage. Set to false for servers that reject it'),
    completions: z
      .boolean()
      .optional()
      .describe(
        'openai: the server has POST /completions for raw prompts. Otherwise a prompt is sent as a user message. ' +
          'Default: true, except for the servers of OpenAI',
      ),
  }),
  z.strictObject({
    type: z.literal('llama').describe('GGUF model inside the worker, run by node-llama-cpp'),
    file: z.string().optional().describe('GGUF file in MODELS_DIR, or an absolute path'),
    weights: z.string().optional().describe('Name of built-in weights, prepared at the first start'),
    system: z
      .string()
      .min(1)
      .optional()
      .describe('System message for conversations without one. Default: that of the chat template'),
    chat_template: z
      .string()
      .optional()
      .describe('Jinja chat template that replaces the one in the GGUF: a file in MODELS_DIR, or an absolute path'),
    context_tokens: z.int().min(256).default(2048).describe('Context length per sequence, in tokens'),
    parallel: z.int().min(1).default(2).describe('Maximum concurrent sequences'),
    preload: z.boolean().default(false).describe('Load the model when the worker starts instead of at the first call'),
  }),
  z.strictObject({
    type: z.literal('local').describe('Local model server, started on first use (docs/operate/models.md)'),
    model: z.enum(['all-minilm-l6-v2', 'whisper-tiny.en', 'whisper-base']),
    concurrency: z.int().min(1).default(2).describe('Maximum concurrent requests per worker'),
  }),
  z.strictObject({
    type: z.literal('research').describe('Deep research (docs/guides/deep-research.md)'),
    writer: z
      .string()
      .optional()
      .describe(
        'Id of the model that plans and writes, through child jobs. Absent: reports consist of sentences from the sources',
      ),
    embeddings: z
      .string()
      .optional()
      .describe('Id of an embeddings model that ranks passages, through child jobs. Absent: ranking by words only'),
  }),
  z.strictObject({ type: z.literal('echo').describe('Deterministic output, for tests and load tests') }),
])
export type EngineConfig = z.infer<typeof EngineConfig>
export type UpstreamConfig = Extract<EngineConfig, { type: 'openai' | 'anthropic' }>

function isUpstream(engine: EngineConfig): engine is UpstreamConfig {
  return engine.type === 'openai' || engine.type === 'anthropic'
}

function isSalted(engine: EngineConfig): boolean {
  return isUpstream(engine) && engine.cache_salt_env !== undefined
}

/** Engines that may run the models of each pool. An entry is an engine type, or the name of a model of the local model server. */
const ENGINES_BY_POOL: Readonly<Record<ModelPool, readonly string[]>> = {
  inference: ['openai', 'anthropic', 'llama', 'echo'],
  embeddings: ['openai', 'all-minilm-l6-v2'],
  transcription: ['openai', 'whisper-tiny.en', 'whisper-base'],
  research: ['research'],
}

/**
 * Tasks that a model may have, each with its pool. A model with a task does only this task. A model without a task does the main work of
 * its pool, such as text generation.
 */
const TASKS = { moderation: 'inference', speech: 'inference', rerank: 'embeddings' } as const satisfies Record<
  string,
  ModelPool
>
export const ModelTask = z.enum(Object.keys(TASKS) as [keyof typeof TASKS])
export type ModelTask = z.infer<typeof ModelTask>

/** Work of a model: its task, or the name of its pool if it has no task. */
export type ModelWork = ModelPool | ModelTask

export const ModelConfig = z
  .strictObject({
    id: z.string().min(1),
    pool: PoolName.default('inference').describe('inference, embeddings, transcription or research'),
    task: ModelTask.optional().describe(
      'Task of the server, instead of the work of the pool. The model is available at the endpoint of the task',
    ),
    engine: EngineConfig,
    owned_by: z.string().default('sluice'),
    created: z
      .int()
      .min(0)
      .max(253_402_300_799)
      .default(1_780_000_000)
      .describe('Creation time in /v1/models, in Unix seconds. Maximum: the year 9999, the last of RFC 3339'),
    description: z.string().optional(),
    aliases: z.array(z.string()).default([]).describe('Alternative ids of the model'),
    capabilities: z
      .strictObject({
        images: z.boolean().default(false),
        audio: z.boolean().default(false),
        files: z.boolean().default(false),
        tools: z.boolean().default(true),
        json: z.boolean().default(true).describe('Structured output: json_object and json_schema'),
        reasoning: z.boolean().default(false),
        logprobs: z.boolean().default(true),
      })
      .prefault({}),
    limits: z
      .strictObject({
        context_tokens: z.int().min(1).optional().describe('Maximum tokens of prompt and output together'),
        max_output_tokens: z
          .int()
          .min(1)
          .optional()
          .describe('Maximum output tokens. Larger values of max_tokens are reduced to it'),
        default_output_tokens: z.int().min(1).optional().describe('Default of max_tokens'),
        choices: z.int().min(1).default(8).describe('Maximum number of choices (n) per call'),
      })
      .prefault({}),
    embeddings: z
      .strictObject({
        dimensions: z
          .int()
          .min(1)
          .optional()
          .describe('Length of the vectors. Required for requests with `dimensions`'),
        can_shorten: z.boolean().default(false).describe('Vectors may be shortened (Matryoshka embeddings)'),
        token_encoding: z
          .enum(['cl100k_base', 'o200k_base'])
          .default('cl100k_base')
          .describe('Encoding of inputs that are tokens'),
        batch_inputs_max: z.int().min(1).max(2_048).default(128).describe('Maximum inputs per upstream call'),
        batch_tokens_max: z.int().min(1).default(32_768).describe('Approximate maximum tokens per upstream call'),
        batch_wait_ms: z
          .number()
          .min(0)
          .max(100)
          .default(2)
          .describe('Maximum time that an input waits for a larger batch, in milliseconds'),
      })
      .prefault({})
      .describe('Options of models in the pool embeddings'),
    transcription: z
      .strictObject({
        languages: z.array(z.string()).optional().describe('Supported languages, as ISO 639-1 codes. Default: all'),
        segments: z.boolean().default(true).describe('The server supports verbose_json'),
        words: z.boolean().default(true).describe('The server supports word timestamps'),
        stream: z.boolean().default(false).describe('The server supports streaming'),
        translates: z.boolean().default(false).describe('The server has POST /audio/translations'),
        diarize: z.boolean().default(true).describe('Label speakers with the local model server'),
      })
      .prefault({})
      .describe('Options of models in the pool transcription'),
    price: Price.prefault({}),
    interactive_slots: z
      .int()
      .min(0)
      .optional()
      .describe(
        'Concurrent calls per worker that jobs of low priority never use, such as batch lines. Default: 1, or 0 if the worker ' +
          'runs only one call of the model at a time',
      ),
    pass: z
      .union([z.enum(['all', 'known']), z.array(z.string().min(1).max(200)).max(100)])
      .default('all')
      .describe(
        'Unknown request fields that are sent to an upstream with the same API. all: all fields except those that control the ' +
          'engine, such as priority and cache_salt. known: only fields of the public API. A list: known, plus the listed fields',
      ),
    forward_headers: z
      .array(HeaderName)
      .max(32)
      .default([])
      .describe(
        'Additional client headers to forward, besides traceparent, tracestate and session headers. baggage: for servers that may know its content, such as user names',
      ),
    project_header: HeaderName.optional().describe(
      'Header that sends the project id to the upstream, such as x-tenant-id',
    ),
    affinity: z
      .enum(['auto', 'off'])
      .default('auto')
      .describe(
        'Placement of calls on several base_urls. auto: the calls of a conversation go to one server, whose prefix cache has the ' +
          'start of the prompt. off: each call goes to the least loaded server',
      ),
    fallbacks: z
      .array(z.string())
      .default([])
      .describe('Fallback models, tried in this order if this one fails before any output'),
  })
  .refine(
    ({ pool, engine }) =>
      hasModels(pool) && ENGINES_BY_POOL[pool].includes(engine.type === 'local' ? engine.model : engine.type),
    {
      error: 'This engine does not support models of this pool',
      path: ['engine', 'type'],
    },
  )
  .refine(({ transcription, engine }) => !transcription.translates || engine.type === 'openai', {
    error: 'translates requires an engine of type openai',
    path: ['transcription', 'translates'],
  })
  .refine(({ pool, task }) => task === undefined || TASKS[task] === pool, {
    error: `Wrong pool for this task. Expected: ${Object.entries(TASKS)
      .map(([task, pool]) => `${task} in ${pool}`)
      .join(', ')}`,
    path: ['task'],
  })
  .refine(
    ({ pool, engine }) =>
      !isUpstream(engine) || engine.api === 'chat' || (engine.type === 'openai' && pool === 'inference'),
    {
      error: 'api: responses requires an engine of type openai in the pool inference',
      path: ['engine', 'api'],
    },
  )
  .refine(
    ({ pool, task, engine }) => !isSalted(engine) || (engine.type === 'openai' && pool === 'inference' && !task),
    {
      error: 'cache_salt_env requires an engine of type openai in the pool inference, without a task',
      path: ['engine', 'cache_salt_env'],
    },
  )
  .refine(({ task, engine, fallbacks }) => !task || (engine.type === 'openai' && fallbacks.length === 0), {
    error: 'task requires an engine of type openai, without fallbacks',
    path: ['task'],
  })
  .refine(({ engine }) => !isUpstream(engine) || (engine.base_url === undefined) !== (engine.base_urls === undefined), {
    error: 'Expected either base_url or base_urls',
    path: ['engine', 'base_url'],
  })
export type ModelConfig = z.infer<typeof ModelConfig>

/** Returns the task of a model, or its pool if the model has no task. Undefined if the pool has no models. */
export function workOf({ pool, task }: Pick<ModelConfig, 'pool' | 'task'>): ModelWork | undefined {
  return task ?? (hasModels(pool) ? pool : undefined)
}

/** Maximum models per file. A reload compares all models in one step, which blocks the event loop for some milliseconds at this maximum. */
const MODELS_MAX = 2_000

export const ModelsFile = z.strictObject({
  models: z.array(ModelConfig).min(1).max(MODELS_MAX),
  code: z
    .strictObject({ price: Price.prefault({}) })
    .prefault({})
    .describe('Code execution, which needs no model'),
})
export type ModelsFile = z.infer<typeof ModelsFile>

/** A model in the OpenAI format of `/v1/models` (docs/reference/compatibility.md, Model lists), with features and limits. */
export interface Model {
  id: string
  object: 'model'
  created: number
  owned_by: string
  permission: []
  root: string
  parent: string
  alias_of?: string
  status?: 'failing'
  capabilities: string[]
  context_length?: number
  max_output_tokens?: number
  price?: Price
}

/** Query of `GET /v1/models` in the Anthropic format. */
export const ListModels = z.object({
  limit: z.coerce
    .number()
    .int()
    .min(1)
    .max(1_000)
    .default(20)
    .describe('Maximum models per page (Anthropic format only)'),
  after_id: z.string().max(1_000).optional().describe('Cursor: the page starts after this model'),
  before_id: z.string().max(1_000).optional().describe('Cursor: the page ends before this model'),
})
export type ListModels = z.infer<typeof ListModels>

export interface Support {
  supported: boolean
}

/** A model in the Anthropic format of `/v1/models`. The SDK of Anthropic calls this type `ModelInfo`. */
export interface ModelInfo {
  id: string
  type: 'model'
  display_name: string
  created_at: string
  lifecycle: 'active'
  line: null
  deprecated_at: null
  retires_at: null
  max_input_tokens: number | null
  max_tokens: number | null
  capabilities: {
    batch: Support
    citations: Support
    code_execution: Support
    context_management: Support & {
      clear_thinking_20251015: null
      clear_tool_uses_20250919: null
      compact_20260112: null
    }
    effort: Support & Record<'low' | 'medium' | 'high' | 'xhigh' | 'max', Support>
    image_input: Support
    pdf_input: Support
    server_tools: Support & { code_execution: Support; web_search: Support }
    structured_outputs: Support
    thinking: Support & { types: Record<'adaptive' | 'between_tools' | 'disabled' | 'enabled', Support> }
  }
}
