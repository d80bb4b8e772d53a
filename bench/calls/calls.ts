import { resolve } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import { type Load, runLoad } from '../load/callers.ts'
import { measureLoad, type Target } from '../load/measure.ts'
import { startProxy, startUpstream } from '../load/start.ts'
import { OneCore } from '../machine/one-core.ts'
import { type Processes, urlOf } from '../machine/processes.ts'
import { KEY, startSluice, untilAnswered, upstreamModel } from '../machine/sluice.ts'
import { residentMib } from '../machine/usage.ts'
import { Samples } from '../results/samples.ts'
import { type Column, type Goal, renderGoals, renderSamples } from '../results/tables.ts'
import type { Run, Section } from '../section.ts'

/*
 * Compares calls through Sluice with direct calls to the mock upstream, and with calls through a minimal proxy. All processes of a target are pinned
 * to one core. Otherwise a target with two processes would have twice the CPU of the proxy.
 */

const LOADS: Readonly<Record<string, Load>> = {
  'whole, 1 caller': { shape: 'whole', callers: 1 },
  'whole, 64 callers': { shape: 'whole', callers: 64 },
  'whole, 64 callers, 32 KiB': { shape: 'whole', callers: 64, promptKib: 32 },
  '64 streams': { shape: 'streams', callers: 64 },
  '256 streams': { shape: 'streams', callers: 256 },
  '256 streams in lockstep': { shape: 'lockstep', callers: 256 },
}
const QUICK_LOADS = ['whole, 64 callers', '64 streams']
/** Warm-up time in seconds. With a single caller, Kafka receives few requests, so the JVM of Kafka takes longest to compile its code. */
const WARM_UP = { quick: 1, normal: 4, loneThroughKafka: 12 } as const
/**
 * Wait after a start, in milliseconds. Meanwhile the process releases the memory that it needed only for starting, which would otherwise
 * count as its usage.
 */
const SETTLE_MS = 3_000

const TITLES: Readonly<Record<string, string>> = {
  direct: 'nothing (direct)',
  proxy: 'bare proxy',
  embedded: 'Sluice, one process',
  kafka: 'Sluice, Kafka',
  'other-embedded': 'other version, one process',
  'other-kafka': 'other version, Kafka',
}

export const CALLS: Section = {
  name: 'calls',
  summary: 'whole and streamed calls, next to direct calls and a bare proxy; start time, memory',
  title: '## Calls',
  introduction: `The mock upstream sends whole answers at once and streams of 64 tokens, the first after 50 ms, then 50 per second. Callers send
their next request after each answer. *32 KiB* is the length of each prompt. *In lockstep* means that all streams start
together and each token of all streams is sent at the same moment. The *bare proxy* checks the key, parses the body and pipes the call
through undici: a lower bound for a gateway in Node. *Sluice, one process* is \`npm start\`; *Sluice, Kafka* is an ingress and a worker.
The processes of a target share one core; callers, upstream and broker have the others.`,
  async measure(run) {
    using core = new OneCore()
    const footprint = await measureFootprint(run)
    const samples = await measureCalls(run, core)
    const loads = (isWhole: boolean) => samples.loads.filter((load) => load.startsWith('whole') === isWhole)
    const pinned = core.isPinned ? [] : ['Nothing was pinned: the machine has one core, or no `taskset`.']
    return [
      renderGoals(goalsOf(samples, footprint)),
      renderSamples(samples, TITLES, loads(true), WHOLE_COLUMNS),
      ...(loads(false).length > 0 ? [renderSamples(samples, TITLES, loads(false), STREAM_COLUMNS)] : []),
      ...comparisonOf(samples),
      ...pinned,
    ]
  },
}

async function measureFootprint(run: Run): Promise<{ readySeconds: number; idleMib: number }> {
  await using processes = run.processes()
  const started = await processes.node({
    ...{ name: 'footprint', script: '../services/main.js', nodeFlags: ['--expose-gc'], addressOn: 'stderr' },
    env: {
      ...{ PORT: '0', DATA_DIR: `${run.dir}/footprint`, SANDBOX: 'auto' },
      MODELS_FILE: resolve(import.meta.dirname, '../../models.yaml'),
    },
  })
  await sleep(SETTLE_MS)
  return { readySeconds: started.startSeconds, idleMib: residentMib(started.pid) }
}

async function measureCalls(run: Run, core: OneCore): Promise<Samples> {
  const { isQuick } = run.options
  const kafka = await run.kafka()
  if (kafka.pid !== undefined) core.release(kafka.pid)
  await using processes = run.processes()
  const targets = await startTargets(run, processes)
  for (const { pids } of targets) for (const pid of pids) core.take(pid)
  const loads = Object.entries(LOADS).filter(([name]) => !isQuick || QUICK_LOADS.includes(name))
  for (const target of targets) {
    run.print(`warming up ${target.name}`)
    for (const [, load] of loads) {
      const isLone = load.callers === 1 && target.name.endsWith('kafka')
      await runLoad(target.address, load, isQuick ? WARM_UP.quick : isLone ? WARM_UP.loneThroughKafka : WARM_UP.normal)
    }
  }
  const samples = new Samples()
  const cells = loads.flatMap(([name, load]) => targets.map((target) => ({ name, load, target })))
  await run.rounds(cells, async ({ name, load, target }, round) => {
    const figures = await measureLoad(target, load, run.seconds(1, load.shape === 'whole' ? 2 : 4))
    samples.add(target.name, name, round, figures)
    const { perSecond, p50, lagP50, cpu } = figures
    const times = load.shape === 'whole' ? `p50 ${p50.toFixed(2)} ms` : `lag p50 ${lagP50.toFixed(2)} ms`
    run.print(`${round} ${name}, ${target.name}: ${perSecond.toFixed(0)}/s, ${times}, CPU ${cpu.toFixed(3)}`)
  })
  return samples
}

async function startTargets(run: Run, processes: Processes): Promise<Target[]> {
  const upstream = await startUpstream(processes)
  const proxy = await startProxy(processes, upstream)
  const targets: Target[] = [
    { name: 'direct', address: { url: upstream, key: KEY }, pids: [], brokerPid: undefined },
    { name: 'proxy', address: { url: urlOf(proxy), key: KEY }, pids: [proxy.pid], brokerPid: undefined },
  ]
  const models = [upstreamModel('bench', upstream)]
  const { compare } = run.options
  const versions = compare === undefined ? [''] : ['', 'other-']
  for (const kafka of [undefined, await run.kafka()]) {
    for (const prefix of versions) {
      const name = `${prefix}${kafka ? 'kafka' : 'embedded'}`
      const version = prefix === '' ? undefined : compare
      const sluice = await startSluice(processes, { name: `calls-${name}`, models, kafka, version })
      const pids = sluice.processes.map(({ pid }) => pid)
      targets.push({ name, address: sluice, pids, brokerPid: kafka?.pid })
    }
  }
  const probe: Load = { shape: 'whole', callers: 1 }
  for (const { address } of targets) await untilAnswered(async () => (await runLoad(address, probe, 0)).failure)
  return targets
}

const CPU_COLUMNS = (unit: string, decimals: number): Column[] => [
  { title: `CPU ${unit}`, figure: 'cpu', decimals },
  { title: 'CPU × proxy', figure: 'cpu', decimals: 1, ratioTo: 'proxy' },
  { title: `broker CPU ${unit}`, figure: 'brokerCpu', decimals },
  { title: 'MiB', figure: 'mib', decimals: 0 },
]
const WHOLE_COLUMNS: readonly Column[] = [
  { title: 'answers/s', figure: 'perSecond', decimals: 0 },
  { title: '× proxy', figure: 'perSecond', decimals: 2, ratioTo: 'proxy' },
  { title: 'p50 ms', figure: 'p50', decimals: 2 },
  { title: 'p99 ms', figure: 'p99', decimals: 2 },
  { title: 'added p50 ms', figure: 'p50', decimals: 2, addedTo: 'direct' },
  ...CPU_COLUMNS('ms/answer', 3),
]
const STREAM_COLUMNS: readonly Column[] = [
  { title: 'tokens/s', figure: 'perSecond', decimals: 0 },
  { title: '× direct', figure: 'perSecond', decimals: 2, ratioTo: 'direct' },
  { title: 'first token p50 ms', figure: 'firstTokenP50', decimals: 1 },
  { title: 'added ms', figure: 'firstTokenP50', decimals: 1, addedTo: 'direct' },
  { title: 'lag p50 ms', figure: 'lagP50', decimals: 2 },
  { title: 'lag p99 ms', figure: 'lagP99', decimals: 1 },
  { title: 'stalls', figure: 'stalls', decimals: 0 },
  ...CPU_COLUMNS('µs/token', 1),
]

function goalsOf(samples: Samples, { readySeconds, idleMib }: { readySeconds: number; idleMib: number }): Goal[] {
  const [lone, whole, streams, lockstep] = [
    ...['whole, 1 caller', 'whole, 64 callers', '256 streams', '256 streams in lockstep'],
  ] as [string, string, string, string]
  const limits = [
    { target: 'embedded', wholeCpu: 1.75, addedMs: 1, tokenCpu: 1.5 },
    { target: 'kafka', wholeCpu: 2.5, addedMs: 5, tokenCpu: 2 },
  ]
  const goals = limits.flatMap(({ target, wholeCpu, addedMs, tokenCpu }): Goal[] => {
    const title = TITLES[target]
    const proxied = (load: string) => ({ measured: samples.ratio(target, 'proxy', load, 'cpu'), unit: '× proxy' })
    return [
      { name: `CPU of a whole answer, 64 callers, ${title}`, ...proxied(whole), max: wholeCpu },
      {
        name: `added p50, 1 caller, ${title}`,
        measured: samples.added(target, 'direct', lone, 'p50'),
        unit: 'ms',
        max: addedMs,
      },
      { name: `CPU of a token, 256 streams, ${title}`, ...proxied(streams), max: tokenCpu },
      {
        name: `lag p50, 256 streams in lockstep, ${title}`,
        measured: samples.median(target, lockstep, 'lagP50'),
        unit: 'ms',
        max: 5,
      },
      {
        name: `stalls, 256 streams, ${title}`,
        measured: samples.median(target, streams, 'stalls'),
        unit: '',
        max: 0,
        decimals: 0,
      },
    ]
  })
  return [
    ...goals,
    { name: 'time until `npm start` is ready', measured: readySeconds, unit: 's', max: 2 },
    { name: 'memory of `npm start` before the first call', measured: idleMib, unit: 'MiB', max: 200, decimals: 0 },
  ]
}

/**
 * Returns the figures of this version divided by those of the compared version. A ratio below 1 is better, except for
 * the rate.
 */
function comparisonOf(samples: Samples): string[] {
  const pairs = ['embedded', 'kafka'].filter((name) => samples.targets.includes(`other-${name}`))
  const figures = ['perSecond', 'p50', 'p99', 'firstTokenP50', 'lagP50', 'lagP99', 'cpu']
  return pairs.map((name) => {
    const own = new Samples()
    for (const sample of samples.all) if (sample.target.endsWith(name)) own.all.push(sample)
    const columns = figures.map((figure) => ({ title: `${figure} ×`, figure, decimals: 2, ratioTo: `other-${name}` }))
    return renderSamples(own, TITLES, own.loads, columns)
  })
}
