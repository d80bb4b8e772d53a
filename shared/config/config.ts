import { existsSync } from 'node:fs'
import { resolve } from 'node:path'
import type { z } from 'zod'
import { problemText } from './problem.ts'
import { SECRETS, Settings } from './settings.ts'

/** How to reach Kafka. */
export interface KafkaConfig {
  readonly brokers: string[]
  readonly client: 'auto' | 'share' | 'classic'
  readonly prefix: string
  readonly queuePartitions: number
  readonly replicationFactor: number | undefined
  readonly tls: boolean
  readonly sasl:
    | { mechanism: 'PLAIN' | 'SCRAM-SHA-256' | 'SCRAM-SHA-512'; username: string; password: string }
    | undefined
}

/** The settings of one process, checked, with their derived paths. */
export type Config = ReturnType<typeof parseConfig>

/** The settings cannot be used. `problems` are sentences for people, one a setting. */
export class ConfigError extends Error {
  readonly problems: readonly string[]
  constructor(problems: readonly string[]) {
    super(problems.join('\n'))
    this.name = 'ConfigError'
    this.problems = problems
  }
}

/**
 * Reads the environment, and `.env` in the working directory where it exists (the environment wins).
 *
 * @throws ConfigError with every problem at once
 */
export function loadConfig(): Config {
  if (existsSync('.env')) process.loadEnvFile('.env')
  return parseConfig(process.env)
}

/** {@link loadConfig} over any set of variables. An empty value counts as unset. @throws ConfigError */
export function parseConfig(env: Record<string, string | undefined>) {
  const s = settingsOf(env)
  const dataDir = resolve(s.DATA_DIR)
  return Object.freeze({
    env,
    host: s.HOST,
    port: s.PORT,
    metricsPort: s.METRICS_PORT,
    dataDir,
    apiKey: s.SLUICE_API_KEY,
    modelsFile: resolve(s.MODELS_FILE),
    weightsDir: resolve(dataDir, 'models'),
    modelsDir: s.MODELS_DIR && resolve(s.MODELS_DIR),
    blobDir: s.BLOB_DIR ? resolve(s.BLOB_DIR) : resolve(dataDir, 'blobs'),
    kafka: kafkaOf(s),
    databaseUrl: s.DATABASE_URL,
    databaseConnections: s.DATABASE_CONNECTIONS,
    jobDeadlineMs: s.JOB_DEADLINE_MS,
    jobDeadlineMaxMs: s.JOB_DEADLINE_MAX_MS,
    jobRetentionMs: s.JOB_RETENTION_MS,
    jobLeaseMs: s.JOB_LEASE_MS,
    durableJobsMax: s.DURABLE_JOBS_MAX,
    webhookSecret: s.WEBHOOK_SECRET,
    webhookAllowPrivate: s.WEBHOOK_ALLOW_PRIVATE,
    url: s.SLUICE_URL ?? urlOf(s.HOST, s.PORT),
    inferenceSlots: s.INFERENCE_SLOTS,
    embeddingsSlots: s.EMBEDDINGS_SLOTS,
    transcriptionSlots: s.TRANSCRIPTION_SLOTS,
    codeSlots: s.CODE_SLOTS,
    codeSecondsMax: s.CODE_SECONDS_MAX,
    codeRunsPerUser: s.CODE_RUNS_PER_USER,
    sandbox: s.SANDBOX,
    sandboxRuntime: s.SANDBOX_RUNTIME,
    sandboxImage: s.SANDBOX_IMAGE,
    sandboxDir: resolve(dataDir, 'sandbox'),
    audioBytesMax: s.AUDIO_BYTES_MAX,
    audioSecondsMax: s.AUDIO_SECONDS_MAX,
    audioSecondsPerKey: s.AUDIO_SECONDS_PER_KEY,
    requestTimeoutMs: s.REQUEST_TIMEOUT_MS,
    startTimeoutMs: s.START_TIMEOUT_MS,
    workerSilentMs: s.WORKER_SILENT_MS,
    workerLostMs: s.WORKER_LOST_MS,
    drainMs: s.DRAIN_MS,
    jobsMax: s.JOBS_MAX,
    bodyBytesMax: s.BODY_BYTES_MAX,
    bodyBudgetBytes: s.BODY_BUDGET_BYTES,
    bodyStallMs: s.BODY_STALL_MS,
    slowReaderMs: s.SLOW_READER_MS,
    requestsPerMinute: s.RATE_LIMIT_REQUESTS,
    tokensPerMinute: s.RATE_LIMIT_TOKENS,
    runningMaxPerKey: s.RUNNING_MAX_PER_KEY,
    followsMaxPerKey: s.FOLLOWS_MAX_PER_KEY,
    strictTurns: s.STRICT_TURNS,
    remoteImages: s.REMOTE_IMAGES,
    contentFilter: s.CONTENT_FILTER,
    logLevel: s.LOG_LEVEL,
  })
}

function settingsOf(env: Record<string, string | undefined>): Settings {
  const given = Object.fromEntries(Object.entries(env).filter(([, value]) => value !== ''))
  const parsed = Settings.safeParse(given)
  if (parsed.success) return parsed.data
  const isSecret = ({ path }: z.core.$ZodIssue) => SECRETS.has(path.join('.'))
  throw new ConfigError(parsed.error.issues.map((issue) => problemText(issue, given, isSecret(issue))))
}

/** Where a service that listens there is reached from this machine. */
export function urlOf(host: string, port: number): string {
  const reached = host === '0.0.0.0' || host === '::' ? '127.0.0.1' : host
  return `http://${reached.includes(':') ? `[${reached}]` : reached}:${port}`
}

function kafkaOf(s: Settings): KafkaConfig | undefined {
  if (!s.KAFKA_BROKERS) return undefined
  return {
    brokers: s.KAFKA_BROKERS.split(',').map((broker) => broker.trim()),
    client: s.KAFKA_CLIENT,
    prefix: s.KAFKA_PREFIX,
    queuePartitions: s.KAFKA_QUEUE_PARTITIONS,
    replicationFactor: s.KAFKA_REPLICATION,
    tls: s.KAFKA_TLS,
    sasl: s.KAFKA_SASL_MECHANISM && {
      mechanism: s.KAFKA_SASL_MECHANISM,
      username: s.KAFKA_USERNAME ?? '',
      password: s.KAFKA_PASSWORD ?? '',
    },
  }
}
