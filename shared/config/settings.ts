import { availableParallelism } from 'node:os'
import { getHeapStatistics } from 'node:v8'
import { z } from 'zod'
import { PoolName } from '#schemas/job.ts'
import { RUN_SECONDS_MAX } from '#schemas/kinds/code.ts'
import { TRACES } from './traces.ts'

const HOUR_MS = 3_600_000
/** Minimum of BODY_BUDGET_BYTES, which is enough for two bodies of 32 MiB (the default maximum). A body takes three times its size in memory. */
const BODY_BUDGET_BYTES_MIN = 192 * 1024 * 1024
const Switch = z.stringbool()
const Milliseconds = whole(1, 24 * HOUR_MS)
const Duration = whole(1_000, 7 * 24 * HOUR_MS)
const Count = whole(0)
/*
 * Every setting, by its environment variable. `npm run docs` generates docs/reference/settings.md and .env.example from this table. `unset` states
 * the effect if an optional setting is not set. The last word of a name is its unit, such as `_MS`.
 */

const SERVER = {
  HOST: z.string().default('127.0.0.1').describe('Address of the API. 0.0.0.0 listens on all interfaces'),
  PORT: whole(0, 65_535).default(8080).describe('Port of the API. 0 selects a free port'),
  REUSE_PORT: Switch.default(false).describe(
    'Share PORT between ingress processes of one machine (SO_REUSEPORT). Each of these processes needs this setting',
  ),
  CORS_ORIGINS: z
    .string()
    .regex(
      /^ *(\*|[a-z][a-z0-9+.-]*:\/\/[^\s/,?#@*]+( *, *[a-z][a-z0-9+.-]*:\/\/[^\s/,?#@*]+)*) *$/i,
      'must be * or a comma-separated list of origins without a path, such as https://app.example.com',
    )
    .optional()
    .meta({
      description:
        'Origins whose web pages may call the API, such as https://app.example.com, comma-separated; * for all',
      unset: 'none',
    }),
  METRICS_PORT: whole(0, 65_535).optional().meta({
    description:
      'Port of /healthz, /readyz and /metrics. If set, an ingress serves /metrics only at this port. 0 selects a free port. Each process of a machine needs its own port',
    unset: 'PORT in an ingress; none in other processes',
  }),
  METRICS_HOST: z.string().min(1).optional().meta({
    description: 'Address at which METRICS_PORT listens. Metrics reveal the names of models and projects',
    unset: 'all interfaces',
  }),
  DATA_DIR: z.string().default('.data').describe('Folder of the embedded store, keys, blobs and prepared models'),
  SLUICE_API_KEY: z
    .string()
    .min(8)
    .regex(
      /^[!-~]*$/,
      'must consist of visible ASCII characters without spaces, because callers send the key in a header',
    )
    .optional()
    .meta({
      description:
        'API key that is valid from the first start, before keys are created; at least 8 visible ASCII characters',
      unset: 'a random key, printed at the first start',
    }),
  FIRST_KEY_ADMIN: Switch.optional().meta({
    description:
      'Whether the first key has the admin scope, so that it may manage projects, keys and workers. The first key is SLUICE_API_KEY, or the key that the first start creates',
    unset: '`true` in a single process without Kafka and Postgres, otherwise `false`',
  }),
  SLUICE_URL: z
    .url()
    .optional()
    .meta({ description: 'Base URL of the service that the command line calls', unset: 'this machine, at PORT' }),
  LOG_LEVEL: z
    .enum(['trace', 'debug', 'info', 'warn', 'error', 'fatal', 'silent'])
    .default('info')
    .describe('Minimum level of log messages: trace, debug, info, warn, error, fatal or silent'),
  LOG_FORMAT: z
    .enum(['auto', 'json', 'pretty'])
    .default('auto')
    .describe('Format of log lines: json, pretty (readable text), or auto: pretty on a terminal, otherwise json'),
}

const MODELS = {
  MODELS_FILE: z.string().default('models.yaml').describe('File with the model catalogue'),
  MODELS: z
    .string()
    .regex(/^[^,]*[^,\s][^,]*(,[^,]*[^,\s][^,]*)*$/, 'must be a comma-separated list of model names')
    .optional()
    .meta({
      description: 'Models that the workers of this process run, comma-separated',
      unset: 'all of the catalogue',
    }),
  MODELS_DIR: z.string().optional().meta({ description: 'Folder of your own model files', unset: 'DATA_DIR/models' }),
  EXTENSIONS: z
    .string()
    .regex(/^[^,]*[^,\s][^,]*(,[^,]*[^,\s][^,]*)*$/, 'must be a comma-separated list of files')
    .optional()
    .meta({
      description:
        'Modules with further kinds of jobs, comma-separated. Each module runs with all rights of the process',
      unset: 'none',
    }),
}

const BROKER_AND_STORE = {
  KAFKA_BROKERS: z
    .string()
    .regex(/^ *[^ ,:]+:\d+ *(, *[^ ,:]+:\d+ *)*$/, 'must be a comma-separated list of host:port')
    .optional()
    .meta({
      description: 'Kafka brokers as host:port, comma-separated. Required if roles run in several processes',
      unset: 'an in-process queue',
    }),
  KAFKA_CLIENT: z
    .enum(['auto', 'share', 'classic'])
    .default('auto')
    .describe(
      'How workers read queues. share: share groups, Kafka 4.2 or newer; classic: consumer groups; auto: share groups if the broker has them',
    ),
  KAFKA_PREFIX: z
    .string()
    .regex(/^[a-zA-Z0-9._-]*$/)
    .default('')
    .describe('Prefix of all topic and group names'),
  KAFKA_QUEUE_PARTITIONS: whole(1, 1_000)
    .default(16)
    .describe('Partitions of each queue with classic groups: the maximum number of workers that share a queue'),
  KAFKA_REPLICATION: whole(1)
    .optional()
    .meta({ description: 'Replicas of the topics that Sluice creates', unset: '3, or the number of brokers if lower' }),
  KAFKA_TLS: Switch.default(false).describe(
    'Connect to Kafka with TLS. TLS is always on if KAFKA_SSL_CA or KAFKA_SSL_CERT is set',
  ),
  KAFKA_SSL_CA: z.string().optional().meta({
    description: 'File with the certificates of a private certificate authority, in PEM form',
    unset: 'the certificate authorities of Node',
  }),
  KAFKA_SSL_CERT: z.string().optional().meta({
    description: 'File with the client certificate and its chain, in PEM form, for brokers with ssl.client.auth',
    unset: 'no client certificate',
  }),
  KAFKA_SSL_KEY: z
    .string()
    .optional()
    .meta({ description: 'File with the private key of KAFKA_SSL_CERT', unset: 'none' }),
  KAFKA_SSL_KEY_PASSWORD: z
    .string()
    .optional()
    .meta({ description: 'Password of an encrypted KAFKA_SSL_KEY', unset: 'none' }),
  KAFKA_SASL_MECHANISM: z.enum(['PLAIN', 'SCRAM-SHA-256', 'SCRAM-SHA-512', 'OAUTHBEARER']).optional().meta({
    description: 'Mechanism of SASL: PLAIN, SCRAM-SHA-256, SCRAM-SHA-512 or OAUTHBEARER (client credentials grant)',
    unset: 'no authentication',
  }),
  KAFKA_USERNAME: z
    .string()
    .optional()
    .meta({ description: 'User name for SASL; client id for OAUTHBEARER', unset: 'none' }),
  KAFKA_PASSWORD: z
    .string()
    .optional()
    .meta({ description: 'Password for SASL; client secret for OAUTHBEARER', unset: 'none' }),
  KAFKA_SASL_OAUTHBEARER_TOKEN_ENDPOINT_URL: z
    .url({ protocol: /^https?$/ })
    .optional()
    .meta({ description: 'Token endpoint for OAUTHBEARER', unset: 'none' }),
  KAFKA_SASL_OAUTHBEARER_SCOPE: z
    .string()
    .optional()
    .meta({ description: 'Scope that OAUTHBEARER requests', unset: 'the default of the token endpoint' }),
  DATABASE_URL: z
    .string()
    .regex(/^postgres(ql)?:\/\//, 'must start with postgres://')
    .optional()
    .meta({
      description:
        'URL of a Postgres 13 or newer for durable jobs and API keys: postgres://user:password@host:5432/database. May point to PgBouncer',
      unset: 'SQLite in DATA_DIR if one process runs all roles, otherwise no durable jobs',
    }),
  DATABASE_CONNECTIONS: whole(1, 1_000).default(10).describe('Maximum connections of one process to Postgres'),
  BLOB_DIR: z.string().optional().meta({
    description: 'Folder of bodies over 64 KiB and of files. Without BLOB_URL, all processes need the same folder',
    unset: 'DATA_DIR/blobs',
  }),
  BLOB_URL: z
    .string()
    .regex(
      /^s3:\/\/[a-z0-9][a-z0-9.-]{1,61}[a-z0-9](\/[A-Za-z0-9._/-]*)?$/,
      'must be s3://bucket or s3://bucket/prefix',
    )
    .optional()
    .meta({
      description: 'URL of an S3 bucket for bodies over 64 KiB and files: s3://bucket/prefix. Replaces BLOB_DIR',
      unset: 'BLOB_DIR',
    }),
  BLOB_S3_ENDPOINT: z
    .url({ protocol: /^https?$/ })
    .optional()
    .meta({ description: 'URL of an S3 server that is not AWS, such as MinIO, Ceph or R2', unset: 'AWS' }),
  BLOB_S3_REGION: z
    .string()
    .optional()
    .meta({ description: 'Region of the bucket', unset: 'AWS_REGION, or us-east-1 with BLOB_S3_ENDPOINT' }),
  BLOB_S3_SSE: z.enum(['AES256', 'aws:kms']).optional().meta({
    description: 'Server-side encryption of new objects: AES256 or aws:kms',
    unset: 'the default of the bucket',
  }),
  BLOB_S3_KMS_KEY: z
    .string()
    .optional()
    .meta({ description: 'Key id for BLOB_S3_SSE=aws:kms', unset: 'the default key' }),
}

/** Settings of the pools that have no special settings in {@link WORKERS}. */
const SLOTS = Object.fromEntries(
  PoolName.options.map((pool) => [
    `${pool.toUpperCase()}_SLOTS`,
    whole(1, 1_000).default(16).describe(`Maximum concurrent jobs of one ${pool} worker`),
  ]),
) as Record<`${Uppercase<PoolName>}_SLOTS`, z.ZodDefault<z.ZodCoercedNumber>>

const WORKERS = {
  ...SLOTS,
  INFERENCE_SLOTS: whole(1, 10_000).default(256).describe('Maximum concurrent jobs of one inference worker'),
  EMBEDDINGS_SLOTS: whole(1, 10_000)
    .default(256)
    .describe(
      'Maximum concurrent jobs of one embeddings worker. More concurrent jobs make larger batches of texts possible',
    ),
  TRANSCRIPTION_SLOTS: whole(1, 1_000).default(2).describe('Maximum concurrent jobs of one transcription worker'),
  RESEARCH_SLOTS: whole(1, 1_000)
    .default(16)
    .describe('Maximum concurrent jobs of one research worker. Jobs that wait for child jobs do not count'),
  BATCHES_SLOTS: whole(1, 1_000)
    .default(8)
    .describe(
      'Maximum concurrent batches, and parts of batches, of one ingress. Batches that wait for their requests do not count',
    ),
  CODE_SLOTS: whole(1, 1_000)
    .default(() => 2 * availableParallelism())
    .meta({ description: 'Maximum concurrent code runs of one code worker', unset: 'twice the number of cores' }),
  CODE_SECONDS_MAX: whole(1, RUN_SECONDS_MAX)
    .default(RUN_SECONDS_MAX)
    .describe('Maximum timeout of a code run, in seconds'),
  CODE_RUNS_PER_USER: Count.default(0).describe(
    'Maximum code runs per minute of one end user (x-service-userid) of a key. 0: no limit',
  ),
  SANDBOX: z
    .enum(['auto', 'docker', 'zygote', 'wasm', 'off'])
    .default('auto')
    .describe('Sandbox of code runs: docker, zygote or wasm; auto: the first of them that works; off: none'),
  SANDBOX_RUNTIME: z
    .string()
    .optional()
    .meta({ description: 'Docker runtime of the sandbox, such as runsc', unset: "Docker's default" }),
  SANDBOX_IMAGE: z
    .string()
    .optional()
    .meta({ description: 'Docker image of the sandbox', unset: 'an image that the service builds' }),
  AUDIO_BYTES_MAX: Count.default(25 * 1024 * 1024).describe('Maximum bytes of an audio file'),
  AUDIO_SECONDS_MAX: whole(1)
    .default(4 * 3_600)
    .describe('Maximum seconds of decoded audio'),
  AUDIO_SECONDS_PER_KEY: Count.default(3_600).describe(
    'Maximum seconds of audio that one key has in progress per worker. A single longer file is still accepted. 0: no limit',
  ),
  WORKER_SUSPECTED_MS: Milliseconds.min(2_000)
    .default(2_000)
    .describe(
      'Time without a heartbeat after which a worker is suspected, so that its recent calls without output are run again on another worker. At least 2000',
    ),
  WORKER_LOST_MS: Milliseconds.default(5_000).describe(
    'Time without a heartbeat after which a worker counts as dead. All its calls without output are then run again, and its streams end with an error',
  ),
  DRAIN_MS: Milliseconds.default(30_000).describe(
    'Maximum time for running work to finish after SIGTERM. In an ingress, this time begins after DRAIN_NOTICE_MS',
  ),
  DRAIN_NOTICE_MS: whole(0, 600_000).optional().meta({
    description:
      'Time after SIGTERM in which an ingress still accepts calls, but /readyz fails, so that load balancers stop sending it calls. Must exceed the check interval of the load balancer × the failed checks after which it removes an ingress',
    unset: '5000 with KAFKA_BROKERS, otherwise 0',
  }),
}

const DURABLE_JOBS = {
  JOB_DEADLINE_MS: Duration.default(3_600_000).describe(
    'Maximum time from the submission or run_at of a durable job to its end, if the job has no deadline of its own',
  ),
  JOB_DEADLINE_MAX_MS: Duration.default(24 * HOUR_MS).describe(
    'Maximum time from the submission or run_at of a durable job to the deadline that its caller sets',
  ),
  JOB_RETENTION_MS: Duration.default(24 * HOUR_MS).describe(
    'Time for which an ended job is stored, with its result and events',
  ),
  REQUEST_LOG_MS: whole(0, 90 * 24 * HOUR_MS)
    .default(7 * 24 * HOUR_MS)
    .describe('Time for which the request log stores the row of a call. 0 turns the log off'),
  REQUEST_LOG_ROWS_MAX: Count.default(1_000_000).describe(
    'Approximate maximum rows of the request log. Above the maximum, the oldest rows are deleted. 0 turns the log off',
  ),
  REQUEST_BODIES_MS: whole(0, 90 * 24 * HOUR_MS)
    .default(0)
    .describe('Time for which the request log stores the bodies of calls. 0: bodies are not recorded'),
  REQUEST_BODY_BYTES_MAX: whole(256, 1024 * 1024)
    .default(65_536)
    .describe('Maximum bytes of a recorded body. The rest is truncated'),
  REQUEST_BODIES_MAX: Count.default(100_000).describe(
    'Approximate maximum calls with recorded bodies. Above the maximum, the oldest bodies are deleted',
  ),
  JOB_LEASE_MS: Milliseconds.default(9_000).describe(
    'Time without a lease renewal in the store after which a worker loses its durable jobs',
  ),
  DURABLE_JOBS_MAX: Count.default(100_000).describe(
    'Maximum queued and running durable jobs. Further jobs are rejected with 503',
  ),
  DURABLE_JOBS_MAX_PER_PROJECT: Count.optional().meta({
    description: 'Maximum queued and running durable jobs of one project. Further jobs are rejected with 429',
    unset: 'half of DURABLE_JOBS_MAX if only one project has jobs, a third each for two projects, and so on',
  }),
  SCHEDULED_JOBS_MAX: Count.default(100_000).describe(
    'Maximum durable jobs that wait for their run_at or next attempt',
  ),
  SCHEDULED_JOBS_MAX_PER_PROJECT: Count.optional().meta({
    description: 'Maximum durable jobs of one project that wait for their run_at or next attempt',
    unset: 'half of SCHEDULED_JOBS_MAX if only one project has such jobs, a third each for two projects, and so on',
  }),
  WEBHOOK_SECRET: z
    .string()
    .regex(/^whsec_[A-Za-z0-9+/]{32,88}={0,2}$/, 'must be whsec_ and the base64 of 24 to 64 bytes')
    .optional()
    .meta({
      description:
        'Additional signing secret for the webhooks of all projects: whsec_ and the base64 of 24 to 64 bytes',
      unset: "only each project's own secrets",
    }),
  BUDGET_WEBHOOK_URL: z
    .url({ protocol: /^https?$/, error: 'must be an http or https URL' })
    .max(2_000)
    .optional()
    .meta({
      description: 'URL that receives a signed webhook when 80 % and 100 % of a monthly budget are spent',
      unset: 'no alerts',
    }),
  WEBHOOK_ALLOW_PRIVATE: Switch.default(false).describe(
    'Allow webhooks to http URLs and private addresses. For development only',
  ),
}

const CALLS = {
  REQUEST_TIMEOUT_MS: Milliseconds.default(600_000).describe('Maximum time of a call, from its acceptance to its end'),
  START_TIMEOUT_MS: Milliseconds.default(300_000).describe(
    'Maximum estimated queue time. A call with a longer estimate gets 503 at once',
  ),
  JOBS_MAX: Count.default(10_000).describe('Maximum calls in flight in one ingress'),
  BODY_BYTES_MAX: Count.default(32 * 1024 * 1024).describe('Maximum bytes of a JSON body, after decompression'),
  BODY_BUDGET_BYTES: whole(1)
    .default(() => Math.max(BODY_BUDGET_BYTES_MIN, Math.floor(getHeapStatistics().heap_size_limit / 4)))
    .meta({
      description:
        'Maximum memory for request bodies and WebSocket messages; one key gets at most half. A body takes about three times its size until it is stored. Further requests are rejected with 503',
      unset: 'a quarter of the heap limit, at least 192 MiB',
    }),
  BODY_STALL_MS: Milliseconds.default(20_000).describe(
    'Maximum time without received bytes of an upload. After this time, the upload fails',
  ),
  SLOW_READER_MS: Milliseconds.default(30_000).describe(
    'Maximum time in which a client reads nothing of a stream. After this time, the connection is closed',
  ),
  STRICT_TURNS: Switch.default(true).describe(
    'Whether the Messages API rejects consecutive messages of one role, and system messages in the conversation. If false, both are sent to the upstream in order. For models whose upstream has the Messages API, Sluice rejects neither, because the upstream checks both. If false, such an upstream gets system messages as user messages',
  ),
  REMOTE_IMAGES: Switch.default(false).describe(
    'Pass https URLs of images and files to upstreams, which fetch them. Only public addresses are accepted',
  ),
  CONTENT_FILTER: z
    .enum(['profanity', 'off'])
    .default('profanity')
    .describe('Source of content_filter_results if the upstream sends none: profanity (an English word list) or off'),
}

const STORAGE = {
  FILE_BYTES_MAX: Count.default(200 * 1024 * 1024).describe('Maximum bytes of an uploaded file'),
  FILES_BYTES_MAX_PER_PROJECT: Count.default(10 * 1024 * 1024 * 1024).describe(
    'Maximum stored bytes of one project: files, jobs, responses and conversations',
  ),
  FILE_RETENTION_MS: whole(3_600_000, 90 * 24 * HOUR_MS)
    .default(30 * 24 * HOUR_MS)
    .describe('Time for which a file without an expiry of its own is stored'),
  DISK_FREE_BYTES_MIN: Count.optional().meta({
    description: 'Minimum free bytes of the disk. If less is free, then no new data is stored',
    unset: '5 % of the disk, at most 1 GiB',
  }),
}

const LIMITS_PER_KEY = {
  RATE_LIMIT_REQUESTS: Count.default(0).describe(
    'Maximum calls per minute of a key without a limit of its own. Reads, polls and cancels do not count. 0: no limit',
  ),
  RATE_LIMIT_TOKENS: Count.default(0).describe(
    'Maximum tokens per minute of a key without a limit of its own. 0: no limit',
  ),
  CONCURRENCY_MAX_PER_KEY: Count.default(0).describe(
    'Maximum concurrent calls of a key without a limit of its own. 0: no limit',
  ),
  FOLLOWS_MAX_PER_KEY: Count.default(1_000).describe(
    'Maximum open requests of a key in one ingress that wait for a job (?wait=) or stream its events. 0: no limit',
  ),
}

const RESEARCH = {
  RESEARCH_CORPUS: z.string().optional().meta({
    description: 'Folder of Markdown, HTML, PDF, Word and text files that research searches',
    unset: 'the documentation of Sluice, if no search backend is set',
  }),
  RESEARCH_ALLOW_PRIVATE: Switch.default(false).describe(
    'Allow research to read http URLs and private addresses. For development only',
  ),
  SEARXNG_URL: z
    .url({ protocol: /^https?$/ })
    .optional()
    .meta({ description: 'URL of a SearXNG server, whose setting search.formats must list json', unset: 'not used' }),
  BRAVE_API_KEY: z.string().optional().meta({ description: 'API key of Brave Search', unset: 'not used' }),
  TAVILY_API_KEY: z
    .string()
    .optional()
    .meta({ description: 'API key of the search service Tavily', unset: 'not used' }),
  EXA_API_KEY: z.string().optional().meta({ description: 'API key of the search service Exa', unset: 'not used' }),
  SERPER_API_KEY: z
    .string()
    .optional()
    .meta({ description: 'API key of the search service Serper', unset: 'not used' }),
  MCP_SEARCH_URL: z
    .url({ protocol: /^https?$/ })
    .optional()
    .meta({ description: 'URL of an MCP server (streamable HTTP) with a search tool', unset: 'not used' }),
  MCP_SEARCH_TOKEN: z
    .string()
    .regex(/^[!-~]*$/, 'must consist of visible ASCII characters without spaces, because the token is sent in a header')
    .optional()
    .meta({ description: 'Bearer token of the MCP server', unset: 'none' }),
  MCP_SEARCH_TOOL: z.string().max(128).default('search').describe('Name of the search tool of the MCP server'),
}

export const SECTIONS = {
  Server: SERVER,
  Models: MODELS,
  'Kafka, Postgres and blobs': BROKER_AND_STORE,
  Workers: WORKERS,
  'Durable jobs and webhooks': DURABLE_JOBS,
  Calls: CALLS,
  Storage: STORAGE,
  'Limits per key': LIMITS_PER_KEY,
  Research: RESEARCH,
  Traces: TRACES,
} as const

export const Settings = z.object({
  ...SERVER,
  ...MODELS,
  ...BROKER_AND_STORE,
  ...WORKERS,
  ...DURABLE_JOBS,
  ...CALLS,
  ...STORAGE,
  ...LIMITS_PER_KEY,
  ...RESEARCH,
  ...TRACES,
})
export type Settings = z.infer<typeof Settings>

/** Former names of settings, each with its current name. If a former name is set, then the process refuses to start and states the current name. */
export const RENAMED_SETTINGS: Readonly<Record<string, keyof Settings>> = {
  RUNNING_MAX_PER_KEY: 'CONCURRENCY_MAX_PER_KEY',
  WORKER_SILENT_MS: 'WORKER_SUSPECTED_MS',
}

export const SECRETS: ReadonlySet<string> = new Set([
  'SLUICE_API_KEY',
  'KAFKA_USERNAME',
  'KAFKA_PASSWORD',
  'KAFKA_SSL_KEY_PASSWORD',
  'DATABASE_URL',
  'WEBHOOK_SECRET',
  'BUDGET_WEBHOOK_URL',
  'BRAVE_API_KEY',
  'TAVILY_API_KEY',
  'EXA_API_KEY',
  'SERPER_API_KEY',
  'MCP_SEARCH_TOKEN',
  'OTEL_EXPORTER_OTLP_HEADERS',
  'OTEL_EXPORTER_OTLP_TRACES_HEADERS',
])

function whole(min: number, max?: number) {
  const number = z.coerce.number().int().min(min)
  return max === undefined ? number : number.max(max)
}
