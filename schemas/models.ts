import { z } from 'zod'
import { hasModels, type ModelPool, PoolName } from './job.ts'
import { Price } from './price.ts'

const Timeouts = z.strictObject({
  connect_ms: z.int().min(1).default(5_000).describe('Until the socket is open'),
  first_token_ms: z.int().min(1).default(120_000).describe('From the request until the first byte of the answer'),
  between_tokens_ms: z.int().min(1).default(30_000).describe('Longest silence inside a stream'),
  total_ms: z.int().min(1).default(600_000).describe('The whole call'),
})
export type Timeouts = z.infer<typeof Timeouts>

/** A server behind HTTP. Its query follows the path of each call, such as `?api-version=2024-10-21`. */
const BaseUrl = z.url().refine((url) => !URL.canParse(url) || isBase(new URL(url)), {
  error: 'Expected http or https without user, password and fragment; a key belongs into api_key_env or headers',
})

function isBase({ protocol, username, password, hash }: URL): boolean {
  return /^https?:$/.test(protocol) && username + password + hash === ''
}

/** Headers that belong to one connection, or that hold the key of the caller. */
const OWN_HEADERS: ReadonlySet<string> = new Set([
  ...['authorization', 'x-api-key', 'api-key', 'cookie', 'proxy-authorization', 'host', 'connection', 'upgrade'],
  ...['content-length', 'content-type', 'content-encoding', 'transfer-encoding', 'accept', 'accept-encoding', 'te'],
  ...['keep-alive', 'expect', 'idempotency-key', 'trailer'],
])
const HeaderName = z
  .string()
  .regex(/^[a-z0-9][a-z0-9_-]{0,63}$/, 'Expected the name of a header in lower case')
  .refine((name) => !OWN_HEADERS.has(name), 'This header is never passed on')

/** What runs a model: an upstream server by its dialect, or an engine inside the worker. */
export const EngineConfig = z.discriminatedUnion('type', [
  z.strictObject({
    type: z.enum(['openai', 'anthropic']).describe('The dialect the upstream speaks'),
    base_url: BaseUrl.optional().describe(
      'openai: with /v1, such as http://127.0.0.1:8000/v1. anthropic: without, such as https://host; or base_urls',
    ),
    api_key_env: z
      .string()
      .regex(/^[A-Za-z_][A-Za-z0-9_]*$/, 'Expected the name of an environment variable, such as VLLM_API_KEY')
      .optional()
      .describe('Name of the environment variable that holds the key'),
    model: z.string().optional().describe("The model's name at the upstream; default: the id"),
    base_urls: z
      .array(z.union([BaseUrl, z.strictObject({ url: BaseUrl, weight: z.number().min(0.01).max(100).default(1) })]))
      .min(1)
      .max(64)
      .optional()
      .describe('Several servers of this model in place of base_url: URLs, or { url, weight } for unequal parts'),
    headers: z.record(z.string(), z.string()).default({}).describe('Sent with every request'),
    timeouts: Timeouts.prefault({}),
    concurrency: z.int().min(1).optional().describe('Most requests at once from all workers to each server'),
    breaker: z
      .strictObject({
        failures: z.int().min(1).default(5).describe('Consecutive failures that open the circuit'),
        reset_ms: z.int().min(1).default(10_000).describe('How long it stays open before one trial call'),
      })
      .prefault({}),
    api: z
      .enum(['chat', 'responses'])
      .default('chat')
      .describe('openai: by which of its APIs text is made, POST /chat/completions or POST /responses'),
    force_usage: z
      .boolean()
      .default(true)
      .describe('Ask for stream_options.include_usage; false for servers that refuse it'),
    completions: z
      .boolean()
      .optional()
      .describe(
        'openai: it has POST /completions, which goes on from a raw prompt. Else a prompt is sent as a turn of the user. ' +
          "Default: true but for OpenAI's own servers",
      ),
  }),
  z.strictObject({
    type: z.literal('llama').describe('GGUF file in the worker, through node-llama-cpp'),
    file: z.string().optional().describe('A GGUF in MODELS_DIR or an absolute path'),
    weights: z.string().optional().describe('Name of a known set of weights that is prepared on the first start'),
    system: z.string().min(1).optional().describe('System turn of conversations without one. Default: as the template'),
    chat_template: z
      .string()
      .optional()
      .describe('File with a Jinja template in place of that in the GGUF, in MODELS_DIR or an absolute path'),
    context_tokens: z.int().min(256).default(2048),
    parallel: z.int().min(1).default(2).describe('Sequences generated at once'),
    preload: z.boolean().default(false).describe('Load it into memory when the worker starts, not with the first call'),
  }),
  z.strictObject({
    type: z.literal('local').describe('The local model server, which is started on first use (docs/models.md)'),
    model: z.enum(['all-minilm-l6-v2', 'whisper-tiny.en']),
    concurrency: z.int().min(1).default(2).describe('Most requests at once from one worker'),
  }),
  z.strictObject({
    type: z.literal('research').describe('The research loop (docs/deep-research.md)'),
    writer: z
      .string()
      .optional()
      .describe('Id of the model that plans and writes, as child jobs; absent: reports are sentences of the sources'),
    embeddings: z
      .string()
      .optional()
      .describe('Id of the model by whose vectors passages are ranked too, as a child job; absent: by words alone'),
  }),
  z.strictObject({ type: z.literal('echo').describe('Deterministic, for tests and load') }),
])
export type EngineConfig = z.infer<typeof EngineConfig>
/** Of a model that runs behind HTTP. */
export type UpstreamConfig = Extract<EngineConfig, { type: 'openai' | 'anthropic' }>

function isUpstream(engine: EngineConfig): engine is UpstreamConfig {
  return engine.type === 'openai' || engine.type === 'anthropic'
}

/** The engines of each pool: by their type, the local ones by their model. */
const RUNS: Readonly<Record<ModelPool, readonly string[]>> = {
  inference: ['openai', 'anthropic', 'llama', 'echo'],
  embeddings: ['openai', 'all-minilm-l6-v2'],
  transcription: ['openai', 'whisper-tiny.en'],
  research: ['research'],
}

/** What models do in the place of what their pool does, and which pool that is. */
const TASKS = { moderation: 'inference', speech: 'inference', rerank: 'embeddings' } as const satisfies Record<
  string,
  ModelPool
>
export const ModelTask = z.enum(Object.keys(TASKS) as [keyof typeof TASKS])
export type ModelTask = z.infer<typeof ModelTask>

/** What a model may be asked for: the work of its pool, or a task in the place of it. */
export type ModelWork = ModelPool | ModelTask

/** One model of the catalogue. */
export const ModelConfig = z
  .strictObject({
    id: z.string().min(1),
    pool: PoolName.default('inference').describe('What it does: generate text, embed, transcribe, or research'),
    task: ModelTask.optional().describe('What its server does in the place of what its pool does, by that endpoint'),
    engine: EngineConfig,
    owned_by: z.string().default('sluice'),
    created: z
      .int()
      .min(0)
      .max(253_402_300_799)
      .default(1_780_000_000)
      .describe('Unix seconds, as /v1/models shows it; at most the year 9999, which RFC 3339 ends with'),
    description: z.string().optional(),
    aliases: z.array(z.string()).default([]).describe('Other ids that mean this model'),
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
        context_tokens: z.int().min(1).optional(),
        max_output_tokens: z.int().min(1).optional().describe('max_tokens above this is clamped'),
        default_output_tokens: z.int().min(1).optional().describe('max_tokens when the caller names none'),
        choices: z.int().min(1).default(8).describe('Most choices (n) in one call'),
      })
      .prefault({}),
    embeddings: z
      .strictObject({
        dimensions: z.int().min(1).optional().describe("Length of the model's vectors; needed to shorten them"),
        can_shorten: z.boolean().default(false).describe('Its vectors keep their meaning when cut (Matryoshka)'),
        token_encoding: z
          .enum(['cl100k_base', 'o200k_base'])
          .default('cl100k_base')
          .describe('Of inputs given as tokens'),
        batch_inputs_max: z.int().min(1).max(2_048).default(128).describe('Inputs of one upstream call'),
        batch_tokens_max: z.int().min(1).default(32_768).describe('Tokens of one upstream call, about'),
        batch_wait_ms: z.number().min(0).max(100).default(2).describe('Longest wait of an input for others'),
      })
      .prefault({})
      .describe('Pool embeddings'),
    transcription: z
      .strictObject({
        languages: z.array(z.string()).optional().describe('ISO-639-1 codes it knows; absent: all'),
        segments: z.boolean().default(true).describe('It answers in verbose_json; false for servers that refuse it'),
        words: z.boolean().default(true).describe('It tells when each word was said'),
        stream: z.boolean().default(false).describe('Its server can stream text as it becomes known'),
        translates: z
          .boolean()
          .default(false)
          .describe('It writes what is said in English too: its server has POST /audio/translations'),
        diarize: z.boolean().default(true).describe('Speakers are told apart, by the local model server'),
      })
      .prefault({})
      .describe('Pool transcription'),
    price: Price.prefault({}),
    pass: z
      .union([z.enum(['all', 'known']), z.array(z.string().min(1).max(200)).max(100)])
      .default('all')
      .describe(
        'Unknown fields of requests that an upstream of the same API gets. all: every field but those that address the engine ' +
          'itself, such as priority and cache_salt. known: those of the public API. A list: known, and the fields it names; ' +
          'it may name all',
      ),
    forward_headers: z
      .array(HeaderName)
      .max(32)
      .default([])
      .describe('Further headers of callers that the upstream gets, next to trace context and session headers'),
    project_header: HeaderName.optional().describe(
      'Header in which the upstream gets the id of the project, such as x-tenant-id of a router',
    ),
    fallbacks: z
      .array(z.string())
      .default([])
      .describe('Models tried in this order when this one fails before any output'),
  })
  .refine(
    ({ pool, engine }) => hasModels(pool) && RUNS[pool].includes(engine.type === 'local' ? engine.model : engine.type),
    {
      error: 'This engine does not run models of this pool',
      path: ['engine', 'type'],
    },
  )
  .refine(({ transcription, engine }) => !transcription.translates || engine.type === 'openai', {
    error: 'A model that translates is on an engine of type openai',
    path: ['transcription', 'translates'],
  })
  .refine(({ pool, task }) => task === undefined || TASKS[task] === pool, {
    error: `This task is done in another pool: ${Object.entries(TASKS)
      .map(([task, pool]) => `${task} in ${pool}`)
      .join(', ')}`,
    path: ['task'],
  })
  .refine(
    ({ pool, engine }) =>
      !isUpstream(engine) || engine.api === 'chat' || (engine.type === 'openai' && pool === 'inference'),
    {
      error: 'Only models of type openai that generate text are asked by the API responses',
      path: ['engine', 'api'],
    },
  )
  .refine(({ task, engine, fallbacks }) => !task || (engine.type === 'openai' && fallbacks.length === 0), {
    error: 'A model with a task of its own is on an engine of type openai, without fallbacks',
    path: ['task'],
  })
  .refine(({ engine }) => !isUpstream(engine) || (engine.base_url === undefined) !== (engine.base_urls === undefined), {
    error: 'Expected base_url, or base_urls in its place',
    path: ['engine', 'base_url'],
  })
export type ModelConfig = z.infer<typeof ModelConfig>

/** What a model does; undefined for none. */
export function workOf({ pool, task }: Pick<ModelConfig, 'pool' | 'task'>): ModelWork | undefined {
  return task ?? (hasModels(pool) ? pool : undefined)
}

/** Models of one file: as many as are compared in some milliseconds when it is read again. */
const MODELS_MAX = 2_000

/** The file models.yaml. */
export const ModelsFile = z.strictObject({
  models: z.array(ModelConfig).min(1).max(MODELS_MAX),
  code: z
    .strictObject({ price: Price.prefault({}) })
    .prefault({})
    .describe('Runs of code, which need no model'),
})
export type ModelsFile = z.infer<typeof ModelsFile>

/** A model as `/v1/models` lists it (docs/protocol.md, Model lists), and what clients may want to know before. */
export interface Model {
  id: string
  object: 'model'
  created: number
  owned_by: string
  permission: []
  root: string
  parent: string
  /** What it can do, such as `chat`, `messages`, `tools`, `images`. */
  capabilities: string[]
  context_length?: number
  max_output_tokens?: number
}

/** Query of `GET /v1/models` for callers of the messages format. */
export const ListModels = z.object({
  limit: z.coerce.number().int().min(1).max(1_000).default(20),
  after_id: z.string().max(1_000).optional().describe('Cursor: the page begins behind this model'),
  before_id: z.string().max(1_000).optional().describe('Cursor: the page ends before this model'),
})
export type ListModels = z.infer<typeof ListModels>

/** Whether a model can do something, in the messages format. */
export interface Support {
  supported: boolean
}

/** A model as `/v1/models` lists it for callers of the messages format: `ModelInfo` of its SDK. */
export interface ModelInfo {
  id: string
  type: 'model'
  display_name: string
  /** RFC 3339. */
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
