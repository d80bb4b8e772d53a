import { availableParallelism } from 'node:os'
import { getHeapStatistics } from 'node:v8'
import { z } from 'zod'
import { RUN_SECONDS_MAX } from '#schemas/code.ts'

const HOUR_MS = 3_600_000
/** Enough for two bodies of the largest size, each of which takes three times its bytes. */
const BODY_BUDGET_BYTES_MIN = 192 * 1024 * 1024
/** `true`/`false`, `1`/`0`, `yes`/`no`. */
const Switch = z.stringbool()
const Milliseconds = whole(1, 24 * HOUR_MS)
const Duration = whole(1_000, 7 * 24 * HOUR_MS)
const Count = whole(0)

/** Every setting, by environment variable. README and .env.example have the same list. */
export const Settings = z.object({
  HOST: z.string().default('127.0.0.1').describe('Address to listen on; 0.0.0.0 for all'),
  PORT: whole(0, 65_535).default(8080).describe('Port of the API; 0 takes a free one'),
  REUSE_PORT: Switch.default(false).describe(
    'Several ingress processes of this machine share PORT; the kernel spreads the connections (SO_REUSEPORT)',
  ),
  CORS_ORIGINS: z
    .string()
    .regex(
      /^ *(\*|[a-z][a-z0-9+.-]*:\/\/[^\s/,?#@*]+( *, *[a-z][a-z0-9+.-]*:\/\/[^\s/,?#@*]+)*) *$/i,
      'must be origins such as https://app.example.com, several with commas between and without a path, or * alone',
    )
    .optional()
    .describe('Origins whose pages may call from a browser, comma separated, or * for all; unset: none'),
  METRICS_PORT: whole(0, 65_535)
    .optional()
    .describe(
      'Port of /healthz, /readyz and /metrics, of which the API port then lacks the last; unset: that port alone',
    ),
  METRICS_HOST: z.string().min(1).optional().describe('Address that METRICS_PORT listens on; unset: all'),
  DATA_DIR: z.string().default('.data').describe('Keys, blobs and prepared models'),
  SLUICE_API_KEY: z
    .string()
    .min(8)
    .regex(/^[!-~]*$/, 'must be of visible ASCII characters, without spaces: callers send it in a header')
    .optional()
    .describe('The first API key, instead of a random one'),
  MODELS_FILE: z.string().default('models.yaml').describe('The model catalogue'),
  MODELS: z
    .string()
    .regex(/^[^,]*[^,\s][^,]*(,[^,]*[^,\s][^,]*)*$/, 'must be names of models, several with commas between')
    .optional()
    .describe('Models that the workers of this process run, comma separated; unset: all of the catalogue'),
  MODELS_DIR: z.string().optional().describe('Your own model files; default DATA_DIR/models'),
  KAFKA_BROKERS: z
    .string()
    .regex(/^ *[^ ,:]+:\d+ *(, *[^ ,:]+:\d+ *)*$/, 'must be host:port, several with commas between')
    .optional()
    .describe('host:port, comma separated; unset: the queue lives in the process'),
  KAFKA_CLIENT: z
    .enum(['auto', 'share', 'classic'])
    .default('auto')
    .describe('share: share groups (Kafka 4.2+), classic: kafkajs'),
  KAFKA_PREFIX: z
    .string()
    .regex(/^[a-zA-Z0-9._-]*$/)
    .default('')
    .describe('Put before every topic and group name'),
  KAFKA_QUEUE_PARTITIONS: whole(1, 1_000)
    .default(16)
    .describe('Partitions of each queue with classic groups: as many workers can share it'),
  KAFKA_REPLICATION: whole(1)
    .optional()
    .describe('Replicas of topics that are created; default: 3, or one per broker if there are fewer'),
  KAFKA_TLS: Switch.default(false),
  KAFKA_SASL_MECHANISM: z.enum(['PLAIN', 'SCRAM-SHA-256', 'SCRAM-SHA-512']).optional(),
  KAFKA_USERNAME: z.string().optional(),
  KAFKA_PASSWORD: z.string().optional(),
  BLOB_DIR: z.string().optional().describe('Bodies over 64 KiB; shared by all processes. Default DATA_DIR/blobs'),
  DATABASE_URL: z
    .string()
    .regex(/^postgres(ql)?:\/\//, 'must start with postgres://')
    .optional()
    .describe('Postgres for durable jobs; unset: SQLite in DATA_DIR when all roles run in one process'),
  DATABASE_CONNECTIONS: whole(1, 1_000).default(10).describe('Connections of one process'),
  JOB_DEADLINE_MS: Duration.default(3_600_000).describe('Deadline of a durable job that names none'),
  JOB_DEADLINE_MAX_MS: Duration.default(24 * HOUR_MS).describe('Longest deadline a durable job may name'),
  JOB_RETENTION_MS: Duration.default(24 * HOUR_MS).describe('How long a finished job is kept with its result'),
  JOB_LEASE_MS: Milliseconds.default(9_000).describe(
    'Silence in the store after which a worker loses its durable jobs',
  ),
  DURABLE_JOBS_MAX: Count.default(100_000).describe('Durable jobs that may wait and run at once'),
  DURABLE_JOBS_MAX_PER_PROJECT: Count.optional().describe(
    'Those of one project; unset: as many as are free for others',
  ),
  SCHEDULED_JOBS_MAX: Count.default(100_000).describe('Durable jobs that may wait for their run_at at once'),
  SCHEDULED_JOBS_MAX_PER_PROJECT: Count.optional().describe('Those of one project; unset: as many as are free'),
  WEBHOOK_SECRET: z
    .string()
    .regex(/^whsec_[A-Za-z0-9+/]{32,88}={0,2}$/, 'must be whsec_ and the base64 of 24 to 64 bytes')
    .optional()
    .describe('Signs the webhooks of every project, beside the secrets of each; default: those alone'),
  WEBHOOK_ALLOW_PRIVATE: Switch.default(false).describe('Webhooks may go to http and to private addresses'),
  SLUICE_URL: z
    .url()
    .optional()
    .describe('Where the command line tool finds the service; default: on this machine, at PORT'),
  INFERENCE_SLOTS: whole(1, 10_000).default(256).describe('Jobs one inference worker runs at once'),
  EMBEDDINGS_SLOTS: whole(1, 10_000)
    .default(256)
    .describe('Jobs one embeddings worker runs at once; more fill its batches'),
  TRANSCRIPTION_SLOTS: whole(1, 1_000).default(2).describe('Jobs one transcription worker runs at once'),
  CODE_SLOTS: whole(1, 1_000)
    .default(() => 2 * availableParallelism())
    .describe('Runs of code one code worker has at once; default: twice the cores'),
  CODE_SECONDS_MAX: whole(1, RUN_SECONDS_MAX)
    .default(RUN_SECONDS_MAX)
    .describe('Longest timeout a run of code may ask for'),
  CODE_RUNS_PER_USER: Count.default(0).describe('Runs of code per minute and x-service-userid of a key; 0: no limit'),
  RESEARCH_SLOTS: whole(1, 1_000).default(16).describe('Questions one research worker works on at once'),
  BATCHES_SLOTS: whole(1, 1_000)
    .default(8)
    .describe('Batches and parts of batches that one ingress works on at once; those that wait do not count'),
  SANDBOX: z
    .enum(['auto', 'docker', 'zygote', 'wasm', 'off'])
    .default('auto')
    .describe('Where code runs: docker, zygote or wasm; auto: the first of them that works here; off: nowhere'),
  SANDBOX_RUNTIME: z.string().optional().describe("Docker's runtime for the sandbox, such as runsc; default: its own"),
  SANDBOX_IMAGE: z.string().optional().describe("Docker's image for the sandbox; default: the service makes it"),
  AUDIO_BYTES_MAX: Count.default(25 * 1024 * 1024).describe('Largest audio file'),
  AUDIO_SECONDS_MAX: whole(1)
    .default(4 * 3_600)
    .describe('Longest audio, as it is decoded'),
  AUDIO_SECONDS_PER_KEY: Count.default(3_600).describe(
    'Seconds of audio one key may have in work at once in a worker; 0: no limit',
  ),
  REQUEST_TIMEOUT_MS: Milliseconds.default(600_000).describe('Deadline of a call, from its acceptance'),
  START_TIMEOUT_MS: Milliseconds.default(300_000).describe('Longest wait that may be expected of a call it accepts'),
  WORKER_SILENT_MS: Milliseconds.min(2_000)
    .default(2_000)
    .describe('Silence after which calls of a worker that have no output are run by another'),
  WORKER_LOST_MS: Milliseconds.default(5_000).describe('Silence after which a worker is taken for dead'),
  DRAIN_MS: Milliseconds.default(30_000).describe('How long work under way may take to end after SIGTERM'),
  JOBS_MAX: Count.default(10_000).describe('Calls one ingress holds at once'),
  BODY_BYTES_MAX: Count.default(32 * 1024 * 1024).describe('Largest JSON body, after decompression'),
  BODY_BUDGET_BYTES: whole(1)
    .default(() => Math.max(BODY_BUDGET_BYTES_MIN, Math.floor(getHeapStatistics().heap_size_limit / 4)))
    .describe('Memory that the bodies and messages of callers may take together; default: a quarter of the heap limit'),
  FILE_BYTES_MAX: Count.default(200 * 1024 * 1024).describe('Largest file that may be uploaded'),
  FILES_BYTES_MAX_PER_PROJECT: Count.default(10 * 1024 * 1024 * 1024).describe(
    'Bytes that one project stores: files, bodies and results of jobs, responses and conversations',
  ),
  DISK_FREE_BYTES_MIN: Count.optional().describe(
    'Free bytes of the disk below which nothing new is stored; default: 5 % of the disk, at most 1 GiB',
  ),
  FILE_RETENTION_MS: whole(3_600_000, 90 * 24 * HOUR_MS)
    .default(30 * 24 * HOUR_MS)
    .describe('How long a file is kept that names no time'),
  BODY_STALL_MS: Milliseconds.default(20_000).describe('Longest pause while a body is sent'),
  SLOW_READER_MS: Milliseconds.default(30_000).describe('Longest time a client may take nothing of a stream'),
  RATE_LIMIT_REQUESTS: Count.default(0).describe('Requests per minute and key; 0: no limit'),
  RATE_LIMIT_TOKENS: Count.default(0).describe('Tokens per minute and key; 0: no limit'),
  RUNNING_MAX_PER_KEY: Count.default(0).describe('Calls at once per key; 0: no limit'),
  FOLLOWS_MAX_PER_KEY: Count.default(1_000).describe('Waits and event streams at once per key; 0: no limit'),
  STRICT_TURNS: Switch.default(true).describe(
    'Messages API: refuse turns that do not alternate, and system turns, unless the upstream speaks this API',
  ),
  REMOTE_IMAGES: Switch.default(false).describe('Pass https image URLs on to upstreams that fetch them'),
  RESEARCH_CORPUS: z
    .string()
    .optional()
    .describe("Folder of documents that researches search; default: the project's own pages, where no backend is set"),
  RESEARCH_ALLOW_PRIVATE: Switch.default(false).describe('Researches may read pages by http and in private networks'),
  SEARXNG_URL: z
    .url({ protocol: /^https?$/ })
    .optional()
    .describe('A SearXNG whose settings allow the format json'),
  BRAVE_API_KEY: z.string().optional().describe("Searches with Brave's Search API"),
  TAVILY_API_KEY: z.string().optional().describe('Searches with Tavily'),
  EXA_API_KEY: z.string().optional().describe('Searches with Exa'),
  SERPER_API_KEY: z.string().optional().describe('Searches with Serper'),
  MCP_SEARCH_URL: z
    .url({ protocol: /^https?$/ })
    .optional()
    .describe('An MCP server (streamable HTTP) that searches'),
  MCP_SEARCH_TOKEN: z
    .string()
    .regex(/^[!-~]*$/, 'must be of visible ASCII characters, without spaces: it is sent in a header')
    .optional()
    .describe('Bearer token of that server'),
  MCP_SEARCH_TOOL: z.string().max(128).default('search').describe('The tool of that server that searches'),
  CONTENT_FILTER: z.enum(['profanity', 'off']).default('profanity').describe('What fills content_filter_results'),
  LOG_LEVEL: z.enum(['trace', 'debug', 'info', 'warn', 'error', 'fatal', 'silent']).default('info'),
})
export type Settings = z.infer<typeof Settings>

/** Settings whose values are never shown, even if invalid. */
export const SECRETS: ReadonlySet<string> = new Set([
  'SLUICE_API_KEY',
  'KAFKA_USERNAME',
  'KAFKA_PASSWORD',
  'DATABASE_URL',
  'WEBHOOK_SECRET',
  'BRAVE_API_KEY',
  'TAVILY_API_KEY',
  'EXA_API_KEY',
  'SERPER_API_KEY',
  'MCP_SEARCH_TOKEN',
])

function whole(min: number, max?: number) {
  const number = z.coerce.number().int().min(min)
  return max === undefined ? number : number.max(max)
}
