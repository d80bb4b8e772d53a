import { Callers } from '../load/callers.ts'
import { type Address, encodeRequest } from '../load/connection.ts'
import { startUpstream } from '../load/start.ts'
import { KEY, startSluice, untilAnswered, upstreamModel } from '../machine/sluice.ts'
import { cpuMs } from '../machine/usage.ts'
import { percentile, Samples, sumOf } from '../results/samples.ts'
import { type Column, type Goal, renderGoals, renderSamples } from '../results/tables.ts'
import type { Run, Section } from '../section.ts'

const UPSTREAMS = [
  { model: 'embed-5-0.05', cost: '5 ms + 0.05 ms per text' },
  { model: 'embed-0-2', cost: '2 ms per text' },
  { model: 'embed-0-0', cost: 'no cost' },
] as const
const CALLERS = [1, 64] as const
/**
 * Number of distinct texts. Sluice computes equal texts of one batch only once. If there were fewer texts than callers, then concurrent
 * calls would send equal texts, and a batch would be too cheap.
 */
const TEXTS = 4_096
const REPLY_TIMEOUT_MS = 10_000

const TITLES: Readonly<Record<string, string>> = {
  direct: 'nothing (direct)',
  embedded: 'Sluice, one process',
  kafka: 'Sluice, Kafka',
}

export const EMBEDDINGS: Section = {
  name: 'embeddings',
  summary: 'embeddings per second with batching, next to direct calls',
  title: '## Embeddings',
  introduction: `Callers of one text each, through Sluice and directly. The upstream computes one call after another, as on one GPU, and its cost
depends on the model. Sluice batches texts of different callers, which pays if a call has a cost of its own. Without any cost, the
CPU of Sluice is the limit.`,
  async measure(run) {
    const samples = await measureEmbeddings(run)
    return [renderGoals(goalsOf(samples)), renderSamples(samples, TITLES, samples.loads, COLUMNS)]
  },
}

interface Target {
  readonly name: string
  readonly address: Address
  readonly pids: readonly number[]
}

async function measureEmbeddings(run: Run): Promise<Samples> {
  await using processes = run.processes()
  const upstream = await startUpstream(processes)
  const targets: Target[] = [{ name: 'direct', address: { url: upstream, key: KEY }, pids: [] }]
  const models = UPSTREAMS.map(({ model }) => upstreamModel(model, upstream, 'pool: embeddings, '))
  for (const kafka of [undefined, await run.kafka()]) {
    const name = kafka ? 'kafka' : 'embedded'
    const sluice = await startSluice(processes, { name: `embeddings-${name}`, models, kafka, workers: ['embeddings'] })
    await untilAnswered(async () => (await call(sluice, 'embed-0-0', 1, 0)).failure)
    targets.push({ name, address: sluice, pids: sluice.processes.map(({ pid }) => pid) })
  }
  for (const { address } of targets)
    for (const { model } of UPSTREAMS) await call(address, model, 64, run.options.isQuick ? 0.5 : 2)
  const samples = new Samples()
  const cells = UPSTREAMS.flatMap((one) =>
    CALLERS.flatMap((callers) => targets.map((target) => ({ ...one, callers, target }))),
  )
  await run.rounds(cells, async ({ model, cost, callers, target: { name, address, pids } }, round) => {
    const used = () => sumOf(pids.map(cpuMs))
    const [before, cpuBefore] = [await countsOf(upstream, model), used()]
    const { seconds, latencies, failures, failure } = await call(address, model, callers, run.seconds(1, 2))
    const [after, cpuAfter] = [await countsOf(upstream, model), used()]
    if (failures > 0) throw new Error(`${failures} embeddings through ${name} failed: ${failure}`)
    const texts = after.texts - before.texts
    const figures = {
      perSecond: latencies.length / seconds,
      p50: percentile(latencies, 0.5),
      p99: percentile(latencies, 0.99),
      batch: texts / (after.calls - before.calls),
      cpu: pids.length === 0 ? Number.NaN : (cpuAfter - cpuBefore) / texts,
    }
    samples.add(name, loadOf(cost, callers), round, figures)
    run.print(
      `${round} ${loadOf(cost, callers)}, ${name}: ${figures.perSecond.toFixed(0)}/s, p50 ${figures.p50.toFixed(2)} ms`,
    )
  })
  return samples
}

function loadOf(cost: string, callers: number): string {
  return `${cost}, ${callers === 1 ? '1 caller' : `${callers} callers`}`
}

/** Sends embedding requests. Each request has one text of about 40 tokens and asks for the vector in base64, as SDKs do. */
async function call(address: Address, model: string, callers: number, seconds: number) {
  const sentence = 'The quick brown fox jumps over the lazy dog near the river bank. '
  const requests = Array.from({ length: TEXTS }, (_, at) => {
    const input = `Document ${at}. ${sentence.repeat(3)}`
    return encodeRequest(address, '/v1/embeddings', { model, input, encoding_format: 'base64' })
  })
  using open = await Callers.open(address.url, requests, callers)
  return await open.run(seconds)
}

async function countsOf(upstream: URL, model: string): Promise<{ calls: number; texts: number }> {
  const response = await fetch(new URL(`/counts/${model}`, upstream), { signal: AbortSignal.timeout(REPLY_TIMEOUT_MS) })
  return (await response.json()) as { calls: number; texts: number }
}

const COLUMNS: readonly Column[] = [
  { title: 'embeddings/s', figure: 'perSecond', decimals: 0 },
  { title: '× direct', figure: 'perSecond', decimals: 2, ratioTo: 'direct' },
  { title: 'p50 ms', figure: 'p50', decimals: 2 },
  { title: 'p99 ms', figure: 'p99', decimals: 2 },
  { title: 'texts per call', figure: 'batch', decimals: 1 },
  { title: 'CPU ms/embedding', figure: 'cpu', decimals: 3 },
]

function goalsOf(samples: Samples): Goal[] {
  return UPSTREAMS.slice(0, 2).flatMap(({ cost }, at) =>
    ['embedded', 'kafka'].map((target) => ({
      name: `embeddings/s, 64 callers, ${cost}, ${TITLES[target]}`,
      measured: samples.ratio(target, 'direct', loadOf(cost, 64), 'perSecond'),
      unit: '× direct',
      min: at === 0 ? 1 : 0.9,
    })),
  )
}
