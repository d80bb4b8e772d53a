import type { Sample } from '../calls/measure.ts'
import { BESIDE } from '../calls/targets.ts'
import { type Figures, nameOf, ratio } from './figures.ts'
import { renderTable, show } from './markdown.ts'

const HEAD = ['load', 'through', 'rate ×', 'p50 ×', 'p99 ×', 'first token ×', 'lag p50 ×', 'CPU ×']

/** What is compared; under 1 is better for ours in all but the rate. */
const COLUMNS: readonly ((sample: Sample) => number)[] = [
  (sample) => (sample.cell.shape === 'whole' ? sample.answersPerSecond : sample.tokensPerSecond),
  (sample) => sample.latencyP50,
  (sample) => sample.latencyP99,
  (sample) => sample.firstTokenP50,
  (sample) => sample.lagP50,
  (sample) => sample.cpu,
]

/** This version beside another one: medians, over the rounds, of the ratio within each round. Empty where none was measured. */
export function renderBeside(figures: Figures): string[] {
  const pairs = (['embedded', 'kafka'] as const).filter((name) => figures.targets.includes(BESIDE[name]))
  if (pairs.length === 0) return []
  const rows = figures.cells.flatMap((cell) =>
    pairs.map((name) => {
      const ratios = COLUMNS.map((figure) => show(figures.paired(name, BESIDE[name], cell, figure, ratio), 2))
      return [nameOf(cell), name, ...ratios]
    }),
  )
  return ['## Beside the other version', renderTable(HEAD, rows)]
}
