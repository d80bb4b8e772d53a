import { existsSync, mkdirSync, writeFileSync } from 'node:fs'
import { join, resolve } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import type { Address } from '../load/connection.ts'
import { type Processes, type Running, runCommand, urlOf } from './processes.ts'
import type { Kafka } from './servers.ts'

/*
 * Starts Sluice with its default settings, including the log level. Sluice runs either in one process, or as several roles that communicate
 * through Kafka. The roles are an ingress and the workers that a measurement names.
 */

export const KEY = 'sk-bench-0123456789abcdef0123456789abcdef'
const READY_TIMEOUT_MS = 60_000
const RETRY_DELAY_MS = 100

export interface SluiceOptions {
  /** Name of the service and of its processes, data directory and topics, unique in the run. */
  readonly name: string
  readonly models: readonly string[]
  /** Kafka, through which the roles communicate. If undefined, Sluice runs in one process without Kafka. */
  readonly kafka?: Kafka | undefined
  /** Roles that are started in addition to the ingress. Ignored without Kafka. */
  readonly workers?: readonly string[]
  readonly env?: Record<string, string>
  /** Directory of another version of Sluice to start. Default: this version. */
  readonly version?: string | undefined
  readonly nodeFlags?: readonly string[]
}

export interface Sluice extends Address {
  readonly processes: readonly Running[]
  readonly env: Record<string, string>
}

/** Starts a service. The ingress starts first, because it creates the topics that the workers need. */
export async function startSluice(processes: Processes, options: SluiceOptions): Promise<Sluice> {
  const { name, models, kafka, workers = ['inference'], version, nodeFlags = [] } = options
  const dir = join(processes.dir, name)
  mkdirSync(dir, { recursive: true })
  const modelsFile = join(dir, 'models.yaml')
  writeFileSync(modelsFile, `models:\n${models.map((model) => `  - ${model}\n`).join('')}`)
  const env = {
    ...{ PORT: '0', DATA_DIR: dir, MODELS_FILE: modelsFile, SLUICE_API_KEY: KEY },
    ...(kafka && { KAFKA_BROKERS: kafka.brokers, KAFKA_PREFIX: `bench-${process.pid}-${name}.` }),
    ...options.env,
  }
  const start = (role: string | undefined) =>
    processes.node({
      name: `${name}-${role ?? 'sluice'}`,
      script: entryOf(version),
      args: role === undefined ? [] : [role],
      env,
      addressOn: role === undefined || role === 'ingress' ? 'stderr' : 'none',
      nodeFlags: ['--expose-gc', ...nodeFlags],
      isProfiled: true,
    })
  const first = await start(kafka ? 'ingress' : undefined)
  const others: Running[] = []
  for (const role of kafka ? workers : []) others.push(await start(role))
  return { url: urlOf(first), key: KEY, processes: [first, ...others], env }
}

export function upstreamModel(id: string, upstream: URL, fields = ''): string {
  return `{ id: ${id}, ${fields}engine: { type: openai, base_url: "${new URL('/v1', upstream).href}" } }`
}

/** Creates a key by the CLI. Each key belongs to a tenant of its own. @returns The secret of the key */
export async function createKey({ env }: Sluice, ...options: readonly string[]): Promise<string> {
  const cli = resolve(import.meta.dirname, '../../services/cli/sluice.js')
  const printed = await runCommand(process.execPath, [cli, 'keys', 'create', ...options, '--json'], env)
  return String(JSON.parse(printed).secret)
}

/** Retries a call until it succeeds. The call returns undefined, or the problem as text. @throws Error after a minute */
export async function untilAnswered(call: () => Promise<string | undefined>): Promise<void> {
  const deadline = Date.now() + READY_TIMEOUT_MS
  for (let problem = await call(); problem !== undefined; problem = await call()) {
    if (Date.now() > deadline) throw new Error(`no answer within ${READY_TIMEOUT_MS} ms: ${problem}`)
    await sleep(RETRY_DELAY_MS)
  }
}

/** Returns the entry point of a version. Older versions start from a TypeScript file. */
function entryOf(version: string | undefined): string {
  if (version === undefined) return '../services/main.js'
  const entry = resolve(version, 'services/main.js')
  return existsSync(entry) ? entry : resolve(version, 'services/main.ts')
}
