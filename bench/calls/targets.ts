import { existsSync, writeFileSync } from 'node:fs'
import { join, resolve } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import { type Gateway, type GatewayName, startGateway } from '../gateways/gateways.ts'
import type { Kafka } from '../machine/kafka.ts'
import type { Processes, Running, Start } from '../machine/processes.ts'
import { type Address, Callers } from './load.ts'

/** What is measured, in the order of each round. `direct` and `proxy` are what the others are compared with. */
export const TARGET_NAMES = ['direct', 'proxy', 'embedded', 'kafka'] as const
/** The same of another version of Sluice, each right after ours. */
export const BESIDE = { embedded: 'beside-embedded', kafka: 'beside-kafka' } as const
/** The proxy with Kafka between its two halves: what a queue there costs by itself. */
export const HOPS = 'hops'
export type TargetName =
  | (typeof TARGET_NAMES)[number]
  | typeof HOPS
  | GatewayName
  | (typeof BESIDE)[keyof typeof BESIDE]

/** What is measured beside our own targets. */
export interface Others {
  /** Directory of another version. */
  readonly beside: string | undefined
  readonly gateways: readonly Gateway[]
}

/** One way from the callers to the mock upstream. */
export interface Target {
  readonly name: TargetName
  readonly address: Address
  /** The processes between the callers and the upstream, without Kafka's broker. */
  readonly processes: readonly { readonly name: string; readonly pid: number }[]
  readonly brokerPid: number | undefined
}

const KEY = 'sk-bench-0123456789abcdef0123456789abcdef'
const READY_MS = 30_000
const TRY_AGAIN_MS = 100

/**
 * Starts one target; resolves when a call through it has been answered.
 *
 * @param others What is measured beside ours, for the names that are its.
 * @throws Error when none is in time
 */
export async function startTarget(
  name: TargetName,
  upstream: URL,
  processes: Processes,
  kafka: Kafka | undefined,
  others: Others,
): Promise<Target> {
  const target = await launchTarget(name, upstream, processes, kafka, others)
  await untilAnswered(target)
  return target
}

/** Starts the mock upstream. */
export async function startUpstream(processes: Processes): Promise<URL> {
  return urlOf(await processes.node({ name: 'upstream', script: './calls/mock.ts', args: [], addressOn: 'stdout' }))
}

/** The same, without a call: it listens, and nothing more is known. */
export async function launchTarget(
  name: TargetName,
  upstream: URL,
  processes: Processes,
  kafka: Kafka | undefined,
  { beside, gateways }: Others,
): Promise<Target> {
  const targetOf = (url: URL, running: Target['processes'], brokerPid?: number): Target => {
    return { name, address: { url, key: KEY }, processes: running, brokerPid }
  }
  if (name === 'direct') return targetOf(upstream, [])
  if (name === 'proxy') {
    const args = [upstream.href, KEY]
    const proxy = await processes.node({ name, script: './calls/proxy.ts', args, addressOn: 'stdout' })
    return targetOf(urlOf(proxy), [{ name: 'proxy', pid: proxy.pid }])
  }
  if (name === HOPS && kafka) {
    const meeting = [kafka.brokers, `bench-${process.pid}-${name}.`]
    const part = { script: './calls/hops.ts', addressOn: 'stdout' } as const
    const server = await processes.node({ ...part, name: 'hops-server', args: ['server', ...meeting, KEY] })
    const own = { name: 'hops-worker', args: ['worker', ...meeting, upstream.href], addressOn: 'none' } as const
    const worker = await processes.node({ ...part, ...own })
    const running = [
      { name: 'server', pid: server.pid },
      { name: 'worker', pid: worker.pid },
    ]
    return targetOf(urlOf(server), running, kafka.pid)
  }
  const gateway = gateways.find((gateway) => gateway.name === name)
  if (gateway) {
    const { url, headers, pid } = await startGateway(gateway, { processes, upstream, key: KEY })
    return { name, address: { url, key: KEY, headers }, processes: [{ name, pid }], brokerPid: undefined }
  }
  const isOther = name === BESIDE.embedded || name === BESIDE.kafka
  const script = isOther && beside ? { script: entryOf(beside) } : {}
  const isWhole = name === 'embedded' || name === BESIDE.embedded
  const env = settings(processes.dir, name, upstream, isWhole ? undefined : kafka)
  if (isWhole) {
    const whole = await processes.node({ ...sluice(name, [], env), ...script })
    return targetOf(urlOf(whole), [{ name: 'sluice', pid: whole.pid }])
  }
  // First whoever makes the topics, then whoever would make the same.
  const ingress = await processes.node({ ...sluice(`${name}-ingress`, ['ingress'], env), ...script })
  const inference = sluice(`${name}-inference`, ['inference'], env)
  const worker = await processes.node({ ...inference, ...script, addressOn: 'none' })
  const running = [
    { name: 'ingress', pid: ingress.pid },
    { name: 'inference', pid: worker.pid },
  ]
  return targetOf(urlOf(ingress), running, kafka?.pid)
}

/** The entry point of another version, which was of TypeScript before this one. */
function entryOf(directory: string): string {
  const entry = resolve(directory, 'services/main.js')
  return existsSync(entry) ? entry : resolve(directory, 'services/main.ts')
}

/** How roles of Sluice are started; none: all of them. */
export function sluice(name: string, args: string[], env: Record<string, string>): Start {
  return { name, script: '../services/main.js', args, env, addressOn: 'stderr' }
}

/** What Sluice is run with: its defaults, the log level and its file included, but for where things are. */
function settings(dir: string, name: string, upstream: URL, kafka: Kafka | undefined): Record<string, string> {
  const modelsFile = join(dir, 'models.yaml')
  const engine = `{ type: openai, base_url: "${new URL('/v1', upstream).href}" }`
  writeFileSync(modelsFile, `models:\n  - id: bench\n    engine: ${engine}\n`)
  return {
    PORT: '0',
    DATA_DIR: join(dir, name),
    MODELS_FILE: modelsFile,
    SLUICE_API_KEY: KEY,
    ...(kafka && { KAFKA_BROKERS: kafka.brokers, KAFKA_PREFIX: `bench-${process.pid}-${name}.` }),
  }
}

async function untilAnswered({ name, address }: Target): Promise<void> {
  const deadline = Date.now() + READY_MS
  for (;;) {
    const callers = await Callers.open(address, 'whole', 1)
    const { failure } = await callers.run(0)
    callers.close()
    if (!failure) return
    if (Date.now() > deadline) throw new Error(`${name} gave no answer within ${READY_MS} ms: ${failure}`)
    await sleep(TRY_AGAIN_MS)
  }
}

/** Where a process listens. @throws Error when it listens nowhere */
export function urlOf({ url }: Running): URL {
  if (!url) throw new Error('a process without an address')
  return url
}
