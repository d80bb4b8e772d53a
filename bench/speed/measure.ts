import { mkdirSync } from 'node:fs'
import { setTimeout as sleep } from 'node:timers/promises'
import { Callers } from '../calls/load.ts'
import { type Cell, measure, type Sample } from '../calls/measure.ts'
import {
  launchTarget,
  type Others,
  startTarget,
  startUpstream,
  type Target,
  type TargetName,
} from '../calls/targets.ts'
import { nameOf } from '../figures/figures.ts'
import { percentile } from '../figures/stats.ts'
import { sharesIn, type Where } from '../figures/where.ts'
import type { Kafka } from '../machine/kafka.ts'
import { OneCore } from '../machine/one-core.ts'
import { Processes } from '../machine/processes.ts'
import { cpuMs, residentMib } from '../machine/usage.ts'

export const WHOLE: Cell = { shape: 'whole', callers: 64 }
export const LONG: Cell = { shape: 'whole', callers: 64, promptKib: 32 }
export const LONGER: Cell = { shape: 'whole', callers: 64, promptKib: 128 }
export const SPARSE: Cell = { shape: 'sparse', callers: 1 }
export const STREAMS: Cell = { shape: 'streams', callers: 256 }
export const FEW_IN_STEP: Cell = { shape: 'lockstep', callers: 64 }
export const MANY_IN_STEP: Cell = { shape: 'lockstep', callers: 256 }
const CELLS: readonly Cell[] = [WHOLE, LONG, LONGER, SPARSE, STREAMS, FEW_IN_STEP, MANY_IN_STEP]

/** Calls of one caller after a start. */
export const FIRST_CALLS = 100
/** So many calls later the same figure is what calls cost that are not the first. */
export const LATER_CALLS = 1_000
/** Sparse calls are few: their CPU is read over a longer time. */
const SPARSE_TIMES = 3
/** What a start leaves to do is done after this. */
const SETTLE_MS = 5_000
/** Longest time that the first calls may take. */
const FIRST_CALLS_SECONDS = 60

/** How speed is measured. */
export interface SpeedOptions extends Others {
  readonly targets: readonly TargetName[]
  readonly rounds: number
  /** Of each load. */
  readonly seconds: number
  readonly warmUpSeconds: number
  readonly idleSeconds: number
  /** Default: all of them. */
  readonly cells?: readonly Cell[]
  readonly profileDir: string | undefined
  readonly print: (line: string) => void
  readonly signal: AbortSignal
}

/** One target right after its start, in one round. Times in milliseconds. */
export interface StartSample {
  readonly target: TargetName
  readonly round: number
  /** CPU of its processes before the first call, in % of a core. */
  readonly idleCpu: number
  /** Their memory then. */
  readonly idleMib: number
  readonly firstCall: number
  /** Of the first calls. */
  readonly firstCallsP50: number
  /** Of as many, of which the last is the thousandth. */
  readonly laterCallsP50: number
}

/** What was measured. */
export interface SpeedResults {
  readonly samples: readonly Sample[]
  readonly starts: readonly StartSample[]
  readonly wheres: readonly { readonly cell: Cell; readonly columns: readonly Where[] }[]
}

/** What is profiled, each in a process of its own: a profile costs some of what it shows. */
const PROFILED: readonly (readonly [TargetName, string])[] = [
  ['proxy', 'bare proxy'],
  ['embedded', 'Sluice, one process'],
  ['kafka', 'Sluice, Kafka'],
]

/** Measures each target on a core of its own. @throws Error when a call failed */
export async function measureSpeed(options: SpeedOptions, kafka: Kafka, dir: string): Promise<SpeedResults> {
  using core = new OneCore()
  if (kafka.pid !== undefined) core.release(kafka.pid)
  // First, for a broker that runs already has long been warm.
  const samples = await measureLoads(options, kafka, `${dir}/speed`, core)
  const starts: StartSample[] = []
  // The first start of a version compiles it, and holds what that takes; the first call through a new Kafka waits a second until the
  // broker has made what share groups need. What is measured is any later start.
  if (options.idleSeconds > 0)
    await (await startAll(startTarget, options, kafka, `${dir}/first`, core))[Symbol.asyncDispose]()
  for (let round = 1; options.idleSeconds > 0 && round <= options.rounds; round++) {
    starts.push(...(await measureStarts(options, kafka, `${dir}/starts-${round}`, core, round)))
  }
  return { samples, starts, wheres: await measureWheres(options, kafka, `${dir}/where`, core) }
}

/** Where the CPU of a whole answer, of a token and of a sparse call goes. */
async function measureWheres(options: SpeedOptions, kafka: Kafka, dir: string, core: OneCore) {
  mkdirSync(dir)
  const wheres: SpeedResults['wheres'][number][] = []
  for (const cell of [WHOLE, STREAMS, SPARSE]) {
    const columns: Where[] = []
    for (const [name, title] of PROFILED.filter(([name]) => options.targets.includes(name))) {
      const place = `${dir}/${nameOf(cell)}-${name}`
      const profileDir = `${place}-profiles`
      const own = { ...options, targets: [name], profileDir }
      const cpu = await measureProfiled(own, cell, kafka, place, core)
      columns.push({ title, cpu, shares: sharesIn(profileDir, PROFILED_SHARE) })
    }
    wheres.push({ cell, columns })
  }
  return wheres
}

/** Part of a profile that counts, from its end on: before that code was not warm. */
const PROFILED_SHARE = 0.4

async function measureProfiled(
  options: SpeedOptions,
  cell: Cell,
  kafka: Kafka,
  dir: string,
  core: OneCore,
): Promise<number> {
  await using started = await startAll(startTarget, options, kafka, dir, core)
  const [target] = started.targets
  if (!target) throw new Error('no target was started')
  const seconds = secondsOf(cell, options)
  await measure(target, cell, 0, options.warmUpSeconds + seconds)
  const { cpu } = await measure(target, cell, 1, seconds)
  options.print(`profiled ${nameOf(cell)} ${target.name}: CPU ${cpu.toFixed(3)}`)
  return cpu
}

/** All are idle together, then each is called. */
async function measureStarts(
  options: SpeedOptions,
  kafka: Kafka,
  dir: string,
  core: OneCore,
  round: number,
): Promise<StartSample[]> {
  await using started = await startAll(launchTarget, { ...options, profileDir: undefined }, kafka, dir, core)
  await sleep(SETTLE_MS, undefined, options)
  const before = started.targets.map(cpuOf)
  await sleep(options.idleSeconds * 1_000, undefined, options)
  const idle = started.targets.map((target, index) => ({
    idleCpu: (cpuOf(target) - (before[index] ?? 0)) / options.idleSeconds / 10,
    idleMib: target.processes.reduce((sum, { pid }) => sum + residentMib(pid), 0),
  }))
  const samples: StartSample[] = []
  for (const [index, target] of started.targets.entries()) {
    const sample = { target: target.name, round, idleCpu: 0, idleMib: 0, ...idle[index], ...(await callFirst(target)) }
    samples.push(sample)
    const { idleCpu, idleMib, firstCall, firstCallsP50, laterCallsP50 } = sample
    const costs = `idle ${idleCpu.toFixed(2)} % of a core, ${idleMib.toFixed(0)} MiB`
    const times = `first call ${firstCall.toFixed(1)} ms, first calls p50 ${firstCallsP50.toFixed(2)} ms, later ${laterCallsP50.toFixed(2)} ms`
    options.print(`${round}/${options.rounds} ${'start'.padEnd(12)} ${target.name.padEnd(15)} ${costs}, ${times}`)
  }
  return samples
}

type CallTimes = Pick<StartSample, 'firstCall' | 'firstCallsP50' | 'laterCallsP50'>

async function callFirst({ name, address }: Target): Promise<CallTimes> {
  const callers = await Callers.open(address, 'whole', 1)
  const { latencies, failure } = await callers.run(FIRST_CALLS_SECONDS, LATER_CALLS).finally(() => callers.close())
  if (failure !== undefined) throw new Error(`first calls failed through ${name}: ${failure}`)
  return {
    firstCall: latencies[0] ?? Number.NaN,
    firstCallsP50: percentile(latencies.slice(0, FIRST_CALLS), 0.5),
    laterCallsP50: percentile(latencies.slice(-FIRST_CALLS), 0.5),
  }
}

async function measureLoads(options: SpeedOptions, kafka: Kafka, dir: string, core: OneCore): Promise<Sample[]> {
  const { cells = CELLS, rounds, warmUpSeconds, print, signal } = options
  await using started = await startAll(startTarget, options, kafka, dir, core)
  for (const target of started.targets) {
    print(`warming up ${target.name}`)
    for (const cell of cells) await measure(target, cell, 0, warmUpSeconds)
  }
  const samples: Sample[] = []
  for (let round = 1; round <= rounds; round++) {
    for (const cell of cells) {
      for (const target of started.targets) {
        signal.throwIfAborted()
        const sample = await measure(target, cell, round, secondsOf(cell, options))
        if (sample.failures > 0) throw new Error(`calls failed through ${target.name}: ${sample.failure}`)
        samples.push(sample)
        print(progressOf(sample, cell, rounds))
      }
    }
  }
  return samples
}

function secondsOf({ shape }: Cell, { seconds }: SpeedOptions): number {
  return seconds * (shape === 'sparse' ? SPARSE_TIMES : 1)
}

async function startAll(
  start: typeof startTarget,
  { targets: names, profileDir, beside, gateways }: SpeedOptions,
  kafka: Kafka,
  dir: string,
  core: OneCore,
): Promise<AsyncDisposable & { readonly targets: readonly Target[] }> {
  mkdirSync(dir)
  const processes = new Processes(dir, profileDir)
  try {
    const upstream = await startUpstream(processes)
    const targets: Target[] = []
    for (const name of names) {
      const target = await start(name, upstream, processes, kafka, { beside, gateways })
      for (const { pid } of target.processes) core.take(pid)
      targets.push(target)
    }
    return { targets, [Symbol.asyncDispose]: () => processes[Symbol.asyncDispose]() }
  } catch (error) {
    await processes[Symbol.asyncDispose]()
    throw error
  }
}

function cpuOf({ processes }: Target): number {
  return processes.reduce((sum, { pid }) => sum + cpuMs(pid), 0)
}

function progressOf(sample: Sample, cell: Cell, rounds: number): string {
  const isWhole = Number.isNaN(sample.lagP50)
  const times = isWhole
    ? `p50 ${sample.latencyP50.toFixed(2)}, p99 ${sample.latencyP99.toFixed(1)} ms`
    : `first token ${sample.firstTokenP50.toFixed(1)}, lag p50 ${sample.lagP50.toFixed(2)}, p99 ${sample.lagP99.toFixed(1)} ms`
  const unit = isWhole ? 'ms/answer' : 'µs/token'
  const cores = sample.cores.map(({ name, cores }) => `${name} ${cores.toFixed(2)}`).join(', ')
  const place = `${sample.round}/${rounds} ${nameOf(cell).padEnd(12)} ${sample.target.padEnd(15)}`
  return `${place} ${times}, CPU ${sample.cpu.toFixed(3)} ${unit} (${cores})`
}
