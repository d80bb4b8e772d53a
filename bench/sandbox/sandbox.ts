import { availableParallelism } from 'node:os'
import { setTimeout as sleep } from 'node:timers/promises'
import { parseConfig } from '#shared/config/config.ts'
import { openLog } from '#shared/log/log.ts'
import { sandboxAdapters } from '#shared/ports.ts'
import type { LoadAdapter } from '#shared/sandbox/choose.ts'
import type { Sandbox, SandboxAdapter } from '#shared/sandbox/sandbox.ts'
import { repeat } from '../figures/repeat.ts'
import { percentile } from '../figures/stats.ts'
import {
  DATA_DIR,
  type Latency,
  type Percentiles,
  PROGRAMS,
  type Program,
  type SandboxBenchOptions,
  type SandboxFigures,
  type SandboxResults,
} from './figures.ts'
import { SandboxMeter, type Side } from './meter.ts'
import { measureProcesses } from './processes.ts'

const TIMEOUT_MS = 60_000

/** Measures each sandbox that works on this machine at its port, one after another, then processes that are none. */
export async function measureSandbox(options: SandboxBenchOptions): Promise<SandboxResults> {
  await using meter = await SandboxMeter.open()
  // The adapter and the docker command both look there.
  if (meter.dockerHost !== undefined) process.env.DOCKER_HOST = meter.dockerHost
  const sandboxes = await measureAdapters(meter, options)
  const processes = await measureProcesses(meter, options)
  const figures = [...sandboxes.figures, ...processes.figures]
  return { figures, skipped: [...sandboxes.skipped, ...processes.skipped, ...withoutCpu(meter, figures)] }
}

function withoutCpu(meter: SandboxMeter, figures: readonly SandboxFigures[]): string[] {
  const without = figures.filter(({ programs }) => Number.isNaN(programs.print.cpu))
  return without.map(({ name }) => `CPU of ${name}: ${meter.whyNoCpu('docker')}`)
}

async function measureAdapters(meter: SandboxMeter, options: SandboxBenchOptions): Promise<SandboxResults> {
  const figures: SandboxFigures[] = []
  const skipped: string[] = []
  const config = parseConfig({ DATA_DIR, DOCKER_HOST: process.env.DOCKER_HOST })
  for (const adapter of sandboxAdapters(config, openLog('silent', 'bench'))) {
    options.signal.throwIfAborted()
    try {
      figures.push(await measureAdapter(adapter, meter, options))
    } catch (error) {
      options.signal.throwIfAborted()
      skipped.push(`${adapter.name}: ${error instanceof Error ? error.message : String(error)}`)
      options.print(`not measured: ${skipped.at(-1)}`)
    }
  }
  return { figures, skipped }
}

async function measureAdapter(
  { name, load }: LoadAdapter,
  meter: SandboxMeter,
  options: SandboxBenchOptions,
): Promise<SandboxFigures> {
  const adapter = await load()
  options.print(`sandbox ${name}: preparing`)
  await adapter.prepare(() => {}, options.signal)
  const cold = {
    print: await coldTimesOf(adapter, 'print', options),
    plot: await coldTimesOf(adapter, 'plot', options),
  }
  const side = name === 'docker' ? 'docker' : 'started'
  const sandbox = await adapter.open(options.signal)
  const untilReady = () => untilWarm(sandbox, side, meter, options.signal)
  const usedMs = () => meter.cpuMs(side)
  try {
    await runOnce(sandbox, PROGRAMS.plot)
    await untilReady()
    const idleMib = await meter.idleMib(side, sandbox.stats().idle)
    const print = await timesOf(sandbox, 'print', untilReady, usedMs, options)
    const plot = await timesOf(sandbox, 'plot', untilReady, usedMs, options)
    const perSecond = await rateOf(sandbox, options)
    options.print(`sandbox ${name}: print p50 ${print.p50.toFixed(1)} ms, ${perSecond.toFixed(1)} runs/s`)
    return { name, cold, programs: { print, plot }, perSecond, idleMib }
  } finally {
    await sandbox.close()
  }
}

/** From nothing to the first result. */
async function coldTimesOf(
  adapter: SandboxAdapter,
  program: Program,
  { opens, signal }: SandboxBenchOptions,
): Promise<Percentiles> {
  const times: number[] = []
  for (let i = 0; i < opens; i++) {
    const startedAt = performance.now()
    const sandbox = await adapter.open(signal)
    await runOnce(sandbox, PROGRAMS[program])
    times.push(performance.now() - startedAt)
    await sandbox.close()
  }
  return { p50: percentile(times, 0.5), p95: percentile(times, 0.95) }
}

async function timesOf(
  sandbox: Sandbox,
  program: Program,
  untilReady: () => Promise<void>,
  usedMs: () => number,
  { runs, signal }: SandboxBenchOptions,
): Promise<Latency> {
  const work = () => runOnce(sandbox, PROGRAMS[program])
  // The first runs pay for what is loaded once.
  for (let i = 0; i < 3; i++) await work()
  await untilReady()
  const before = usedMs()
  const times = await repeat(work, runs, signal, untilReady)
  // What follows a run is part of its cost: its container's removal, and the start of the one that takes its place.
  await untilReady()
  return { p50: percentile(times, 0.5), p95: percentile(times, 0.95), cpu: (usedMs() - before) / times.length }
}

/**
 * Where interpreters serve once, the next is made ready first, and nothing else goes on: removing the last one and starting
 * others would take turns with the run on the same cores. How fast that goes tells the rate.
 */
async function untilWarm(sandbox: Sandbox, side: Side, meter: SandboxMeter, signal: AbortSignal): Promise<void> {
  const giveUpAt = performance.now() + TIMEOUT_MS
  while (sandbox.stats().idle === 0 && performance.now() < giveUpAt) await sleep(20, undefined, { signal })
  await meter.untilRest(side, signal)
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
