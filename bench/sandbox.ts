import { availableParallelism } from 'node:os'
import { setTimeout as sleep } from 'node:timers/promises'
import { parseConfig } from '#shared/config.ts'
import { openLog } from '#shared/log.ts'
import { sandboxAdapters } from '#shared/ports.ts'
import type { LoadAdapter } from '#shared/sandbox/open-sandbox.ts'
import type { Sandbox } from '#shared/sandbox/sandbox.ts'
import { findDocker } from '../test/support/docker.ts'
import { CpuGroup } from './cpu-group.ts'
import { startedMib } from './process-tree.ts'
import { repeat } from './repeat.ts'
import { measureProcesses } from './sandbox-processes.ts'
import { percentile } from './stats.ts'

/** The programs that are measured. */
export const PROGRAMS = {
  print: 'print(1)',
  plot: "import matplotlib.pyplot as plt\nplt.plot([1, 4, 9])\nplt.title('squares')\nplt.show()",
} as const
export type Program = keyof typeof PROGRAMS

/** Milliseconds from asking until the result is there; NaN where it was not measured. */
export interface Latency {
  readonly p50: number
  readonly p95: number
  /** CPU of one run, in milliseconds: of the service's side and of all processes it started; NaN where nobody may tell. */
  readonly cpu: number
}

/** One way to run code. */
export interface SandboxFigures {
  readonly name: string
  /** From nothing to the first result, in milliseconds: median. */
  readonly coldMs: number
  readonly programs: Readonly<Record<Program, Latency>>
  /** Runs of print(1) a second, with two callers a core. */
  readonly perSecond: number
  /** Resident memory of what runs while nothing is asked, in MiB. */
  readonly idleMib: number
}

/** What a run found out about sandboxes. */
export interface SandboxResults {
  readonly figures: readonly SandboxFigures[]
  /** What could not be measured, and why. */
  readonly skipped: readonly string[]
}

/** How often, and how long. */
export interface SandboxBenchOptions {
  readonly opens: number
  readonly runs: number
  readonly seconds: number
  readonly print: (text: string) => void
  readonly signal: AbortSignal
}

/** What is prepared for the service is used here as well. */
const DATA_DIR = '.data'
const TIMEOUT_MS = 60_000

/** Measures each sandbox that works on this machine at its port, one after another, then processes that are none. */
export async function measureSandbox(options: SandboxBenchOptions): Promise<SandboxResults> {
  const docker = await findDocker()
  // The adapter and the docker command both look there.
  if (typeof docker !== 'string') process.env.DOCKER_HOST = `unix://${docker.socketPath}`
  try {
    const sandboxes = await measureAdapters(options)
    const processes = await measureProcesses(options)
    return {
      figures: [...sandboxes.figures, ...processes.figures],
      skipped: [...sandboxes.skipped, ...processes.skipped],
    }
  } finally {
    if (typeof docker !== 'string') await docker.stop()
  }
}

async function measureAdapters(options: SandboxBenchOptions): Promise<SandboxResults> {
  const figures: SandboxFigures[] = []
  const skipped: string[] = []
  const config = parseConfig({ DATA_DIR, DOCKER_HOST: process.env.DOCKER_HOST })
  for (const adapter of sandboxAdapters(config, openLog('silent', 'bench'))) {
    options.signal.throwIfAborted()
    try {
      figures.push(await measureAdapter(adapter, options))
    } catch (error) {
      options.signal.throwIfAborted()
      skipped.push(`${adapter.name}: ${error instanceof Error ? error.message : String(error)}`)
      options.print(`not measured: ${skipped.at(-1)}`)
    }
  }
  return { figures, skipped }
}

async function measureAdapter({ name, load }: LoadAdapter, options: SandboxBenchOptions): Promise<SandboxFigures> {
  const adapter = await load()
  options.print(`sandbox ${name}: preparing`)
  await adapter.prepare(() => {}, options.signal)
  const cold: number[] = []
  for (let i = 0; i < options.opens; i++) {
    const startedAt = performance.now()
    const sandbox = await adapter.open(options.signal)
    await runOnce(sandbox, PROGRAMS.print)
    cold.push(performance.now() - startedAt)
    await sandbox.close()
  }
  const before = startedMib(process.pid)
  // Containers are the daemon's children: their CPU and memory cannot be told from what else it does.
  const isOurs = name !== 'docker'
  using group = isOurs ? CpuGroup.open() : undefined
  const sandbox = await adapter.open(options.signal)
  try {
    await runOnce(sandbox, PROGRAMS.plot)
    const idleMib = startedMib(process.pid) - before
    const print = await timesOf(sandbox, 'print', group, options)
    const plot = await timesOf(sandbox, 'plot', group, options)
    const perSecond = await rateOf(sandbox, options)
    options.print(`sandbox ${name}: print p50 ${print.p50.toFixed(1)} ms, ${perSecond.toFixed(1)} runs/s`)
    const programs = { print, plot }
    return { name, coldMs: percentile(cold, 0.5), programs, perSecond, idleMib: isOurs ? idleMib : Number.NaN }
  } finally {
    await sandbox.close()
  }
}

async function timesOf(
  sandbox: Sandbox,
  program: Program,
  group: CpuGroup | undefined,
  { runs, signal }: SandboxBenchOptions,
): Promise<Latency> {
  // The first runs pay for what is loaded once.
  for (let i = 0; i < 3; i++) await runOnce(sandbox, PROGRAMS[program])
  const cpuBefore = group?.ms ?? Number.NaN
  const times = await repeat(
    () => runOnce(sandbox, PROGRAMS[program]),
    runs,
    signal,
    () => untilWarm(sandbox, signal),
  )
  const cpu = ((group?.ms ?? Number.NaN) - cpuBefore) / times.length
  return { p50: percentile(times, 0.5), p95: percentile(times, 0.95), cpu }
}

/** Where interpreters serve once, the next one is made ready first: how fast that goes tells the rate. */
async function untilWarm(sandbox: Sandbox, signal: AbortSignal): Promise<void> {
  const giveUpAt = performance.now() + TIMEOUT_MS
  while (sandbox.stats().idle === 0 && performance.now() < giveUpAt) await sleep(20, undefined, { signal })
}

async function rateOf(sandbox: Sandbox, { seconds, signal }: SandboxBenchOptions): Promise<number> {
  const startedAt = performance.now()
  let runs = 0
  const caller = async () => {
    while (performance.now() - startedAt < seconds * 1_000) {
      signal.throwIfAborted()
      await runOnce(sandbox, PROGRAMS.print)
      runs++
    }
  }
  await Promise.all(Array.from({ length: 2 * availableParallelism() }, caller))
  return (runs * 1_000) / (performance.now() - startedAt)
}

/** @throws Error when it does not end well */
async function runOnce(sandbox: Sandbox, code: string): Promise<void> {
  const job = { code, timeoutMs: TIMEOUT_MS, scan: true }
  const end = await sandbox.run(job, () => {}, AbortSignal.timeout(2 * TIMEOUT_MS))
  if (end.type !== 'exit' || end.exitCode !== 0) throw new Error(`a run ended with ${JSON.stringify(end)}`)
}
