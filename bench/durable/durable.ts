import { mkdirSync } from 'node:fs'
import { join } from 'node:path'
import packageJson from '../../package.json' with { type: 'json' }
import { sharesIn, type Where } from '../figures/where.ts'
import type { Kafka } from '../machine/kafka.ts'
import { Processes } from '../machine/processes.ts'
import type { DurableCell, DurableFigures } from './load.ts'
import type { DurablePart } from './parts.ts'
import { openPostgres, openRedis } from './servers.ts'
import { DURABLE_NAMES, type DurableName, type DurableTarget, type Servers, startDurableTarget } from './targets.ts'

/** One system under one load in one round. */
export interface DurableSample {
  readonly target: DurableName
  readonly cell: DurableCell
  readonly round: number
  readonly figures: DurableFigures
  /** CPU of one job in milliseconds, from its submit until it was completed, by what works for the system. */
  readonly cpu: readonly DurableCpu[]
}

/** What one part of a system used for one job. */
export interface DurableCpu {
  readonly part: string
  readonly ms: number
}

/** What a run found out about durable jobs. */
export interface DurableResults {
  readonly samples: readonly DurableSample[]
  /** Where the CPU of jobs that are submitted over HTTP goes. */
  readonly where: readonly Where[]
  /** What the systems stood on, such as `Redis 7.0.15`. */
  readonly servers: readonly string[]
  /** What could not be measured, and why. */
  readonly skipped: readonly string[]
}

/** How long and how often. */
export interface DurableOptions {
  readonly rounds: number
  readonly seconds: number
  readonly warmUpSeconds: number
  readonly systems: readonly DurableName[]
  readonly print: (text: string) => void
  readonly signal: AbortSignal
}

/** What is measured, in order. */
export const DURABLE_CELLS: readonly DurableCell[] = [
  { shape: 'submit', callers: 1 },
  { shape: 'submit', callers: 32 },
  { shape: 'busy', callers: 1 },
  { shape: 'busy', callers: 32 },
  { shape: 'whole', callers: 1 },
  { shape: 'whole', callers: 32 },
]

/** Longest a load may take, its remaining jobs included. */
const LOAD_MS_MAX = 300_000

/** Measures durable jobs: Sluice, BullMQ and pg-boss in turn, load by load, round by round. */
export async function measureDurable(
  options: DurableOptions,
  kafka: Kafka,
  dir: string,
  profileDir: string | undefined,
): Promise<DurableResults> {
  await using redis = await orReason(openRedis(dir))
  await using postgres = await orReason(openPostgres())
  // Stopped before the servers they work with.
  await using processes = new Processes(dir, profileDir)
  const skipped = [redis.reason && `BullMQ: ${redis.reason}`, postgres.reason && `all on Postgres: ${postgres.reason}`]
  for (const reason of skipped) if (reason) options.print(`skipped: ${reason}`)
  const servers = { kafka, redis: redis.server, postgres: postgres.server }
  const targets = await startAll(options, servers, processes)
  return {
    samples: await measureAll(options, targets),
    where: await profileSubmits(options, servers, dir),
    servers: [
      ...(postgres.server ? [`PostgreSQL ${postgres.server.version}`] : []),
      ...(redis.server ? [`Redis ${redis.server.version}, BullMQ ${versionOf('bullmq')}`] : []),
      ...(postgres.server ? [`pg-boss ${versionOf('pg-boss')}`] : []),
    ],
    skipped: skipped.filter((reason) => reason !== undefined),
  }
}

async function startAll(options: DurableOptions, servers: Servers, processes: Processes): Promise<DurableTarget[]> {
  const targets: DurableTarget[] = []
  for (const name of DURABLE_NAMES.filter((name) => options.systems.includes(name))) {
    const target = await startDurableTarget(name, servers, processes)
    if (!target) continue
    options.print(`starting durable jobs: ${name}, warming it up`)
    for (const cell of DURABLE_CELLS) {
      options.signal.throwIfAborted()
      await put(target, cell, options.warmUpSeconds)
    }
    await untilSteady(options, target)
    targets.push(target)
  }
  return targets
}

/** What a system does that lasts longest before it is as fast as it gets: all of its parts work. */
const STEADY_CELL: DurableCell = { shape: 'whole', callers: 32 }
/** A system is as fast as it gets once its best rate has risen by no more than this part in so many loads. */
const STEADY_RISE = 0.03
const STEADY_LOADS = 8
/** Longest that this is waited for, in units of a warm-up. */
const STEADY_WAIT = 45

/** Some compile while they run: the JVM of a Kafka for a minute, in which its jobs come to cost a quarter. */
async function untilSteady({ warmUpSeconds, signal, print }: DurableOptions, target: DurableTarget): Promise<void> {
  let best = 0
  for (let loads = 0, since = 0; loads < STEADY_WAIT && since < STEADY_LOADS; loads++) {
    signal.throwIfAborted()
    const { perSecond } = await put(target, STEADY_CELL, warmUpSeconds)
    since = perSecond > best * (1 + STEADY_RISE) ? 0 : since + 1
    if (since === STEADY_LOADS) print(`${target.name} is warm after ${loads + 1} loads: ${best.toFixed(0)} jobs/s`)
    best = Math.max(best, perSecond)
  }
}

async function measureAll(options: DurableOptions, targets: readonly DurableTarget[]): Promise<DurableSample[]> {
  const samples: DurableSample[] = []
  for (let round = 1; round <= options.rounds; round++) {
    for (const cell of DURABLE_CELLS) {
      for (const target of targets) {
        options.signal.throwIfAborted()
        const before = target.parts.map((part) => part.cpuMs())
        const figures = await put(target, cell, options.seconds)
        const used = (part: DurablePart, i: number) => (part.cpuMs() - (before[i] ?? 0)) / figures.jobs
        const cpu = target.parts.map((part, i) => ({ part: part.name, ms: used(part, i) }))
        samples.push({ target: target.name, cell, round, figures, cpu })
        options.print(progressOf(target, cell, `${round}/${options.rounds}`, figures))
      }
    }
  }
  return samples
}

/** What takes submits over HTTP, by its part and its process: a server that keeps nothing, and the ingress. */
const PROFILED = [
  { name: 'http-bare', part: 'the server', process: 'http-bare-server', title: 'HTTP alone' },
  { name: 'http', part: 'ingress', process: 'http-ingress', title: 'ingress' },
] as const
const PROFILED_CELL: DurableCell = { shape: 'submit', callers: 32 }
/** Part of a profile that counts, from its end on: before that code was not warm. */
const PROFILED_SHARE = 0.5

/** Each in processes of its own: a profile costs some of what it shows. */
async function profileSubmits(options: DurableOptions, servers: Servers, dir: string): Promise<Where[]> {
  const columns: Where[] = []
  for (const { name, part, process, title } of PROFILED) {
    if (!options.systems.includes(name)) continue
    const place = join(dir, `${name}-profiled`)
    mkdirSync(place)
    let cpu: number | undefined
    {
      await using processes = new Processes(place, place)
      const target = await startDurableTarget(name, servers, processes)
      if (!target) continue
      await put(target, PROFILED_CELL, options.warmUpSeconds)
      const cpuMs = () => target.parts.find((one) => one.name === part)?.cpuMs() ?? Number.NaN
      const before = cpuMs()
      const { jobs } = await put(target, PROFILED_CELL, options.seconds)
      cpu = (cpuMs() - before) / jobs
      options.print(`profiled ${name}: CPU ${cpu.toFixed(3)}`)
    }
    columns.push({ title, cpu, shares: sharesIn(place, PROFILED_SHARE, process) })
  }
  return columns
}

/** Has a driver put one load on its system. @throws Error with what went wrong there */
async function put({ name, url }: DurableTarget, cell: DurableCell, seconds: number): Promise<DurableFigures> {
  const signal = AbortSignal.timeout(LOAD_MS_MAX)
  const response = await fetch(new URL(`/${cell.shape}/${cell.callers}/${seconds}`, url), { signal })
  const text = await response.text()
  if (response.status !== 200) throw new Error(`durable jobs of ${name}: ${text}`)
  return JSON.parse(text) as DurableFigures
}

function progressOf({ name }: DurableTarget, cell: DurableCell, round: string, figures: DurableFigures): string {
  const { perSecond, p50, p99, completedPerSecond } = figures
  const times = `p50 ${p50.toFixed(2)} ms, p99 ${p99.toFixed(2)} ms`
  const rates = `${perSecond.toFixed(0)}/s, ${times}, completed ${completedPerSecond.toFixed(0)}/s`
  return `${round} ${`${cell.shape}-${cell.callers}`.padEnd(9)} ${name.padEnd(14)} ${rates}`
}

function versionOf(name: 'bullmq' | 'pg-boss'): string {
  return packageJson.devDependencies[name]
}

/** A server, or why there is none; disposing it stops it. */
async function orReason<T extends AsyncDisposable>(opening: Promise<T | string>) {
  const opened = await opening
  const [server, reason] = typeof opened === 'string' ? [undefined, opened] : [opened, undefined]
  return { server, reason, [Symbol.asyncDispose]: async () => await server?.[Symbol.asyncDispose]() }
}
