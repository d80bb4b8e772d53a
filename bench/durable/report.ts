import { renderTable, show } from '../figures/markdown.ts'
import { median } from '../figures/stats.ts'
import { renderWhere } from '../figures/where.ts'
import type { DurableResults, DurableSample } from './durable.ts'
import type { DurableCell, DurableFigures } from './load.ts'
import type { DurableName } from './targets.ts'

/** The heading that the section of durable jobs begins with. */
export const DURABLE_TITLE = '## Durable jobs'

/** What the section says before its figures. */
export const DURABLE_INTRODUCTION = `What is accepted here survives a crash of everything: every system answers a submit, and counts a job as completed, only
after an fsync. BullMQ runs on a Redis with \`appendonly yes\` and \`appendfsync always\`; pg-boss and *Sluice, library* on one
Postgres with its default settings, 10 connections each; *SQLite* is one file with \`synchronous=FULL\`. Every job carries the same
400 bytes, does nothing, and gives 90 bytes; what is done is kept in each of them.

**How.** A *library* is called in the process that also runs its workers, 32 jobs at once. *Sluice, HTTP* is called with
\`Prefer: respond-async\` in processes of its own with their default settings: an ingress, a worker and a scheduler around Kafka
and Postgres; or \`npm start\`. *HTTP alone* is a server of Node's that parses a job, answers 202 and keeps nothing: the least that
submits over HTTP cost. **Submit**: callers submit one job after another for two seconds, no worker runs (behind HTTP the pool is
paused); then the workers are started and *completed/s* is how fast they empty the queue. **Submit while workers run**: the same with
the workers started before; *completed/s* counts from the first submit on, with the submits. **Submit until completed**: callers submit a
job, wait until it has been completed, and submit the next. pg-boss polls, at most twice a second. The systems are visited in turn,
load by load, and every ratio is with BullMQ in the same round; figures are medians over the rounds. Before, each has submitted jobs
until completed for as long as it became faster by that: the JVM of Kafka compiles for a minute, Redis not at all.

Callers, workers and servers share the cores, so these are figures of CPU more than of the disk where its fsync is quick.`

const TITLES: Record<DurableName, string> = {
  bullmq: 'BullMQ, Redis',
  'pg-boss': 'pg-boss, Postgres',
  library: 'Sluice, library, Postgres',
  'library-sqlite': 'Sluice, library, SQLite',
  'http-bare': 'HTTP alone, nothing kept',
  http: 'Sluice, HTTP, Kafka and Postgres',
  'http-sqlite': 'Sluice, HTTP, one process, SQLite',
}

/** The section's tables, in Markdown. */
export function renderDurable({ samples, where, skipped }: DurableResults): string[] {
  const figures = new DurableTable(samples)
  return [
    DURABLE_TITLE,
    renderTarget(figures),
    ...ESTIMATED.flatMap((cell) => renderEstimate(figures, cell)),
    '### Submit',
    renderTable([...HEAD, 'completed/s', '× BullMQ'], figures.rows('submit', true)),
    '### Submit while workers run',
    renderTable([...HEAD, 'completed/s', '× BullMQ'], figures.rows('busy', true)),
    '### Submit until completed',
    renderTable(HEAD, figures.rows('whole', false)),
    '### What uses the CPU, 32 callers',
    CPU_INTRODUCTION,
    renderCpu(samples),
    ...(where.length > 0 ? [WHERE_INTRODUCTION, renderWhere('ms of a job', 3, where)] : []),
    ...skipped.map((reason) => `Not measured, ${reason}.`),
  ]
}

const CPU_INTRODUCTION = `CPU of one job, in milliseconds, from its submit until it is completed and whatever that takes before the next load: a system
gives at most as many jobs a second as its parts together leave room for on the cores. A library has neither HTTP nor the processes between;
its callers are its workers too.`

const WHERE_INTRODUCTION = `Why submits over HTTP are fewer: the server that keeps nothing shows what HTTP costs. The rest is Postgres, Kafka, and what the ingress does for a call that a library's caller does not: who calls, what the key may, whether
the body is sound and fits the model, the position in the queue, the log, the metrics, and the record for the workers. This is V8's
sampling profile of both, by the file whose code ran.`

/** Medians over the rounds. */
function renderCpu(samples: readonly DurableSample[]): string {
  const names = [...new Set(samples.map(({ target }) => target))]
  const rows = names.flatMap((name) => {
    const cells = CPU_SHAPES.map((shape) =>
      samples.filter(({ target, cell }) => target === name && cell.shape === shape && cell.callers === 32),
    )
    const parts = cells[0]?.[0]?.cpu.map(({ part }) => part) ?? []
    const usedIn = (part: string) => cells.map((of) => median(of.map(({ cpu }) => cpuOf(cpu, part))))
    const used = parts.map((part) => [part, ...usedIn(part)] as const)
    const all = CPU_SHAPES.map((_, i) => used.reduce((sum, row) => sum + Number(row[i + 1]), 0))
    const shown = [...used, ['**all**', ...all] as const]
    return shown.map(([part, ...ms]) => [TITLES[name], part, ...ms.map((value) => show(Number(value), 3))])
  })
  return renderTable(['through', 'part', 'submit, then work', 'submit until completed'], rows)
}

const CPU_SHAPES = ['submit', 'whole'] as const

function cpuOf(cpu: DurableSample['cpu'], part: string): number {
  return cpu.find((used) => used.part === part)?.ms ?? Number.NaN
}

const HEAD = ['callers', 'through', 'jobs/s', '× BullMQ', 'p50 ms', 'p99 ms']

/** What durable jobs are to reach (docs/internals/benchmarks.md, Durable jobs). */
function renderTarget(figures: DurableTable): string {
  const rows = TARGETS.map(({ name, cell, least }) => {
    const value = figures.ratio(name, cell, ({ perSecond }) => perSecond)
    const verdict = Number.isNaN(value) ? 'not measured' : value >= least ? 'reached' : '**missed**'
    const what = cell.shape === 'whole' ? 'submit until completed' : 'durable submit'
    return [`${what}, ${TITLES[name]}, callers: ${cell.callers}`, `≥ ${least} × BullMQ`, `${show(value, 2)} ×`, verdict]
  })
  return renderTable(['what', 'target', 'measured', ''], rows)
}

/** Loads of which it is estimated what HTTP and the library alone would come to. */
const ESTIMATED: readonly DurableCell[] = [
  { shape: 'submit', callers: 32 },
  { shape: 'whole', callers: 32 },
]

/**
 * How many jobs there would be without the processes between, the broker, keys, limits and the log. It is an estimate: in a closed
 * loop the times of a call add up, but each was measured with all cores for itself.
 */
function renderEstimate(figures: DurableTable, cell: DurableCell): string[] {
  const { bullmq, library, 'http-bare': http } = figures.rates(cell)
  const rate = 1 / (1 / (http ?? Number.NaN) + 1 / (library ?? Number.NaN))
  const part = rate / (bullmq ?? Number.NaN)
  if (Number.isNaN(part)) return []
  const what = cell.shape === 'whole' ? 'Submit until completed' : 'Durable submit'
  return [
    `${what}, callers ${cell.callers}: if a job took as long as *HTTP alone* and then the library with Postgres, and no longer, there would be
about ${show(rate, 0)} jobs/s, ${show(part, 2)} × BullMQ.`,
  ]
}

/** Rates as parts of that of BullMQ as a library. */
const TARGETS: readonly { name: DurableName; cell: DurableCell; least: number }[] = [
  { name: 'library', cell: { shape: 'submit', callers: 1 }, least: 1 },
  { name: 'library-sqlite', cell: { shape: 'submit', callers: 1 }, least: 1 },
  { name: 'library', cell: { shape: 'submit', callers: 32 }, least: 1 },
  { name: 'library-sqlite', cell: { shape: 'submit', callers: 32 }, least: 1 },
  { name: 'http', cell: { shape: 'submit', callers: 32 }, least: 0.75 },
  { name: 'http', cell: { shape: 'whole', callers: 32 }, least: 1 },
]

/** Samples by system and load. */
class DurableTable {
  readonly #samples: readonly DurableSample[]

  constructor(samples: readonly DurableSample[]) {
    this.#samples = samples
  }

  rows(shape: DurableCell['shape'], hasCompleted: boolean): string[][] {
    const callers = new Set(this.#samples.filter(({ cell }) => cell.shape === shape).map(({ cell }) => cell.callers))
    const names = new Set(this.#samples.map(({ target }) => target))
    return [...callers].flatMap((count) =>
      [...names].map((name) => this.#row(name, { shape, callers: count }, hasCompleted)),
    )
  }

  /** Jobs a second of each system under a load, the median over the rounds. */
  rates(cell: DurableCell): Partial<Record<DurableName, number>> {
    const names = new Set(this.#samples.map(({ target }) => target))
    return Object.fromEntries(
      [...names].map((name) => [name, median(this.#of(name, cell).map(({ figures }) => figures.perSecond))]),
    )
  }

  /** Median over the rounds of the comparison with BullMQ in the same round. NaN when it was not measured. */
  ratio(name: DurableName, cell: DurableCell, figure: (figures: DurableFigures) => number): number {
    const bases = new Map(this.#of('bullmq', cell).map(({ round, figures }) => [round, figure(figures)]))
    return median(this.#of(name, cell).map(({ round, figures }) => figure(figures) / (bases.get(round) ?? Number.NaN)))
  }

  #row(name: DurableName, cell: DurableCell, hasCompleted: boolean): string[] {
    const one = (figure: (figures: DurableFigures) => number) =>
      median(this.#of(name, cell).map(({ figures }) => figure(figures)))
    const rate = (figures: DurableFigures) => figures.perSecond
    const completed = (figures: DurableFigures) => figures.completedPerSecond
    // What keeps nothing has no queue to empty.
    const shownCompleted =
      name === 'http-bare' ? ['–', '–'] : [show(one(completed), 0), show(this.ratio(name, cell, completed), 2)]
    return [
      String(cell.callers),
      TITLES[name],
      show(one(rate), 0),
      show(this.ratio(name, cell, rate), 2),
      show(
        one(({ p50 }) => p50),
        2,
      ),
      show(
        one(({ p99 }) => p99),
        2,
      ),
      ...(hasCompleted ? shownCompleted : []),
    ]
  }

  #of(name: DurableName, { shape, callers }: DurableCell): DurableSample[] {
    return this.#samples.filter(
      ({ target, cell }) => target === name && cell.shape === shape && cell.callers === callers,
    )
  }
}
