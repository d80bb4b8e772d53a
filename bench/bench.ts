/*
 * The benchmark: `npm run bench -- --help`. Each section starts its processes, measures its targets in alternation and prints tables in
 * Markdown. The figures in docs/internals/benchmarks.md were copied from such tables.
 */
import { mkdirSync, mkdtempSync, rmSync } from 'node:fs'
import { availableParallelism, cpus, tmpdir, totalmem } from 'node:os'
import { join, resolve } from 'node:path'
import { parseArgs } from 'node:util'
import { AFFINITY } from './affinity/affinity.ts'
import { AFFINITY_CPU } from './affinity/cpu.ts'
import { CALLS } from './calls/calls.ts'
import { DOCUMENTS } from './documents/documents.ts'
import { DURABLE } from './durable/durable.ts'
import { EMBEDDINGS } from './embeddings/embeddings.ts'
import { machineCpuMs } from './machine/usage.ts'
import { OVERLOAD } from './overload/overload.ts'
import { PATH } from './path/path.ts'
import { QUALITY } from './quality/quality.ts'
import { REQUESTS } from './requests/requests.ts'
import { RESEARCH } from './research/research.ts'
import { Run, type RunOptions, type Section } from './section.ts'
import { TELEMETRY } from './telemetry/telemetry.ts'
import { TRANSCRIPTION } from './transcription/transcription.ts'

const SECTIONS: readonly Section[] = [
  CALLS,
  PATH,
  DURABLE,
  OVERLOAD,
  EMBEDDINGS,
  TRANSCRIPTION,
  REQUESTS,
  RESEARCH,
  DOCUMENTS,
  QUALITY,
  AFFINITY,
  AFFINITY_CPU,
  TELEMETRY,
]

const HELP = `Usage: npm run bench -- [options]

Measures Sluice on this machine, next to baselines in the same run, and prints tables in Markdown. Targets alternate, so that other
work on the machine affects all of them; figures are medians over the rounds. Needs Linux. All processes listen on 127.0.0.1.

Sections:
${SECTIONS.map(({ name, summary }) => `  ${name.padEnd(15)}${summary}`).join('\n')}

Options:
  --only LIST    sections to measure, comma-separated (default: all, about an hour)
  --quick        one short round per section: shows that it runs; the figures are rough
  --rounds N     rounds (default 3)
  --seconds N    duration of each load (default: per section)
  --compare DIR  calls: also measure another version, a checkout with installed packages, in the same rounds
  --profile DIR  write CPU profiles of the measured processes
  -h, --help     show this help
`

interface Command {
  readonly options: RunOptions
  readonly sections: readonly Section[]
}

process.exitCode = await main()

async function main(): Promise<number> {
  const interrupted = new AbortController()
  for (const signal of ['SIGINT', 'SIGTERM'] as const) process.on(signal, () => interrupted.abort())
  try {
    const command = readCommand()
    if (!command) return 0
    if (process.platform !== 'linux')
      throw new Error('CPU and memory are read from /proc, so the benchmark needs Linux')
    return await measure(command, interrupted.signal)
  } catch (error) {
    process.stderr.write(`bench: ${interrupted.signal.aborted ? 'interrupted' : messageOf(error)}\n`)
    return 1
  }
}

async function measure({ sections, options }: Command, signal: AbortSignal): Promise<number> {
  const dir = mkdtempSync(join(tmpdir(), 'sluice-bench-'))
  let exitCode = 0
  try {
    mkdirSync(join(dir, 'servers'))
    await using run = new Run(options, dir, signal)
    for (const section of sections) {
      run.print(`measuring ${section.name}`)
      const [startedAt, cpuBefore] = [performance.now(), machineCpuMs()]
      run.versions.clear()
      try {
        const parts = await section.measure(run)
        const ms = performance.now() - startedAt
        const circumstances = circumstancesOf(ms, machineCpuMs() - cpuBefore, run.versions)
        run.print(`\n${[section.title, section.introduction, circumstances, ...parts].join('\n\n')}\n`)
      } catch (error) {
        signal.throwIfAborted()
        exitCode = 1
        process.stderr.write(`bench: ${section.name} was not measured: ${messageOf(error)}\n`)
      }
    }
    return exitCode
  } finally {
    rmSync(dir, { recursive: true, force: true })
  }
}

/** @param cpuMs CPU time in ms that the whole machine used. A high value shows that other work on the machine has affected the figures */
function circumstancesOf(ms: number, cpuMs: number, versions: ReadonlySet<string>): string {
  const machine = [
    `${availableParallelism()} cores (${cpus()[0]?.model.trim() ?? 'unknown CPU'})`,
    `${Math.round(totalmem() / 1024 ** 3)} GiB`,
    `Node ${process.versions.node}`,
    ...versions,
  ]
  const took = `${(ms / 60_000).toFixed(1)} minutes`
  return `Measured in ${took} on ${machine.join(', ')}. The whole machine used ${(cpuMs / ms).toFixed(1)} cores on average.`
}

function messageOf(error: unknown): string {
  return error instanceof Error ? error.message : String(error)
}

function readCommand(): Command | undefined {
  const { values } = parseArgs({
    options: {
      only: { type: 'string' },
      quick: { type: 'boolean', default: false },
      rounds: { type: 'string' },
      seconds: { type: 'string' },
      compare: { type: 'string' },
      profile: { type: 'string' },
      help: { type: 'boolean', short: 'h', default: false },
    },
  })
  if (values.help) {
    process.stdout.write(HELP)
    return undefined
  }
  return {
    sections: readSections(values.only),
    options: {
      isQuick: values.quick,
      rounds: readNumber('--rounds', values.rounds) ?? (values.quick ? 1 : 3),
      seconds: readNumber('--seconds', values.seconds),
      compare: values.compare && resolve(values.compare),
      profileDir: values.profile && resolve(values.profile),
    },
  }
}

function readSections(only: string | undefined): readonly Section[] {
  const names = only?.split(',') ?? SECTIONS.map(({ name }) => name)
  const unknown = names.filter((name) => !SECTIONS.some((section) => section.name === name))
  const known = SECTIONS.map(({ name }) => name).join(', ')
  if (unknown.length > 0) throw new Error(`--only: no section ${unknown.join(', ')}; sections are ${known}`)
  return SECTIONS.filter(({ name }) => names.includes(name))
}

function readNumber(option: string, text: string | undefined): number | undefined {
  if (text === undefined) return undefined
  if (!(Number(text) > 0)) throw new Error(`${option} must be a number above 0; got ${text}`)
  return Number(text)
}
