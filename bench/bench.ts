/**
 * The benchmark, one command: starts everything on this machine, puts the same load on each target in turn, and prints
 * what came out as ratios within the same round. docs/internals/benchmarks.md says how to read it.
 */
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { type Cell, measure, type Sample } from './calls/measure.ts'
import { startTarget, startUpstream, type Target } from './calls/targets.ts'
import { type DurableResults, measureDurable } from './durable/durable.ts'
import { measureEmbeddings } from './embeddings/embeddings.ts'
import { nameOf } from './figures/figures.ts'
import { type Duration, type Results, renderDocument, renderResults, type SectionResults } from './figures/report.ts'
import { findGateways, type Gateway } from './gateways/gateways.ts'
import { measureFootprint } from './machine/footprint.ts'
import { type Kafka, openKafka } from './machine/kafka.ts'
import { Processes } from './machine/processes.ts'
import { machineCpuMs } from './machine/usage.ts'
import { type Options, readOptions } from './options.ts'
import { measureResearch } from './research/research.ts'
import { measureSandbox } from './sandbox/sandbox.ts'
import { SECTIONS } from './sections.ts'
import { measureTranscription } from './transcription/transcription.ts'

const DOCUMENT = new URL('../docs/internals/benchmarks.md', import.meta.url)
const interrupted = new AbortController()

process.exitCode = await main()

async function main(): Promise<number> {
  for (const signal of ['SIGINT', 'SIGTERM'] as const) process.on(signal, () => interrupted.abort())
  try {
    if (process.platform !== 'linux') throw new Error('CPU and memory are read from /proc: this needs Linux')
    const options = readOptions()
    const results = await runAll(options)
    print(`\n${renderResults(results)}`)
    if (options.write) {
      writeFileSync(DOCUMENT, renderDocument(results, commandLine(), readFileSync(DOCUMENT, 'utf8')))
    }
    const samples = [...(results.calls?.samples ?? []), ...(results.embeddings?.samples ?? [])]
    const failed = samples.find((sample) => sample.failures > 0)
    if (failed) throw new Error(`calls failed, such as through ${failed.target}: ${failed.failure}`)
    return 0
  } catch (error) {
    process.stderr.write(`bench: ${interrupted.signal.aborted ? 'interrupted' : String(error)}\n`)
    return 1
  }
}

/** The command as one would type it. */
function commandLine(): string {
  const options = process.argv.slice(2)
  return ['npm run bench', ...(options.length > 0 ? ['--', ...options] : [])].join(' ')
}

async function runAll(options: Options): Promise<Results> {
  const dir = mkdtempSync(join(tmpdir(), 'sluice-bench-'))
  const needsKafka =
    options.targets.includes('kafka') ||
    options.durable.length + options.sections.length > 0 ||
    options.embeddings ||
    options.transcription
  try {
    const gateways = await findGateways(options.gateways, options.install, print)
    await using kafka = needsKafka ? await openBroker(dir) : undefined
    const calls = options.targets.length > 0 ? await timed(() => runCalls(options, dir, kafka, gateways)) : undefined
    const durable = kafka && options.durable.length > 0 ? await timed(() => runDurable(options, dir, kafka)) : undefined
    const embeddings = kafka && options.embeddings ? await timed(() => runEmbeddings(options, dir, kafka)) : undefined
    const transcription = options.transcription ? await timed(() => runTranscription(options, dir, kafka)) : undefined
    const sandbox = options.sandbox ? await timed(() => runSandbox(options)) : undefined
    const research = options.research ? await timed(() => runResearch(options, dir)) : undefined
    const sections = kafka ? await runSections(options, dir, kafka, gateways) : []
    return { calls, durable, embeddings, transcription, sandbox, research, sections, kafkaVersion: kafka?.version }
  } finally {
    rmSync(dir, { recursive: true, force: true })
  }
}

/** Adds how long it took, and how busy the machine was meanwhile. */
async function timed<T extends object>(work: () => Promise<T>): Promise<T & Duration> {
  const [startedAt, cpuBefore] = [performance.now(), machineCpuMs()]
  const found = await work()
  const ms = performance.now() - startedAt
  return { ...found, seconds: ms / 1_000, coresUsed: (machineCpuMs() - cpuBefore) / ms }
}

async function runCalls(options: Options, dir: string, kafka: Kafka | undefined, gateways: readonly Gateway[]) {
  await using processes = new Processes(dir, options.profileDir)
  const footprint = await measureFootprint(processes)
  const targets = await startTargets(options, processes, kafka, gateways)
  return { samples: await measureAll(options, targets), footprint }
}

async function runDurable(options: Options, dir: string, kafka: Kafka): Promise<DurableResults> {
  const { rounds, durable: systems, durableSeconds: seconds, durableWarmUpSeconds: warmUpSeconds } = options
  const how = { rounds, systems, seconds, warmUpSeconds, print, signal: interrupted.signal }
  return await measureDurable(how, kafka, dir, options.profileDir)
}

async function runEmbeddings(options: Options, dir: string, kafka: Kafka) {
  const { rounds, durableSeconds: seconds, durableWarmUpSeconds: warmUpSeconds } = options
  const how = { rounds, seconds, warmUpSeconds, print, signal: interrupted.signal }
  return await measureEmbeddings(how, kafka, dir, options.profileDir)
}

async function runTranscription(options: Options, dir: string, kafka: Kafka | undefined) {
  return await measureTranscription({ ...options.speech, print, signal: interrupted.signal }, kafka, dir)
}

async function runSandbox(options: Options) {
  return await measureSandbox({ ...options.code, print, signal: interrupted.signal })
}

async function runResearch({ questions }: Options, dir: string) {
  return await measureResearch({ questions, print, signal: interrupted.signal }, dir)
}

async function runSections(
  { sections, isQuick, sectionSeconds: seconds, rounds, hangSeconds, beside, profileDir }: Options,
  dir: string,
  kafka: Kafka,
  gateways: readonly Gateway[],
): Promise<SectionResults[]> {
  const results: SectionResults[] = []
  for (const section of SECTIONS.filter(({ name }) => sections.includes(name))) {
    const { signal } = interrupted
    const how = { kafka, dir, isQuick, seconds, rounds, hangSeconds, beside, gateways, profileDir, print, signal }
    results.push(await timed(async () => ({ section, tables: await section.measure(how) })))
  }
  return results
}

async function openBroker(dir: string): Promise<Kafka> {
  print('starting Kafka')
  return await openKafka(dir)
}

async function startTargets(
  options: Options,
  processes: Processes,
  kafka: Kafka | undefined,
  gateways: readonly Gateway[],
): Promise<Target[]> {
  const upstream = await startUpstream(processes)
  const targets: Target[] = []
  const others = gateways.map(({ name }) => name)
  const names = options.targets.flatMap((name) => (name === 'direct' ? [name, ...others] : [name]))
  for (const name of names) {
    print(`starting ${name}, warming it up`)
    const target = await startTarget(name, upstream, processes, kafka, { beside: options.beside, gateways })
    targets.push(target)
    // Compilers first, the broker's above all: what is measured are processes that have worked for a while. A lone caller
    // makes the broker handle a request each, many callers share them.
    const warmUps: Cell[] = [1, 64].map((callers) => ({ shape: 'whole', callers }))
    for (const cell of [...warmUps, { shape: 'streams', callers: 64 } as const]) {
      interrupted.signal.throwIfAborted()
      await measure(target, cell, 0, options.warmUpSeconds(target.name, cell))
    }
  }
  return targets
}

/** Visits the targets in turn, cell by cell, round by round, so that whatever the machine does meanwhile hits all alike. */
async function measureAll(options: Options, targets: readonly Target[]): Promise<Sample[]> {
  const samples: Sample[] = []
  for (let round = 1; round <= options.rounds; round++) {
    for (const cell of options.cells) {
      for (const target of targets) {
        interrupted.signal.throwIfAborted()
        const sample = await measure(target, cell, round, options.seconds(cell))
        samples.push(sample)
        print(progressOf(sample, cell, options.rounds))
      }
    }
  }
  return samples
}

function progressOf(sample: Sample, cell: Cell, rounds: number): string {
  const isWhole = cell.shape === 'whole'
  const rate = isWhole
    ? `${sample.answersPerSecond.toFixed(0)} answers/s`
    : `${sample.tokensPerSecond.toFixed(0)} tokens/s`
  const time = isWhole ? `p50 ${sample.latencyP50.toFixed(2)} ms` : `lag p50 ${sample.lagP50.toFixed(2)} ms`
  const cpu = Number.isNaN(sample.cpu) ? '' : `, CPU ${sample.cpu.toFixed(3)} ${isWhole ? 'ms/answer' : 'µs/token'}`
  const cores = sample.cores.map(({ name, cores }) => `${name} ${cores.toFixed(2)}`).join(', ')
  const failures = sample.failures > 0 ? `, ${sample.failures} FAILED` : ''
  const name = nameOf(cell).padEnd(12)
  return `${sample.round}/${rounds} ${name} ${sample.target.padEnd(9)} ${rate}, ${time}${cpu} (${cores})${failures}`
}

function print(text: string): void {
  process.stdout.write(`${text}\n`)
}
