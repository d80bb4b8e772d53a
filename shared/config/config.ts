import { X509Certificate } from 'node:crypto'
import { existsSync, readFileSync } from 'node:fs'
import { resolve } from 'node:path'
import { createSecureContext } from 'node:tls'
import { problemText } from './problem.ts'
import { RENAMED_SETTINGS, SECRETS, Settings } from './settings.ts'
import { TRACES, tracesOf } from './traces.ts'

export interface KafkaConfig {
  readonly brokers: string[]
  readonly client: 'auto' | 'share' | 'classic'
  readonly prefix: string
  readonly queuePartitions: number
  readonly replicationFactor: number | undefined
  readonly tls: KafkaTlsConfig | undefined
  readonly sasl:
    | { mechanism: 'PLAIN' | 'SCRAM-SHA-256' | 'SCRAM-SHA-512'; username: string; password: string }
    | { mechanism: 'OAUTHBEARER'; username: string; password: string; tokenUrl: string; scope: string | undefined }
    | undefined
}

/** Certificates and private key for Kafka, as PEM texts. */
interface KafkaTlsConfig {
  readonly ca?: string
  readonly cert?: string
  readonly key?: string
  readonly passphrase?: string
}

export type Config = ReturnType<typeof parseConfig>

export class ConfigError extends Error {
  readonly problems: readonly string[]
  constructor(problems: readonly string[]) {
    super(problems.join('\n'))
    this.name = 'ConfigError'
    this.problems = problems
  }
}

/**
 * Reads the settings from the environment, and from the file `.env` in the working directory if it exists. The environment overrides the file.
 *
 * @throws ConfigError with all problems
 */
export function loadConfig(): Config {
  if (existsSync('.env')) process.loadEnvFile('.env')
  return parseConfig(process.env)
}

/**
 * Parses settings from the given variables. An empty value counts as unset.
 *
 * @throws ConfigError with all problems
 */
export function parseConfig(env: Record<string, string | undefined>) {
  const given = Object.fromEntries(Object.entries(env).filter(([, value]) => value !== ''))
  const renamed = Object.entries(RENAMED_SETTINGS).filter(([old]) => given[old] !== undefined)
  if (renamed.length > 0)
    throw new ConfigError(renamed.map(([old, name]) => `${old} was renamed: set ${name} instead.`))
  const { valid, problems: ignored } = ignoreInvalidTraces(given)
  const parsed = Settings.safeParse(valid)
  if (!parsed.success) throw new ConfigError(parsed.error.issues.map((issue) => problemOf(issue, given)))
  const s = parsed.data
  const dataDir = resolve(s.DATA_DIR)
  return Object.freeze({
    ...namedOf(s),
    env,
    dataDir,
    isRequestLogOn: s.REQUEST_LOG_MS > 0 && s.REQUEST_LOG_ROWS_MAX > 0,
    models: s.MODELS?.split(',').map((name) => name.trim()),
    extensions: s.EXTENSIONS?.split(',').map((file) => resolve(file.trim())) ?? [],
    modelsFile: resolve(s.MODELS_FILE),
    weightsDir: resolve(dataDir, 'models'),
    modelsDir: s.MODELS_DIR && resolve(s.MODELS_DIR),
    blobDir: s.BLOB_DIR ? resolve(s.BLOB_DIR) : resolve(dataDir, 'blobs'),
    blobs: s3Of(s),
    kafka: kafkaOf(s),
    traces: tracesOf(s),
    /** Problems of OpenTelemetry variables. These variables are ignored, and the problems are logged as warnings. */
    tracesProblems: ignored,
    drainNoticeMs: s.DRAIN_NOTICE_MS ?? (s.KAFKA_BROKERS ? 5_000 : 0),
    url: s.SLUICE_URL ?? urlOf(s.HOST, s.PORT),
    sandboxDir: resolve(dataDir, 'sandbox'),
  })
}

type Variables = Readonly<Record<string, string | undefined>>
type Issue = Parameters<typeof problemText>[0]

function problemOf(issue: Issue, given: Variables): string {
  return problemText(issue, given, SECRETS.has(issue.path.join('.')))
}

/**
 * Removes invalid OpenTelemetry variables instead of refusing to start. The OpenTelemetry specification requires a warning for them, because other
 * programs on the machine may use the same variables. If the collector's address or protocol is invalid, then no traces are sent.
 */
function ignoreInvalidTraces(given: Variables): { readonly valid: Variables; readonly problems: readonly string[] } {
  const issues = Settings.safeParse(given).error?.issues.filter(({ path: [name] }) => String(name) in TRACES) ?? []
  const names = new Set(issues.map(({ path: [name] }) => String(name)))
  const valid = Object.fromEntries(Object.entries(given).filter(([name]) => !names.has(name)))
  const isOff = ['OTEL_EXPORTER_OTLP_PROTOCOL', 'OTEL_EXPORTER_OTLP_TRACES_ENDPOINT'].some((name) => names.has(name))
  const problems = issues.map((issue) => problemOf(issue, given))
  return { valid: isOff ? { ...valid, OTEL_SDK_DISABLED: 'true' } : valid, problems }
}

type CamelCase<Name extends string> = Name extends `${infer Word}_${infer Rest}`
  ? `${Lowercase<Word>}${Capitalize<CamelCase<Rest>>}`
  : Lowercase<Name>
type Named = { readonly [Name in keyof Settings as CamelCase<Name>]: Settings[Name] }

function namedOf(settings: Settings): Named {
  const camelCase = (name: string) => name.toLowerCase().replace(/_(\w)/g, (_, letter: string) => letter.toUpperCase())
  return Object.fromEntries(Object.entries(settings).map(([name, value]) => [camelCase(name), value])) as Named
}

/** Returns a URL for calls from this machine to a service that listens on `host`. */
export function urlOf(host: string, port: number): string {
  const reached = host === '0.0.0.0' || host === '::' ? '127.0.0.1' : host
  return `http://${reached.includes(':') ? `[${reached}]` : reached}:${port}`
}

/** Parses BLOB_URL. Undefined if it is not set, so that blobs are stored in a directory. */
function s3Of(s: Settings) {
  if (!s.BLOB_URL) return undefined
  const [bucket = '', ...steps] = s.BLOB_URL.slice('s3://'.length).split('/')
  const prefix = steps.filter((step) => step !== '').join('/')
  return {
    bucket,
    prefix: prefix === '' ? '' : `${prefix}/`,
    endpoint: s.BLOB_S3_ENDPOINT,
    region: s.BLOB_S3_REGION,
    encryption: s.BLOB_S3_SSE,
    kmsKey: s.BLOB_S3_KMS_KEY,
  }
}

function kafkaOf(s: Settings): KafkaConfig | undefined {
  if (!s.KAFKA_BROKERS) return undefined
  return {
    brokers: s.KAFKA_BROKERS.split(',').map((broker) => broker.trim()),
    client: s.KAFKA_CLIENT,
    prefix: s.KAFKA_PREFIX,
    queuePartitions: s.KAFKA_QUEUE_PARTITIONS,
    replicationFactor: s.KAFKA_REPLICATION,
    tls: kafkaTlsOf(s),
    sasl: kafkaSaslOf(s),
  }
}

/** @throws ConfigError if a file cannot be read or is not in PEM form, or if key and certificate do not match */
function kafkaTlsOf(s: Settings): KafkaTlsConfig | undefined {
  const { KAFKA_SSL_CA, KAFKA_SSL_CERT, KAFKA_SSL_KEY, KAFKA_SSL_KEY_PASSWORD: passphrase } = s
  if (Boolean(KAFKA_SSL_CERT) !== Boolean(KAFKA_SSL_KEY))
    throw new ConfigError(['KAFKA_SSL_CERT, KAFKA_SSL_KEY: set both or neither'])
  if (!s.KAFKA_TLS && !KAFKA_SSL_CA && !KAFKA_SSL_CERT) return undefined
  const ca = KAFKA_SSL_CA
    ? readPem('KAFKA_SSL_CA', KAFKA_SSL_CA, (pem) => ({ ca: new X509Certificate(pem) && pem }))
    : {}
  if (!KAFKA_SSL_CERT || !KAFKA_SSL_KEY) return ca
  const key = readPem('KAFKA_SSL_KEY', KAFKA_SSL_KEY, (pem) => ({ key: pem, ...(passphrase && { passphrase }) }))
  const own = readPem('KAFKA_SSL_CERT, KAFKA_SSL_KEY', KAFKA_SSL_CERT, (cert) => {
    createSecureContext({ cert, ...key })
    return { cert, ...key }
  })
  return { ...ca, ...own }
}

function readPem(name: string, file: string, use: (pem: string) => KafkaTlsConfig): KafkaTlsConfig {
  try {
    return use(readFileSync(file, 'utf8'))
  } catch (error) {
    throw new ConfigError([`${name}: ${(error as Error).message}. Name a file in PEM form.`])
  }
}

function kafkaSaslOf(s: Settings): KafkaConfig['sasl'] {
  const { KAFKA_SASL_MECHANISM: mechanism, KAFKA_SASL_OAUTHBEARER_TOKEN_ENDPOINT_URL: tokenUrl } = s
  if (!mechanism) return undefined
  const login = { username: s.KAFKA_USERNAME ?? '', password: s.KAFKA_PASSWORD ?? '' }
  if (mechanism !== 'OAUTHBEARER') return { mechanism, ...login }
  if (!tokenUrl)
    throw new ConfigError([
      'KAFKA_SASL_OAUTHBEARER_TOKEN_ENDPOINT_URL: must be set if KAFKA_SASL_MECHANISM is OAUTHBEARER',
    ])
  return { mechanism, ...login, tokenUrl, scope: s.KAFKA_SASL_OAUTHBEARER_SCOPE }
}

export function isStartedByNpx(): boolean {
  return process.env.npm_command === 'exec'
}
