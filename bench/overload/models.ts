import { setTimeout as sleep } from 'node:timers/promises'
import { openChat, type Results, runLoad, STREAM_MS } from '../load/callers.ts'
import { postChat } from '../load/chat.ts'
import type { Address } from '../load/connection.ts'
import { startProxy, startUpstream } from '../load/start.ts'
import { type Processes, urlOf } from '../machine/processes.ts'
import { KEY, startSluice, untilAnswered, upstreamModel } from '../machine/sluice.ts'
import { percentile, Samples, sumOf } from '../results/samples.ts'
import { type Column, type Goal, renderGoals, renderSamples } from '../results/tables.ts'
import type { Run } from '../section.ts'

/*
 * Measures how the slots of a worker are shared among its models. A model may use the slots that other models leave idle, so a single busy model gets
 * all slots. If calls of a second model arrive, then the second model gets its share within the duration of one stream. A model whose upstream never
 * answers must not take slots from the other models.
 */

const MODELS = ['bench', 'bench-2', 'bench-3', 'bench-4'] as const
/** Streams of the busy model, equal to the default number of slots. */
const STREAMS = 256
const DIRECTIONS = [
  ['bench', 'bench-2'],
  ['bench-2', 'bench'],
] as const
const ARRIVING_CALLERS = 16
const FILL_MS = 2_500
const WARM_UP_SECONDS = 2

const STALLED = 'stalled'
const STALLED_SLOTS = 32
const STALLED_CALLERS = 4 * STALLED_SLOTS
const HEALTHY = ['bench', 'bench-2'] as const
const HEALTHY_CALLERS = 3
const RETRY_DELAY_MS = 1_000

const TITLES: Readonly<Record<string, string>> = {
  proxy: 'bare proxy',
  embedded: 'Sluice, one process',
  kafka: 'Sluice, Kafka',
}
const SLUICE = ['embedded', 'kafka'] as const
const LENDING = '256 streams of one model'
const ALONE = 'healthy models alone'
const NEXT_TO_STALLED = 'healthy models, one stalled'

export async function measureModels(run: Run): Promise<string[]> {
  await using processes = run.processes()
  const upstream = await startUpstream(processes)
  const lending = await measureLending(run, processes, upstream)
  const stalled = await measureStalled(run, processes, upstream)
  return [
    renderGoals([...lendingGoals(lending), ...stalledGoals(stalled)]),
    renderSamples(lending, TITLES, [LENDING], LENDING_COLUMNS),
    renderSamples(stalled, TITLES, [ALONE, NEXT_TO_STALLED], STALLED_COLUMNS),
  ]
}

async function measureLending(run: Run, processes: Processes, upstream: URL): Promise<Samples> {
  const models = MODELS.map((id) => upstreamModel(id, upstream))
  const proxy = await startProxy(processes, upstream)
  const targets: [string, Address][] = [['proxy', { url: urlOf(proxy), key: KEY }]]
  for (const [name, kafka] of await backends(run)) {
    const sluice = await startSluice(processes, { name: `lending-${name}`, models, kafka })
    await untilReady(sluice)
    targets.push([name, sluice])
  }
  const load = { shape: 'streams', callers: STREAMS } as const
  for (const [, address] of targets) await runLoad(address, load, WARM_UP_SECONDS)
  const samples = new Samples()
  await run.rounds(targets, async ([name, address], round) => {
    const results = await runLoad(address, load, run.seconds(3, 6))
    const arrivals: number[] = []
    for (const [busy, arriving] of name === 'proxy' ? [] : DIRECTIONS)
      arrivals.push(await arrival(address, busy, arriving))
    const arrivalMs = arrivals.length > 0 ? Math.max(...arrivals) : Number.NaN
    const figures = { ...figuresOf([results]), tokensPerSecond: results.lags.length / results.seconds, arrivalMs }
    samples.add(name, LENDING, round, figures)
    const { tokensPerSecond, p99 } = figures
    run.print(
      `${round} ${LENDING}, ${name}: ${tokensPerSecond.toFixed(0)} tokens/s, first token p99 ${p99.toFixed(0)} ms, second model ${arrivalMs.toFixed(0)} ms`,
    )
  })
  return samples
}

async function arrival(address: Address, busyModel: string, arrivingModel: string): Promise<number> {
  using busy = await openChat(address, { shape: 'streams', callers: 2 * STREAMS }, busyModel)
  using arriving = await openChat(address, { shape: 'lockstep', callers: ARRIVING_CALLERS }, arrivingModel)
  const running = busy.run(FILL_MS / 1_000 + 0.5, STREAM_MS)
  await sleep(FILL_MS)
  const { firstTokens, failure } = await arriving.run(0)
  await running
  if (failure) throw new Error(`a call of the second model failed: ${failure}`)
  return Math.max(...firstTokens)
}

async function measureStalled(run: Run, processes: Processes, upstream: URL): Promise<Samples> {
  const models = [...HEALTHY, STALLED].map((id) => upstreamModel(id, upstream))
  const env = { INFERENCE_SLOTS: String(STALLED_SLOTS) }
  const samples = new Samples()
  for (const [name, kafka] of await backends(run)) {
    const sluice = await startSluice(processes, { name: `stalled-${name}`, models, kafka, env })
    await untilReady(sluice)
    await healthyStreams(sluice, WARM_UP_SECONDS)
    await run.rounds([name], async (_, round) => {
      const seconds = run.seconds(3, 8)
      const alone = figuresOf(await healthyStreams(sluice, seconds))
      const stop = new AbortController()
      const waiting = Array.from({ length: STALLED_CALLERS }, () => callStalled(sluice, stop.signal))
      await sleep(RETRY_DELAY_MS)
      const next = figuresOf(await healthyStreams(sluice, seconds))
      stop.abort()
      await Promise.all(waiting)
      samples.add(name, ALONE, round, alone)
      samples.add(name, NEXT_TO_STALLED, round, { ...next, timesAlone: next.p99 / alone.p99 })
      run.print(
        `${round} healthy models, ${name}: first token p99 ${alone.p99.toFixed(0)} ms, ${next.p99.toFixed(0)} ms next to a stalled one`,
      )
    })
  }
  return samples
}

async function healthyStreams(address: Address, seconds: number): Promise<Results[]> {
  const load = { shape: 'streams', callers: HEALTHY_CALLERS } as const
  return await Promise.all(HEALTHY.map((model) => runLoad(address, load, seconds, model)))
}

async function callStalled(address: Address, signal: AbortSignal): Promise<void> {
  while (!signal.aborted) {
    await postChat(address, STALLED, 'Hello', { stream: true }, {}, signal)
      .then(() => sleep(RETRY_DELAY_MS, undefined, { signal }))
      .catch(() => undefined)
  }
}

async function backends(run: Run) {
  return [['embedded', undefined] as const, ['kafka', await run.kafka()] as const]
}

async function untilReady(address: Address): Promise<void> {
  await untilAnswered(async () => (await runLoad(address, { shape: 'whole', callers: 1 }, 0)).failure)
}

function figuresOf(all: readonly Results[]) {
  const firstTokens = all.flatMap((results) => results.firstTokens)
  return {
    answers: sumOf(all.map(({ answers }) => answers)),
    failures: sumOf(all.map(({ failures }) => failures)),
    p50: percentile(firstTokens, 0.5),
    p99: percentile(firstTokens, 0.99),
  }
}

const FIRST_TOKEN_COLUMNS: readonly Column[] = [
  { title: 'failures', figure: 'failures', decimals: 0 },
  { title: 'first token p50 ms', figure: 'p50', decimals: 1 },
  { title: 'p99 ms', figure: 'p99', decimals: 1 },
]
const LENDING_COLUMNS: readonly Column[] = [
  { title: 'tokens/s', figure: 'tokensPerSecond', decimals: 0 },
  ...FIRST_TOKEN_COLUMNS,
  { title: 'second model ms', figure: 'arrivalMs', decimals: 0 },
]
const STALLED_COLUMNS: readonly Column[] = [
  { title: 'streams', figure: 'answers', decimals: 0 },
  ...FIRST_TOKEN_COLUMNS,
  { title: 'p99 × alone', figure: 'timesAlone', decimals: 2 },
]

function lendingGoals(samples: Samples): Goal[] {
  return SLUICE.flatMap((name) => [
    {
      ...{ name: `tokens/s, ${LENDING}, ${TITLES[name]}`, unit: '× proxy', min: 0.97 },
      measured: samples.ratio(name, 'proxy', LENDING, 'tokensPerSecond'),
    },
    {
      ...{ name: `first token p99 after the proxy's, ${TITLES[name]}`, unit: 'ms', max: 60, decimals: 0 },
      measured: samples.added(name, 'proxy', LENDING, 'p99'),
    },
    {
      ...{ name: `calls of a second model begin, ${TITLES[name]}`, unit: 'ms', max: STREAM_MS, decimals: 0 },
      measured: samples.median(name, LENDING, 'arrivalMs'),
    },
  ])
}

function stalledGoals(samples: Samples): Goal[] {
  return SLUICE.flatMap((name) => [
    {
      ...{ name: `first token p99 next to a stalled model, ${TITLES[name]}`, unit: '× alone', max: 1.5 },
      measured: samples.median(name, NEXT_TO_STALLED, 'timesAlone'),
    },
    {
      ...{ name: `failed calls next to a stalled model, ${TITLES[name]}`, unit: '', max: 0, decimals: 0 },
      measured: samples.median(name, NEXT_TO_STALLED, 'failures'),
    },
  ])
}
