import { availableParallelism, cpus, totalmem } from 'node:os'
import { added, Figures, ratio } from './figures.ts'
import type { Footprint } from './footprint.ts'
import { renderTable, show } from './markdown.ts'
import type { Cell, Sample } from './measure.ts'
import type { TargetName } from './targets.ts'
import { renderTargets } from './verdicts.ts'

/** Everything a run found out. */
export interface Results {
  readonly samples: readonly Sample[]
  readonly footprint: Footprint
  readonly kafkaVersion: string | undefined
  readonly seconds: number
  /** Cores that all processes of the machine used on average; more than the run's own tells of a crowded machine. */
  readonly coresUsed: number
}

/** The tables of a run, in Markdown. */
export function renderResults(results: Results): string {
  const figures = new Figures(results.samples)
  const parts = ['## Beside the targets', renderTargets(figures, results.footprint)]
  const whole = figures.cells.filter(({ shape }) => shape === 'whole')
  if (whole.length > 0) parts.push('## Whole answers', renderWhole(figures, whole))
  const streams = figures.cells.filter(({ shape }) => shape === 'streams')
  if (streams.length > 0) parts.push('## Streams', renderStreams(figures, streams))
  return `${parts.join('\n\n')}\n`
}

const WHOLE_HEAD = [
  ...['callers', 'through', 'answers/s', '× direct', '× proxy', 'p50 ms', 'p95 ms', 'p99 ms', 'added p50 ms'],
  ...['CPU ms/answer', '× proxy', 'broker CPU ms/answer', 'MiB'],
]

function renderWhole(figures: Figures, cells: readonly Cell[]): string {
  const rows = eachRow(figures, cells, (target, cell) => {
    const one = (figure: (sample: Sample) => number) => figures.median(target, cell, figure)
    const rate = (sample: Sample) => sample.answersPerSecond
    const p50 = (sample: Sample) => sample.latencyP50
    const cpu = (sample: Sample) => sample.cpu
    return [
      show(one(rate), 0),
      show(figures.paired(target, 'direct', cell, rate, ratio), 3),
      show(figures.paired(target, 'proxy', cell, rate, ratio), 3),
      show(one(p50), 2),
      show(
        one((sample) => sample.latencyP95),
        2,
      ),
      show(
        one((sample) => sample.latencyP99),
        2,
      ),
      target === 'direct' ? '–' : show(figures.paired(target, 'direct', cell, p50, added), 2),
      show(one(cpu), 3),
      show(figures.paired(target, 'proxy', cell, cpu, ratio), 1),
      show(
        one((sample) => sample.brokerCpu),
        3,
      ),
      target === 'direct'
        ? '–'
        : show(
            one((sample) => sample.residentMib),
            0,
          ),
    ]
  })
  return renderTable(WHOLE_HEAD, rows)
}

const STREAMS_HEAD = [
  ...['streams', 'through', 'tokens/s', '× direct', 'first token p50 ms', 'added ms', 'lag p50 ms', 'lag p99 ms'],
  ...['stalls', 'CPU µs/token', '× proxy', 'broker CPU µs/token', 'MiB'],
]

function renderStreams(figures: Figures, cells: readonly Cell[]): string {
  const rows = eachRow(figures, cells, (target, cell) => {
    const one = (figure: (sample: Sample) => number) => figures.median(target, cell, figure)
    const rate = (sample: Sample) => sample.tokensPerSecond
    const first = (sample: Sample) => sample.firstTokenP50
    const cpu = (sample: Sample) => sample.cpu
    return [
      show(one(rate), 0),
      show(figures.paired(target, 'direct', cell, rate, ratio), 2),
      show(one(first), 1),
      target === 'direct' ? '–' : show(figures.paired(target, 'direct', cell, first, added), 1),
      show(
        one((sample) => sample.lagP50),
        2,
      ),
      show(
        one((sample) => sample.lagP99),
        2,
      ),
      String(sumOf(figures.of(target, cell).map(({ stalls }) => stalls))),
      show(one(cpu), 1),
      show(figures.paired(target, 'proxy', cell, cpu, ratio), 1),
      show(
        one((sample) => sample.brokerCpu),
        1,
      ),
      target === 'direct'
        ? '–'
        : show(
            one((sample) => sample.residentMib),
            0,
          ),
    ]
  })
  return renderTable(STREAMS_HEAD, rows)
}

function eachRow(
  figures: Figures,
  cells: readonly Cell[],
  row: (target: TargetName, cell: Cell) => string[],
): string[][] {
  return cells.flatMap((cell) =>
    figures.targets.map((name) => [String(cell.callers), TITLES[name], ...row(name, cell)]),
  )
}

const TITLES: Record<TargetName, string> = {
  direct: 'nothing (direct)',
  proxy: 'bare proxy',
  embedded: 'Sluice, one process',
  kafka: 'Sluice, Kafka',
}

function sumOf(values: readonly number[]): number {
  return values.reduce((sum, value) => sum + value, 0)
}

/** One line on what it was measured with. */
export function renderMachine(results: Results): string {
  const memoryGib = Math.round(totalmem() / 1024 ** 3)
  const cpu = cpus()[0]?.model.trim() ?? 'unknown CPU'
  const kafka = results.kafkaVersion ? `, Kafka ${results.kafkaVersion}` : ''
  return `${availableParallelism()} cores (${cpu}), ${memoryGib} GiB, Linux, Node ${process.versions.node}${kafka}`
}

/** docs/benchmarks.md: how it was measured, and the tables of a run. */
export function renderDocument(results: Results, commandLine: string): string {
  const minutes = (results.seconds / 60).toFixed(1)
  const facts = [
    `Measured on ${new Date().toISOString().slice(0, 10)} with \`${commandLine}\`, in ${minutes} minutes, on`,
    `${renderMachine(results)}. On average ${results.coresUsed.toFixed(1)} cores of the machine were busy.`,
  ]
  return `${INTRODUCTION}\n${facts.join(' ')}\n\n${renderResults(results)}`
}

const INTRODUCTION = `# Benchmarks

<!-- Written by \`npm run bench -- --write\`; change bench/report.ts, not this file. -->

What Sluice adds to a call of the model server behind it. One command measures it on your machine, in about six minutes:

\`\`\`sh
npm run bench                    # prints the tables below
npm run bench -- --quick         # one short round on code that is not warm: does it run? 50 seconds
npm run bench -- --help
\`\`\`

It needs Linux and, for Kafka, Java 17 (a local broker is started) or KAFKA_BROKERS.

**How.** Every part is a process of its own on 127.0.0.1: a mock upstream that answers whole calls at once and streams 64
tokens, the first after 50 ms, then 50 a second; the callers, in closed loops on connections they keep; and what lies
between. *Direct* is nothing. The *bare proxy* is the least a gateway in Node can do: it checks the key, parses the body, and
pipes the call through undici. *Sluice, one process* is \`npm start\` with its defaults. *Sluice, Kafka* is one ingress and one
worker around a real broker. Both log at their default level, to a file. The targets are visited in turn, cell by cell, and
every comparison is with the same cell of the same round; figures are medians over the rounds.

**Reading it.** All parts share the cores, so with many callers latency is mostly waiting for a core, and the rate says
how much CPU a call costs everything together. **CPU per answer or token** depends on that least, so it
is the figure to compare; on a crowded machine it still grew to twice. It counts Sluice's processes, and the broker apart. *Lag* is the time from a token's sending by
the upstream to its arrival; a *stall* is a silence over 100 ms inside a stream that the upstream did not make.
`
