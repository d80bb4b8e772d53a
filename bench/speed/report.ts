import type { Cell, Sample } from '../calls/measure.ts'
import type { TargetName } from '../calls/targets.ts'
import { added, Figures } from '../figures/figures.ts'
import { renderTable, show } from '../figures/markdown.ts'
import { median } from '../figures/stats.ts'
import { renderWhere, renderWhy, type Where } from '../figures/where.ts'
import {
  FEW_IN_STEP,
  FIRST_CALLS,
  LATER_CALLS,
  LONG,
  LONGER,
  MANY_IN_STEP,
  SPARSE,
  type SpeedResults,
  STREAMS,
  type StartSample,
  WHOLE,
} from './measure.ts'

/** What a row is, for a target beside the proxy. */
interface Row {
  readonly what: string
  readonly unit: string
  readonly decimals: number
  /** Median over the rounds. */
  of(target: TargetName): number
  /** What the target may have: so many times the proxy's, or so much. One value for each of {@link GOAL_TARGETS}. */
  readonly goal?: { readonly is: 'times' | 'most'; readonly values: readonly [number, number] }
}

const GOAL_TARGETS = ['embedded', 'kafka'] as const

/** The section's table, in Markdown: a row for each figure, a column for each target. */
export function renderSpeed(results: SpeedResults): string[] {
  const rows = rowsOf(results)
  const targets = [...new Set(results.samples.map(({ target }) => target))].filter((name) => name !== 'direct')
  const head = ['', 'unit', ...targets.flatMap((name) => [TITLES[name], ...(name === 'proxy' ? [] : ['× proxy', ''])])]
  const table = renderTable(
    head,
    rows.map((row) => [row.what, row.unit, ...targets.flatMap((target) => cellsOf(row, target))]),
  )
  return [
    table,
    renderMoment(results, targets),
    ...results.wheres.flatMap(({ cell, columns }) => whereOf(cell, columns)),
  ]
}

/** What the tokens of one moment cost, which the last of them waits for. */
function renderMoment({ samples }: SpeedResults, targets: readonly TargetName[]): string {
  const figures = new Figures(samples)
  const { callers } = MANY_IN_STEP
  const costs = targets.map((target) => {
    const ms = (callers * figures.median(target, MANY_IN_STEP, ({ cpu }) => cpu)) / 1_000
    return `${TITLES[target]} ${show(ms, 1)}`
  })
  return (
    `CPU of the ${callers} tokens of one moment, with their part of what begins and ends, in ms of the ${TOKEN_MS} until the next: ` +
    `${costs.join(', ')}.`
  )
}

/** Where the time goes: what a target that is missed is missed by. */
function whereOf(cell: Cell, columns: readonly Where[]): string[] {
  const isTokens = cell === STREAMS
  return [
    `### Where the CPU of ${WHERES.get(cell)}`,
    renderWhere(isTokens ? 'µs' : 'ms', isTokens ? 1 : 3, columns),
    renderWhy(columns),
  ]
}

const WHERES: ReadonlyMap<Cell, string> = new Map([
  [WHOLE, 'a whole answer goes, 64 callers'],
  [STREAMS, 'a token goes, 256 streams'],
  [SPARSE, 'a sparse call goes, one caller'],
])

/** Of streams in step (bench/calls/mock.ts). */
const TOKEN_MS = 20

const TITLES: Record<TargetName, string> = {
  direct: 'direct',
  proxy: 'bare proxy',
  hops: 'Kafka alone',
  smg: 'smg',
  portkey: 'Portkey',
  embedded: 'Sluice, one process',
  kafka: 'Sluice, Kafka',
  'beside-embedded': 'the other, one process',
  'beside-kafka': 'the other, Kafka',
}

function cellsOf(row: Row, target: TargetName): string[] {
  const value = row.of(target)
  const times = value / row.of('proxy')
  if (target === 'proxy') return [show(value, row.decimals)]
  return [show(value, row.decimals), show(times, 1), verdictOf(row, target, value, times)]
}

function verdictOf({ goal }: Row, target: TargetName, value: number, times: number): string {
  const limit = goal?.values[GOAL_TARGETS.findIndex((name) => target.endsWith(name))]
  if (goal === undefined || limit === undefined || Number.isNaN(value)) return ''
  const isReached = (goal.is === 'times' ? times : value) <= limit
  const name = `≤ ${limit}${goal.is === 'times' ? ' ×' : ''}`
  return isReached ? `${name} reached` : `${name} **missed**`
}

function rowsOf({ samples, starts }: SpeedResults): Row[] {
  const figures = new Figures(samples)
  const plain = (cell: Cell, figure: (sample: Sample) => number) => (target: TargetName) =>
    figures.median(target, cell, figure)
  const above = (cell: Cell, figure: (sample: Sample) => number) => (target: TargetName) =>
    figures.paired(target, 'direct', cell, figure, added)
  const cpu = ({ cpu }: Sample) => cpu
  const lag = [({ lagP50 }: Sample) => lagP50, ({ lagP99 }: Sample) => lagP99] as const
  const first = ({ firstTokenP50 }: Sample) => firstTokenP50
  return [
    row('whole, 64 callers: CPU', 'ms', 3, plain(WHOLE, cpu), { is: 'times', values: [1.75, 2.5] }),
    row('whole, 64 callers, prompts of 32 KiB: CPU', 'ms', 3, plain(LONG, cpu)),
    row('whole, 64 callers, prompts of 128 KiB: CPU', 'ms', 3, plain(LONGER, cpu)),
    row('256 streams: CPU of a token', 'µs', 1, plain(STREAMS, cpu), { is: 'times', values: [1.5, 2] }),
    row('64 streams in step: added first token p50', 'ms', 1, above(FEW_IN_STEP, first), {
      is: 'most',
      values: [10, 10],
    }),
    row('64 streams in step: lag p50', 'ms', 2, plain(FEW_IN_STEP, lag[0])),
    row('64 streams in step: lag p99', 'ms', 1, plain(FEW_IN_STEP, lag[1])),
    row('256 streams in step: lag p50', 'ms', 2, plain(MANY_IN_STEP, lag[0]), { is: 'most', values: [5, 5] }),
    row('256 streams in step: lag p99', 'ms', 1, plain(MANY_IN_STEP, lag[1]), { is: 'most', values: [25, 25] }),
    row('256 streams in step: CPU of a token', 'µs', 1, plain(MANY_IN_STEP, cpu)),
    row('sparse: CPU', 'ms', 2, plain(SPARSE, cpu)),
    row(
      'sparse: added p50',
      'ms',
      2,
      above(SPARSE, ({ latencyP50 }) => latencyP50),
      { is: 'times', values: [1.5, 1.5] },
    ),
    ...startRows(starts),
  ]
}

/** What is seen of a target before its loads. */
function startRows(starts: SpeedResults['starts']): Row[] {
  const start = (figure: (sample: StartSample) => number) => (target: TargetName) =>
    median(starts.filter((sample) => sample.target === target).map(figure))
  const addedCalls = (figure: (sample: StartSample) => number) => (target: TargetName) => {
    const directs = new Map(starts.filter((one) => one.target === 'direct').map((one) => [one.round, figure(one)]))
    const own = starts.filter((one) => one.target === target)
    return median(own.map((one) => figure(one) - (directs.get(one.round) ?? Number.NaN)))
  }
  return [
    row(
      `first ${FIRST_CALLS} calls: added p50`,
      'ms',
      2,
      addedCalls(({ firstCallsP50 }) => firstCallsP50),
      { is: 'times', values: [1.5, 1.5] },
    ),
    row(
      `the last ${FIRST_CALLS} of ${LATER_CALLS} calls: added p50`,
      'ms',
      2,
      addedCalls(({ laterCallsP50 }) => laterCallsP50),
    ),
    row(
      'first call',
      'ms',
      1,
      start(({ firstCall }) => firstCall),
    ),
    row(
      'idle: CPU',
      '% of a core',
      2,
      start(({ idleCpu }) => idleCpu),
      { is: 'most', values: [0.5, 1] },
    ),
    row(
      'idle: memory',
      'MiB',
      0,
      start(({ idleMib }) => idleMib),
      { is: 'most', values: [130, 260] },
    ),
  ]
}

function row(what: string, unit: string, decimals: number, of: Row['of'], goal?: Row['goal']): Row {
  return { what, unit, decimals, of, ...(goal && { goal }) }
}
