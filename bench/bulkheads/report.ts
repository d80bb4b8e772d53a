import { renderTable, show } from '../figures/markdown.ts'
import { median } from '../figures/stats.ts'
import type { BulkheadResults, BulkheadSample, StreamFigures } from './measure.ts'

/** First tokens beside a model that hangs, in relation to those without it. */
const RATIO_MOST = 1.5
const TITLES = { embedded: 'Sluice, one process', kafka: 'Sluice, Kafka' } as const
const HEAD = ['through', 'beside', 'streams', 'failed', 'first token p50 ms', 'p99 ms', '× alone']

/** The section's tables, in Markdown. */
export function renderBulkheads({ samples, hangSeconds }: BulkheadResults): string[] {
  const targets = (['embedded', 'kafka'] as const).filter((name) => samples.some(({ target }) => target === name))
  const of = (name: BulkheadSample['target']) => samples.filter(({ target }) => target === name)
  const goals = targets.map((name) => {
    const ratio = ratioOf(of(name))
    const failures = of(name).reduce((sum, { beside }) => sum + beside.failures, 0)
    const verdict = ratio <= RATIO_MOST && failures === 0 ? 'reached' : '**missed**'
    const what = `first token p99 beside a model that hangs for ${hangSeconds} s, ${TITLES[name]}`
    return [what, `≤ ${RATIO_MOST} × alone, none failed`, `${show(ratio, 2)} ×, ${failures} failed`, verdict]
  })
  const rows = targets.flatMap((name) => [
    [TITLES[name], 'nothing', ...figures(of(name).map(({ solo }) => solo)), '–'],
    [TITLES[name], 'one that hangs', ...figures(of(name).map(({ beside }) => beside)), show(ratioOf(of(name)), 2)],
  ])
  return [renderTable(['what', 'target', 'measured', ''], goals), renderTable(HEAD, rows)]
}

function figures(of: readonly StreamFigures[]): string[] {
  const one = (figure: (figures: StreamFigures) => number) => median(of.map(figure))
  return [
    show(
      one(({ answers }) => answers),
      0,
    ),
    show(
      one(({ failures }) => failures),
      0,
    ),
    show(
      one(({ p50 }) => p50),
      1,
    ),
    show(
      one(({ p99 }) => p99),
      1,
    ),
  ]
}

function ratioOf(samples: readonly BulkheadSample[]): number {
  return median(samples.map(({ solo, beside }) => beside.p99 / solo.p99))
}
