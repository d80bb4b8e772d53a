import { renderTable, show } from '../figures/markdown.ts'
import { median } from '../figures/stats.ts'
import type { LendingSample } from './lending.ts'
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

/** Tokens per second, as a part of a bare proxy's. */
const TOKENS_LEAST = 0.97
/** Time to the first token beyond a bare proxy's, p99. */
const LATER_MS_MOST = 60
/** How long a stream takes. */
const STREAM_MS = 1_310
const LENDING_HEAD = ['through', 'tokens per second', 'failed', 'first token p50 ms', 'p99 ms', 'a second model ms']

/** The tables of one busy model among idle ones, in Markdown. */
export function renderLending(samples: readonly LendingSample[]): string[] {
  const targets = (['embedded', 'kafka'] as const).filter((name) => samples.some(({ target }) => target === name))
  const goals = targets.flatMap((name) =>
    lendingGoals(TITLES[name], samplesOf(samples, name), samplesOf(samples, 'proxy')),
  )
  const rows = [lendingRow('bare proxy', samplesOf(samples, 'proxy'))]
  for (const name of targets) rows.push(lendingRow(TITLES[name], samplesOf(samples, name)))
  return [renderTable(['what', 'target', 'measured', ''], goals), renderTable(LENDING_HEAD, rows)]
}

function samplesOf(samples: readonly LendingSample[], name: LendingSample['target']): LendingSample[] {
  return samples.filter(({ target }) => target === name)
}

/** @param proxy Of the same rounds */
function lendingGoals(title: string, own: readonly LendingSample[], proxy: readonly LendingSample[]): string[][] {
  const pairs = own.flatMap((one) => proxy.filter(({ round }) => round === one.round).map((bare) => ({ one, bare })))
  const tokens = median(pairs.map(({ one, bare }) => one.tokensPerSecond / bare.tokensPerSecond))
  const laterMs = median(pairs.map(({ one, bare }) => one.p99 - bare.p99))
  const arrivalMs = median(own.map(({ arrivals }) => Math.max(...arrivals)))
  const verdict = (isReached: boolean) => (isReached ? 'reached' : '**missed**')
  return [
    [
      `tokens per second, ${title}`,
      `≥ ${TOKENS_LEAST} × bare proxy`,
      `${show(tokens, 2)} ×`,
      verdict(tokens >= TOKENS_LEAST),
    ],
    [
      `first token p99, ${title}`,
      `≤ ${LATER_MS_MOST} ms after a bare proxy's`,
      `${show(laterMs, 0)} ms`,
      verdict(laterMs <= LATER_MS_MOST),
    ],
    [
      `calls of a second model begin, ${title}`,
      `within one stream, ${STREAM_MS} ms`,
      `${show(arrivalMs, 0)} ms`,
      verdict(arrivalMs <= STREAM_MS),
    ],
  ]
}

function lendingRow(title: string, of: readonly LendingSample[]): string[] {
  const one = (figure: (sample: LendingSample) => number, digits: number) => show(median(of.map(figure)), digits)
  const hasArrivals = of.some(({ arrivals }) => arrivals.length > 0)
  return [
    title,
    one(({ tokensPerSecond }) => tokensPerSecond, 0),
    one(({ failures }) => failures, 0),
    one(({ p50 }) => p50, 1),
    one(({ p99 }) => p99, 1),
    hasArrivals ? one(({ arrivals }) => Math.max(...arrivals), 0) : '–',
  ]
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
