import { writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import { type Address, Callers } from '../calls/load.ts'
import { sluice, startUpstream, urlOf } from '../calls/targets.ts'
import { percentile } from '../figures/stats.ts'
import type { Kafka } from '../machine/kafka.ts'
import { Processes } from '../machine/processes.ts'

const KEY = 'sk-bench-0123456789abcdef0123456789abcdef'
/** Slots of the worker; the callers of the model that hangs would fill them four times. */
export const SLOTS = 32
export const HANGING_CALLERS = 4 * SLOTS
/** Models that are well, and callers of each: a stream takes 1.3 s, and together they have room beside one that hangs. */
export const HEALTHY = ['bench', 'bench-2'] as const
export const HEALTHY_CALLERS = 3
const WARM_UP_SECONDS = 3
/** By then the calls that hang hold all that they get. */
const SETTLE_MS = 1_000

/** How it is measured. */
export interface BulkheadOptions {
  readonly rounds: number
  /** How long one model hangs in each round; as long is measured without it. */
  readonly hangSeconds: number
  readonly print: (text: string) => void
  readonly signal: AbortSignal
}

/** The streams of the healthy models in one round. Times to the first token, in milliseconds. */
export interface BulkheadSample {
  readonly target: 'embedded' | 'kafka'
  readonly round: number
  readonly solo: StreamFigures
  readonly beside: StreamFigures
}

/** What the callers of the healthy models saw. */
export interface StreamFigures {
  readonly answers: number
  readonly failures: number
  readonly p50: number
  readonly p99: number
}

/** Everything that was found out. */
export interface BulkheadResults {
  readonly hangSeconds: number
  readonly samples: readonly BulkheadSample[]
}

/** Measures healthy models alone, and while another one hangs, in the same rounds. */
export async function measureBulkheads(
  options: BulkheadOptions,
  kafka: Kafka | undefined,
  dir: string,
): Promise<BulkheadResults> {
  const samples: BulkheadSample[] = []
  for (const target of kafka ? (['embedded', 'kafka'] as const) : (['embedded'] as const)) {
    await using processes = new Processes(dir, undefined)
    const upstream = await startUpstream(processes)
    const hang = await processes.node({ name: 'hang', script: './bulkheads/hang.ts', args: [], addressOn: 'stdout' })
    const models = HEALTHY.map((id) => `  - { id: ${id}, engine: ${engineAt(upstream)} }\n`)
    models.push(`  - { id: hanging, engine: ${engineAt(urlOf(hang))} }\n`)
    const address = await start({ target, name: `bulkheads-${target}`, processes, kafka, models, slots: SLOTS })
    await streams(address, WARM_UP_SECONDS)
    for (let round = 1; round <= options.rounds; round++) {
      options.signal.throwIfAborted()
      const solo = await streams(address, options.hangSeconds)
      const beside = await whileHanging(address, options.signal, () => streams(address, options.hangSeconds))
      samples.push({ target, round, solo, beside })
      const [before, after] = [solo, beside].map(({ p99 }) => p99.toFixed(0))
      options.print(
        `${round}/${options.rounds} bulkheads ${target} first token p99 ${before} ms, beside one that hangs ${after} ms`,
      )
    }
  }
  return { hangSeconds: options.hangSeconds, samples }
}

/** An engine of models.yaml for a server. */
export function engineAt(url: URL): string {
  return `{ type: openai, base_url: "${new URL('/v1', url).href}" }`
}

/** A service to start. */
export interface ServiceStart {
  readonly target: 'embedded' | 'kafka'
  readonly name: string
  readonly processes: Processes
  readonly kafka: Kafka | undefined
  /** Lines of models.yaml. */
  readonly models: readonly string[]
  /** Slots of its worker; undefined: the default. */
  readonly slots: number | undefined
}

/** Starts a service with several models. */
export async function start({ target, name, processes, kafka, models, slots }: ServiceStart): Promise<Address> {
  const file = join(processes.dir, `${name}.yaml`)
  writeFileSync(file, `models:\n${models.join('')}`)
  const env = {
    PORT: '0',
    DATA_DIR: join(processes.dir, name),
    MODELS_FILE: file,
    SLUICE_API_KEY: KEY,
    ...(slots !== undefined && { INFERENCE_SLOTS: String(slots) }),
    ...(target === 'kafka' && kafka && { KAFKA_BROKERS: kafka.brokers, KAFKA_PREFIX: `bench-${process.pid}-${name}.` }),
  }
  if (target === 'embedded') return { url: urlOf(await processes.node(sluice(name, [], env))), key: KEY }
  const ingress = await processes.node(sluice(`${name}-ingress`, ['ingress'], env))
  await processes.node({ ...sluice(`${name}-inference`, ['inference'], env), addressOn: 'none' })
  return { url: urlOf(ingress), key: KEY }
}

async function streams(address: Address, seconds: number): Promise<StreamFigures> {
  const callers = await Promise.all(
    HEALTHY.map((model) => Callers.open({ ...address, model }, 'streams', HEALTHY_CALLERS)),
  )
  const seen = await Promise.all(callers.map((each) => each.run(seconds)))
  for (const each of callers) each.close()
  const firstTokens = seen.flatMap((each) => each.firstTokens)
  const sumOf = (values: readonly number[]) => values.reduce((sum, value) => sum + value, 0)
  return {
    answers: sumOf(seen.map(({ answers }) => answers)),
    failures: sumOf(seen.map(({ failures }) => failures)),
    p50: percentile(firstTokens, 0.5),
    p99: percentile(firstTokens, 0.99),
  }
}

/** Measures while callers wait for the model that hangs. Those that are refused ask again. */
async function whileHanging<Found>(
  address: Address,
  signal: AbortSignal,
  measure: () => Promise<Found>,
): Promise<Found> {
  const over = new AbortController()
  const stop = AbortSignal.any([signal, over.signal])
  const waiting = Array.from({ length: HANGING_CALLERS }, () => waitForEver(address, stop))
  try {
    await sleep(SETTLE_MS, undefined, { signal })
    return await measure()
  } finally {
    over.abort()
    await Promise.all(waiting)
  }
}

async function waitForEver({ url, key }: Address, signal: AbortSignal): Promise<void> {
  const body = JSON.stringify({ model: 'hanging', messages: [{ role: 'user', content: 'Hello' }], stream: true })
  const headers = { authorization: `Bearer ${key}`, 'content-type': 'application/json' }
  while (!signal.aborted) {
    await fetch(new URL('/v1/chat/completions', url), { method: 'POST', headers, body, signal })
      .then((response) => response.text())
      .then(() => sleep(SETTLE_MS, undefined, { signal }))
      .catch(() => {})
  }
}
