import { renderTable, show } from '../figures/markdown.ts'
import { median } from '../figures/stats.ts'
import {
  type BulkheadResults,
  type BulkheadSample,
  HANGING_CALLERS,
  HEALTHY,
  HEALTHY_CALLERS,
  SLOTS,
  type StreamFigures,
} from './bulkheads.ts'

/** The heading that the section of bulkheads begins with. */
export const BULKHEADS_TITLE = '## Bulkheads between models'

/** What the section says before its figures. */
export const BULKHEADS_INTRODUCTION = `One worker of ${SLOTS} slots and three models without any \`concurrency\`. ${HEALTHY.length} are well: ${HEALTHY_CALLERS} callers each take streams from them, one after the
other. The upstream of the third takes every call and answers none, and ${HANGING_CALLERS} callers wait for it. The times are those to the first token
of the healthy models, alone and beside the one that hangs, in the same round; figures are medians over the rounds.`

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
  return [BULKHEADS_TITLE, renderTable(['what', 'target', 'measured', ''], goals), renderTable(HEAD, rows)]
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
