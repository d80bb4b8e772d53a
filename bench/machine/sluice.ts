import { existsSync, mkdirSync, writeFileSync } from 'node:fs'
import { join, resolve } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import type { Address } from '../load/connection.ts'
import { type Processes, type Running, runCommand, urlOf } from './processes.ts'
import type { Kafka } from './servers.ts'

/*
 * Starts Sluice with its default settings, log level included: everything in one process, or roles that meet in Kafka. The roles are
 * an ingress and the workers that a measurement names.
 */

/** The key of each service and each baseline. */
export const KEY = 'sk-bench-0123456789abcdef0123456789abcdef'
const READY_TIMEOUT_MS = 60_000
const RETRY_DELAY_MS = 100

export interface SluiceOptions {
  /** Unique name in the run: of its processes, data directory and topics. */
  readonly name: string
  /** Entries of models.yaml. */
  readonly models: readonly string[]
  /** Undefined: everything in one process. */
  readonly kafka?: Kafka | undefined
  /** Roles next to the ingress, if there is a Kafka. */
  readonly workers?: readonly string[]
  readonly env?: Record<string, string>
  /** Directory of another version of Sluice to start; undefined: this version. */
  readonly version?: string | undefined
  readonly nodeFlags?: readonly string[]
}

/** A running service. */
export interface Sluice extends Address {
  readonly processes: readonly Running[]
  readonly env: Record<string, string>
}

/** Starts a service. The ingress creates the topics, so the workers are started after it. */
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

/** An entry of models.yaml with an OpenAI-compatible upstream. */
export function upstreamModel(id: string, upstream: URL, fields = ''): string {
  return `{ id: ${id}, ${fields}engine: { type: openai, base_url: "${new URL('/v1', upstream).href}" } }`
}

/** Creates a key by the CLI; each key is a tenant. @returns Its secret */
export async function createKey({ env }: Sluice, ...options: readonly string[]): Promise<string> {
  const cli = resolve(import.meta.dirname, '../../services/cli/sluice.js')
  const printed = await runCommand(process.execPath, [cli, 'keys', 'create', ...options, '--json'], env)
  return String(JSON.parse(printed).secret)
}

/** Retries a call until it succeeds: `call` returns undefined, or the problem. @throws Error after a minute */
export async function untilAnswered(call: () => Promise<string | undefined>): Promise<void> {
  const deadline = Date.now() + READY_TIMEOUT_MS
  for (let problem = await call(); problem !== undefined; problem = await call()) {
    if (Date.now() > deadline) throw new Error(`no answer within ${READY_TIMEOUT_MS} ms: ${problem}`)
    await sleep(RETRY_DELAY_MS)
  }
}

/** Entry point of a version. Older ones are TypeScript. */
function entryOf(version: string | undefined): string {
  if (version === undefined) return '../services/main.js'
  const entry = resolve(version, 'services/main.js')
  return existsSync(entry) ? entry : resolve(version, 'services/main.ts')
}
