import { writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import type { Address } from '../calls/load.ts'
import { sluice, urlOf } from '../calls/targets.ts'
import type { Kafka } from '../machine/kafka.ts'
import { Processes } from '../machine/processes.ts'
import { cpuMs } from '../machine/usage.ts'
import { type EmbedFigures, putEmbeddings } from './load.ts'

/** Upstreams by what a call and a text cost there, in milliseconds of its one device. */
export const UPSTREAMS = [
  { model: 'fixed', callMs: 5, textMs: 0.05 },
  { model: 'per-text', callMs: 0, textMs: 2 },
  { model: 'free', callMs: 0, textMs: 0 },
] as const
export type UpstreamName = (typeof UPSTREAMS)[number]['model']

/** How the upstream is called. */
export const EMBED_TARGETS = ['direct', 'embedded', 'kafka'] as const
export type EmbedTarget = (typeof EMBED_TARGETS)[number]

/** Callers at once: a lone one, and those of the design's target. */
export const EMBED_CALLERS = [1, 64] as const

/** One upstream under one load by one way in one round. */
export interface EmbedSample extends EmbedFigures {
  readonly target: EmbedTarget
  readonly upstream: UpstreamName
  readonly callers: number
  readonly round: number
  /** Texts of one upstream call, on average. */
  readonly batch: number
  /** CPU of Sluice's processes for one embedding, in milliseconds. */
  readonly cpu: number
}

/** What a run found out about embeddings. */
export interface EmbedResults {
  readonly samples: readonly EmbedSample[]
}

/** How long and how often. */
export interface EmbedOptions {
  readonly rounds: number
  readonly seconds: number
  readonly warmUpSeconds: number
  readonly print: (text: string) => void
  readonly signal: AbortSignal
}

interface Target {
  readonly name: EmbedTarget
  addressOf(upstream: UpstreamName): Address
  readonly pids: readonly number[]
}

const KEY = 'sk-bench-0123456789abcdef0123456789abcdef'
const READY_MS = 30_000

/** Measures embeddings: callers of single texts, through Sluice and straight to the same upstream, in turn. */
export async function measureEmbeddings(
  options: EmbedOptions,
  kafka: Kafka,
  dir: string,
  profileDir: string | undefined,
): Promise<EmbedResults> {
  await using processes = new Processes(dir, profileDir)
  const upstreams = new Map<string, URL>()
  for (const { model, callMs, textMs } of UPSTREAMS) {
    const args = [String(callMs), String(textMs)]
    const started = await processes.node({ name: model, script: './embeddings/mock.ts', args, addressOn: 'stdout' })
    upstreams.set(model, urlOf(started))
  }
  const targets: Target[] = []
  for (const name of EMBED_TARGETS) {
    options.print(`starting embeddings: ${name}, warming it up`)
    const target = await start(name, upstreams, processes, kafka)
    await untilAnswered(target)
    for (const { model } of UPSTREAMS) await putEmbeddings(target.addressOf(model), model, 64, options.warmUpSeconds)
    targets.push(target)
  }
  return { samples: await measureAll(options, targets, upstreams) }
}

async function start(
  name: EmbedTarget,
  upstreams: ReadonlyMap<string, URL>,
  processes: Processes,
  kafka: Kafka,
): Promise<Target> {
  if (name === 'direct') {
    return { name, addressOf: (upstream) => ({ url: upstreams.get(upstream) as URL, key: KEY }), pids: [] }
  }
  const env = settings(processes.dir, name, upstreams, kafka)
  const targetOf = (url: URL, pids: readonly number[]) => ({ name, addressOf: () => ({ url, key: KEY }), pids })
  if (name === 'embedded') {
    const whole = await processes.node(sluice('embeddings-embedded', [], env))
    return targetOf(urlOf(whole), [whole.pid])
  }
  const ingress = await processes.node(sluice('embeddings-ingress', ['ingress'], env))
  const worker = await processes.node({ ...sluice('embeddings-worker', ['embeddings'], env), addressOn: 'none' })
  return targetOf(urlOf(ingress), [ingress.pid, worker.pid])
}

/** What Sluice is run with: its defaults but for where things are. */
function settings(
  dir: string,
  name: string,
  upstreams: ReadonlyMap<string, URL>,
  kafka: Kafka,
): Record<string, string> {
  const modelsFile = join(dir, 'embeddings-models.yaml')
  const models = [...upstreams].map(([id, url]) => {
    return `  - { id: ${id}, pool: embeddings, engine: { type: openai, base_url: "${new URL('/v1', url).href}" } }\n`
  })
  writeFileSync(modelsFile, `models:\n${models.join('')}`)
  return {
    PORT: '0',
    DATA_DIR: join(dir, `embeddings-${name}`),
    MODELS_FILE: modelsFile,
    SLUICE_API_KEY: KEY,
    ...(name === 'kafka' && { KAFKA_BROKERS: kafka.brokers, KAFKA_PREFIX: `bench-embeddings-${process.pid}.` }),
  }
}

async function untilAnswered({ name, addressOf }: Target): Promise<void> {
  const deadline = Date.now() + READY_MS
  for (;;) {
    const { failure } = await putEmbeddings(addressOf('free'), 'free', 1, 0)
    if (!failure) return
    if (Date.now() > deadline) throw new Error(`${name} gave no embedding within ${READY_MS} ms: ${failure}`)
    await sleep(100)
  }
}

async function measureAll(
  options: EmbedOptions,
  targets: readonly Target[],
  upstreams: ReadonlyMap<string, URL>,
): Promise<EmbedSample[]> {
  const samples: EmbedSample[] = []
  for (let round = 1; round <= options.rounds; round++) {
    for (const { model } of UPSTREAMS) {
      for (const callers of EMBED_CALLERS) {
        for (const target of targets) {
          options.signal.throwIfAborted()
          const sample = await measure(target, model, upstreams.get(model) as URL, callers, round, options.seconds)
          samples.push(sample)
          options.print(progressOf(sample, options.rounds))
        }
      }
    }
  }
  return samples
}

async function measure(
  target: Target,
  upstream: UpstreamName,
  url: URL,
  callers: number,
  round: number,
  seconds: number,
): Promise<EmbedSample> {
  const cpuOf = () => target.pids.reduce((sum, pid) => sum + cpuMs(pid), 0)
  const [before, cpuBefore] = [await countOf(url), cpuOf()]
  const figures = await putEmbeddings(target.addressOf(upstream), upstream, callers, seconds)
  const [after, cpuAfter] = [await countOf(url), cpuOf()]
  const texts = after.texts - before.texts
  const cpu = target.pids.length === 0 ? Number.NaN : (cpuAfter - cpuBefore) / texts
  return { ...figures, target: target.name, upstream, callers, round, batch: texts / (after.calls - before.calls), cpu }
}

/** What an upstream has done so far. */
async function countOf(url: URL): Promise<{ calls: number; texts: number }> {
  const response = await fetch(url, { signal: AbortSignal.timeout(READY_MS) })
  return (await response.json()) as { calls: number; texts: number }
}

function progressOf(
  { round, target, upstream, callers, perSecond, p50, batch, cpu, failures }: EmbedSample,
  of: number,
) {
  const name = `${round}/${of} embeddings ${upstream}-${callers}`.padEnd(28)
  const rate = `${perSecond.toFixed(0)}/s, p50 ${p50.toFixed(2)} ms, ${batch.toFixed(1)} texts a call`
  const cost = Number.isNaN(cpu) ? '' : `, CPU ${cpu.toFixed(3)} ms`
  return `${name} ${target.padEnd(9)} ${rate}${cost}${failures > 0 ? `, ${failures} FAILED` : ''}`
}
