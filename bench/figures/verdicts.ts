import type { Cell } from '../calls/measure.ts'
import type { Footprint } from '../machine/footprint.ts'
import { added, type Figures, ratio } from './figures.ts'
import { renderTable, show } from './markdown.ts'

/** One target (docs/internals/benchmarks.md, Calls), and how it is read from a run. */
interface Goal {
  readonly what: string
  readonly goal: string
  readonly most: number
  readonly decimals: number
  readonly unit: string
  /** NaN when the run did not measure it. */
  value(figures: Figures, footprint: Footprint): number
}

const WHOLE_1: Cell = { shape: 'whole', callers: 1 }
const WHOLE_64: Cell = { shape: 'whole', callers: 64 }
const STREAMS_256: Cell = { shape: 'streams', callers: 256 }

const GOALS: readonly Goal[] = [
  {
    what: 'whole answer through Kafka, CPU of ingress and worker (64 callers)',
    goal: '≤ 0.65 ms',
    most: 0.65,
    decimals: 3,
    unit: 'ms',
    value: (figures) => figures.median('kafka', WHOLE_64, ({ cpu }) => cpu),
  },
  {
    what: 'whole answer through Kafka, added p50 (1 caller)',
    goal: '≤ 5 ms',
    most: 5,
    decimals: 2,
    unit: 'ms',
    value: (figures) => figures.paired('kafka', 'direct', WHOLE_1, ({ latencyP50 }) => latencyP50, added),
  },
  {
    what: 'whole answer in one process, CPU (64 callers)',
    goal: '≤ 3 × the bare proxy',
    most: 3,
    decimals: 2,
    unit: '×',
    value: (figures) => figures.paired('embedded', 'proxy', WHOLE_64, ({ cpu }) => cpu, ratio),
  },
  {
    what: 'whole answer in one process, added p50 (1 caller)',
    goal: '≤ 1 ms',
    most: 1,
    decimals: 2,
    unit: 'ms',
    value: (figures) => figures.paired('embedded', 'direct', WHOLE_1, ({ latencyP50 }) => latencyP50, added),
  },
  {
    what: 'token of 256 streams through Kafka, CPU of ingress and worker',
    goal: '≤ 50 µs',
    most: 50,
    decimals: 1,
    unit: 'µs',
    value: (figures) => figures.median('kafka', STREAMS_256, ({ cpu }) => cpu),
  },
  {
    what: 'token of 256 streams through Kafka, lag p50',
    goal: '≤ 5 ms',
    most: 5,
    decimals: 2,
    unit: 'ms',
    value: (figures) => figures.median('kafka', STREAMS_256, ({ lagP50 }) => lagP50),
  },
  {
    what: '256 streams through Kafka, stalls over 100 ms (median of the rounds)',
    goal: 'none',
    most: 0,
    decimals: 0,
    unit: '',
    value: (figures) => figures.median('kafka', STREAMS_256, ({ stalls }) => stalls),
  },
  {
    what: '`npm start`, ready after',
    goal: '≤ 2 s',
    most: 2,
    decimals: 2,
    unit: 's',
    value: (_, footprint) => footprint.readySeconds,
  },
  {
    what: '`npm start`, memory before the first call',
    goal: '≤ 200 MiB',
    most: 200,
    decimals: 0,
    unit: 'MiB',
    value: (_, footprint) => footprint.residentMib,
  },
]

/** What the design promises beside what was measured; what was not measured is left out. */
export function renderTargets(figures: Figures, footprint: Footprint): string {
  const rows = GOALS.map((goal) => ({ ...goal, measured: goal.value(figures, footprint) }))
    .filter(({ measured }) => !Number.isNaN(measured))
    .map(({ what, goal, measured, decimals, unit, most }) => {
      return [what, goal, `${show(measured, decimals)} ${unit}`.trim(), measured <= most ? 'reached' : '**missed**']
    })
  return renderTable(['what', 'target', 'measured', ''], rows)
}
